"""What differs between languages when written things are read out: tables only, no rules.

English and French are complete. German, Spanish and Portuguese have what numbers, mail and web addresses need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.text_numbers import NumberStyle


@dataclass(frozen=True, slots=True)
class Money:
    """A currency's names: one, many, and its hundredth part (empty where there is none)."""

    one: str
    many: str
    part_one: str = ""
    part_many: str = ""


@dataclass(frozen=True, slots=True)
class Language:
    """One language's tables. Keys are lower case; values are words to be spoken."""

    code: str
    numbers: NumberStyle
    symbols: Mapping[str, str]
    months: tuple[str, ...] = ()
    month_names: Mapping[str, int] = field(default_factory=dict)
    money: Mapping[str, Money] = field(default_factory=dict)
    money_between: str = ""  # between whole and part: "five dollars AND fifty cents"
    magnitudes: Mapping[str, str] = field(default_factory=dict)  # "m" -> "million"
    magnitude_of: str = ""  # "cinq millions D'euros"
    units: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    per: str = ""
    abbreviations: Mapping[str, str] = field(default_factory=dict)
    spaced_marks: bool = False  # "vraiment ?" has a space before the mark


def style(lang: str, decimal: str, point: str, minus: str, *, as_number: bool) -> NumberStyle:
    return NumberStyle(lang, decimal, "," if decimal == "." else ".", point, minus, as_number)


def _months(names: str, short: str) -> tuple[tuple[str, ...], dict[str, int]]:
    full = tuple(names.split())
    table = {name.lower(): i for i, name in enumerate(full, 1)}
    return full, table | {name: i for i, name in enumerate(short.split(), 1) if name != "-"}


_EN_MONTHS, _EN_MONTH_NAMES = _months(
    "January February March April May June July August September October November December",
    "jan feb mar apr - jun jul aug sep oct nov dec",
)
_FR_MONTHS, _FR_MONTH_NAMES = _months(
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "janv févr - avr - - juil - sept oct nov déc",
)

ENGLISH = Language(
    code="en",
    numbers=style("en", ".", "point", "minus", as_number=False),
    symbols={
        "&": "and", "@": "at", "%": "percent", "+": "plus", "=": "equals", "×": "times", "÷": "divided by",
        "±": "plus or minus", "≈": "about", "~": "about", "<": "less than", ">": "greater than", "≤": "at most",
        "≥": "at least", "°": "degrees", "#": "hash", "_": "underscore", "-": "dash", ".": "dot", "/": "slash",
        ":": "colon", "?": "question mark", "number": "number", "to": "to", "the": "the", "of": "of",
        "over": "over", "^": "times ten to the power of", "half": "half", "quarter": "quarter", "and": "and",
        "a": "a", "‰": "per mille", "№": "number",
        "§": "section", "¢": "cents", "√": "square root of", "∞": "infinity", "π": "pi", "µ": "micro",
    },
    months=_EN_MONTHS,
    month_names=_EN_MONTH_NAMES | {"sept": 9},
    money={
        "$": Money("dollar", "dollars", "cent", "cents"), "€": Money("euro", "euros", "cent", "cents"),
        "£": Money("pound", "pounds", "penny", "pence"), "¥": Money("yen", "yen"), "₹": Money("rupee", "rupees"),
        "₩": Money("won", "won"), "₽": Money("ruble", "rubles"), "us$": Money("U S dollar", "U S dollars", "cent",
        "cents"),
        "usd": Money("U S dollar", "U S dollars", "cent", "cents"), "eur": Money("euro", "euros", "cent", "cents"),
        "gbp": Money("pound", "pounds", "penny", "pence"), "chf": Money("Swiss franc", "Swiss francs"),
        "jpy": Money("yen", "yen"), "cad": Money("Canadian dollar", "Canadian dollars", "cent", "cents"),
    },
    money_between="and",
    magnitudes={
        "k": "thousand", "m": "million", "mn": "million", "mm": "million", "bn": "billion", "b": "billion",
        "t": "trillion", "tn": "trillion", "thousand": "thousand", "million": "million", "billion": "billion",
        "trillion": "trillion", "hundred": "hundred",
    },
    units={
        "km": ("kilometer", "kilometers"), "m": ("meter", "meters"), "cm": ("centimeter", "centimeters"),
        "mm": ("millimeter", "millimeters"), "mi": ("mile", "miles"), "ft": ("foot", "feet"), "in": ("inch",
        "inches"),
        "yd": ("yard", "yards"), "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"), "mg": ("milligram",
        "milligrams"),
        "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"), "oz": ("ounce", "ounces"), "l": ("liter", "liters"),
        "ml": ("milliliter", "milliliters"), "s": ("second", "seconds"), "sec": ("second", "seconds"),
        "ms": ("millisecond", "milliseconds"), "min": ("minute", "minutes"), "h": ("hour", "hours"),
        "hr": ("hour", "hours"), "hrs": ("hour", "hours"), "°c": ("degree Celsius", "degrees Celsius"),
        "°f": ("degree Fahrenheit", "degrees Fahrenheit"), "°": ("degree", "degrees"), "%": ("percent", "percent"),
        "‰": ("per mille", "per mille"), "kb": ("kilobyte", "kilobytes"), "mb": ("megabyte", "megabytes"),
        "gb": ("gigabyte", "gigabytes"), "tb": ("terabyte", "terabytes"), "kbps": ("kilobit per second",
        "kilobits per second"),
        "mbps": ("megabit per second", "megabits per second"), "hz": ("hertz", "hertz"), "khz": ("kilohertz",
        "kilohertz"),
        "mhz": ("megahertz", "megahertz"), "ghz": ("gigahertz", "gigahertz"), "w": ("watt", "watts"),
        "kw": ("kilowatt", "kilowatts"), "kwh": ("kilowatt hour", "kilowatt hours"), "v": ("volt", "volts"),
        "mah": ("milliamp hour", "milliamp hours"), "mph": ("mile per hour", "miles per hour"), "db": ("decibel",
        "decibels"),
        "px": ("pixel", "pixels"), "ha": ("hectare", "hectares"), "¢": ("cent", "cents"),
        "m²": ("square meter", "square meters"), "km²": ("square kilometer", "square kilometers"),
        "m³": ("cubic meter", "cubic meters"), "ft²": ("square foot", "square feet"),
    },
    per="per",
    abbreviations={
        "mr": "Mister", "mrs": "Missus", "ms": "Miz", "dr": "Doctor", "prof": "Professor", "st": "Saint",
        "jr": "Junior",
        "sr": "Senior", "vs": "versus", "etc": "et cetera", "e.g": "for example", "i.e": "that is",
        "inc": "Incorporated",
        "ltd": "Limited", "corp": "Corporation", "co": "Company", "approx": "approximately", "dept": "department",
        "est": "established", "ave": "Avenue", "blvd": "Boulevard", "rd": "Road", "no": "number", "fig": "figure",
        "vol": "volume", "gen": "General", "col": "Colonel", "sgt": "Sergeant", "capt": "Captain", "rev": "Reverend",
        "hon": "Honorable", "pp": "pages", "cf": "compare", "al": "al", "govt": "government", "min": "minutes",
    },
)  # fmt: skip

FRENCH = Language(
    code="fr",
    numbers=style("fr", ",", "virgule", "moins", as_number=True),
    symbols={
        "&": "et", "@": "arobase", "%": "pour cent", "+": "plus", "=": "égale", "×": "fois", "÷": "divisé par",
        "±": "plus ou moins", "≈": "environ", "~": "environ", "<": "inférieur à", ">": "supérieur à", "≤": "au plus",
        "≥": "au moins", "°": "degrés", "#": "dièse", "_": "tiret bas", "-": "tiret", ".": "point",
        "/": "barre oblique",
        ":": "deux points", "?": "point d'interrogation", "number": "numéro", "to": "à", "the": "le", "of": "",
        "over": "sur", "^": "fois dix puissance", "half": "demi", "quarter": "quart", "and": "et", "a": "un",
        "‰": "pour mille", "№": "numéro",
        "§": "section", "√": "racine de", "∞": "infini", "π": "pi", "µ": "micro",
    },
    months=_FR_MONTHS,
    month_names=_FR_MONTH_NAMES,
    money={
        "$": Money("dollar", "dollars", "cent", "cents"), "€": Money("euro", "euros", "", ""),
        "£": Money("livre", "livres", "penny", "pence"), "¥": Money("yen", "yens"), "eur": Money("euro", "euros",
        "", ""),
        "usd": Money("dollar", "dollars", "cent", "cents"), "chf": Money("franc suisse", "francs suisses"),
        "gbp": Money("livre", "livres", "penny", "pence"),
    },
    magnitudes={
        "k": "mille", "m": "million", "md": "milliard", "mds": "milliard", "million": "million",
        "millions": "million",
        "milliard": "milliard", "milliards": "milliard",
    },
    magnitude_of="de",
    units={
        "km": ("kilomètre", "kilomètres"), "m": ("mètre", "mètres"), "cm": ("centimètre", "centimètres"),
        "mm": ("millimètre", "millimètres"), "kg": ("kilogramme", "kilogrammes"), "g": ("gramme", "grammes"),
        "mg": ("milligramme", "milligrammes"), "l": ("litre", "litres"), "ml": ("millilitre", "millilitres"),
        "cl": ("centilitre", "centilitres"), "s": ("seconde", "secondes"), "ms": ("milliseconde", "millisecondes"),
        "min": ("minute", "minutes"), "°c": ("degré Celsius", "degrés Celsius"), "°": ("degré", "degrés"),
        "%": ("pour cent", "pour cent"), "‰": ("pour mille", "pour mille"), "ko": ("kilo-octet", "kilo-octets"),
        "mo": ("mégaoctet", "mégaoctets"), "go": ("gigaoctet", "gigaoctets"), "to": ("téraoctet", "téraoctets"),
        "hz": ("hertz", "hertz"), "mhz": ("mégahertz", "mégahertz"), "ghz": ("gigahertz", "gigahertz"),
        "w": ("watt", "watts"), "kw": ("kilowatt", "kilowatts"), "kwh": ("kilowattheure", "kilowattheures"),
        "v": ("volt", "volts"), "ha": ("hectare", "hectares"), "h": ("heure", "heures"),
        "m²": ("mètre carré", "mètres carrés"), "km²": ("kilomètre carré", "kilomètres carrés"),
        "m³": ("mètre cube", "mètres cubes"),
    },
    per="par",
    abbreviations={
        "m": "Monsieur", "mm": "Messieurs", "mme": "Madame", "mmes": "Mesdames", "mlle": "Mademoiselle",
        "dr": "Docteur",
        "pr": "Professeur", "etc": "et cetera", "p.ex": "par exemple", "c.-à-d": "c'est-à-dire", "av": "avenue",
        "bd": "boulevard", "st": "Saint", "ste": "Sainte", "tél": "téléphone", "env": "environ", "cf": "confer",
        "n°": "numéro", "vs": "contre",
    },
    spaced_marks=True,
)  # fmt: skip


def _basic(lang: str, point: str, minus: str, words: str) -> Language:
    keys = ["&", "@", "%", "+", "=", "_", "-", ".", "/", ":", "number", "to"]
    symbols = dict(zip(keys, words.split("|"), strict=True))
    return Language(lang, style(lang, ",", point, minus, as_number=False), symbols)


LANGUAGES = {
    "en": ENGLISH,
    "fr": FRENCH,
    "de": _basic(
        "de", "Komma", "minus",
        "und|at|Prozent|plus|gleich|Unterstrich|Bindestrich|Punkt|Schrägstrich|Doppelpunkt|Nummer|bis",
    ),
    "es": _basic(
        "es", "coma", "menos",
        "y|arroba|por ciento|más|igual a|guion bajo|guion|punto|barra|dos puntos|número|a",
    ),
    "pt": _basic(
        "pt", "vírgula", "menos",
        "e|arroba|por cento|mais|igual a|sublinhado|hífen|ponto|barra|dois pontos|número|a",
    ),
}  # fmt: skip
