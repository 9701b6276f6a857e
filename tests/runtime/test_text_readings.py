"""How written things are read out, case by case."""

from __future__ import annotations

import pytest

from runtime.text import spoken_text

ENGLISH = """
Hello, world!                         | Hello, world!
don’t “quote” — and…                  | don't quote and...
It's (really) good: yes               | It's really good, yes
I have 1,234 coins                    | I have one thousand two hundred and thirty-four coins
1 000 000 people                      | one million people
3.14                                  | three point one four
0.5 and .5                            | zero point five and zero point five
-5 degrees                            | minus five degrees
007                                   | zero zero seven
order number 12345                    | order number one two three four five
12345678901                           | one two three four five six seven eight nine zero one
1e6                                   | one times ten to the power of six
10-20 items, 1939–1945                | ten to twenty items, nineteen thirty-nine to nineteen forty-five
won 3:2                               | won three to two
v1.2.3                                | one point two point three
192.168.1.1                           | one hundred and ninety-two dot one hundred and sixty-eight dot one dot one
in 1995, 2026 and 1900                | in nineteen ninety-five, twenty twenty-six and nineteen hundred
in 2005                               | in two thousand five
the 1990s and '80s, 80s               | the nineteen nineties and eighties, eighty seconds
1st 2nd 23rd 101st                    | first second twenty-third one hundred and first
$5.50                                 | five dollars and fifty cents
$ 5.50                                | five dollars and fifty cents
$5, $1, $0.99, $1.01                  | five dollars, one dollar, ninety-nine cents, one dollar and one cent
$1,234.56                             | one thousand two hundred and thirty-four dollars and fifty-six cents
-$5                                   | minus five dollars
$1.2 billion, £3m, $10k               | one point two billion dollars, three million pounds, ten thousand dollars
$5 million house                      | five million dollars house
20 €, €20, 20€                        | twenty euros, twenty euros, twenty euros
5 USD or 5 EUR                        | five U S dollars or five euros
£1.50                                 | one pound and fifty pence
$5/month                              | five dollars per month
5 p.m. today                          | five P M today
At 5 p.m. Then                        | At five P M. Then
5:30pm, 5:05 a.m.                     | five thirty P M, five oh five A M.
17:05 and 5:00                        | seventeen oh five and five o'clock
12:30:15                              | twelve thirty and fifteen seconds
25:99                                 | twenty-five to ninety-nine
May 5, 2026 was                       | May fifth twenty twenty-six was
5 May 2026                            | the fifth of May twenty twenty-six
the 5 May                             | the fifth of May
Nov. 30th                             | November thirtieth
2026-11-30 and 11/30/2026             | November thirtieth twenty twenty-six and November thirtieth twenty twenty-six
30/11/2026                            | November thirtieth twenty twenty-six
You may 5 times                       | You may five times
(415) 555-2671                        | four one five, five five five, two six seven one
415-555-2671.                         | four one five, five five five, two six seven one.
555-2671                              | five five five, two six seven one
+33 6 12 34 56 78                     | plus three three, six, one two, three four, five six, seven eight
100 km/h, 5km, 5 kg                   | one hundred kilometers per hour, five kilometers, five kilograms
1 km                                  | one kilometer
20°C, 20 °C                           | twenty degrees Celsius, twenty degrees Celsius
20 ° C, -5°F                          | twenty degrees Celsius, minus five degrees Fahrenheit
5 %, 12%                              | five percent, twelve percent
10 m²                                 | ten square meters
I am 5 in May                         | I am five in May
5'10"                                 | five foot ten
½ cup, 1½ cups, 3/4, 1 1/2            | one half cup, one and a half cups, three quarters, one and a half
24/7                                  | twenty-four seven
7/8 and 22/7                          | seven eighths and twenty-two over seven
https://www.example.com/a-b           | example dot com slash a dash b
see example.com.                      | see example dot com.
end.Start                             | end Start
bob.smith42@mail.example.org          | bob dot smith forty-two at mail dot example dot org
AB1234, x86, B2B, COVID-19, mp3       | A B one two three four, X eighty-six, B two B, COVID nineteen, M P three
Dr. Smith vs. St. Louis on Main St.   | Doctor Smith versus Saint Louis on Main Street.
Mr. and Mrs. Jones; Dr Smith          | Mister and Missus Jones; Doctor Smith
e.g. this, i.e., that, etc.           | for example this, that is, that, et cetera.
No. 5 but no. Stop                    | number five but no. Stop
U.S.A. is                             | U S A is
World War II, Louis XIV, Chapter IV   | World War two, Louis the fourteenth, Chapter four
R&D, C++, 50+, user_name              | R and D, C plus plus, fifty plus, user name
he/she and/or                         | he she and or
#5, @anna, ~5                         | number five, at anna, about five
2 + 2 = 4, 3 * 4, 7 - 2               | two plus two equals four, three times four, seven minus two
a < b                                 | a less than b
Tom &amp; Jerry, 5&nbsp;km            | Tom and Jerry, five kilometers
**bold**, _it_, `code`, ~~old~~       | bold, it, code, old
[link](http://x.com) ![img](a.png)    | link img
😀 hi 👨‍👩‍👧 there ✨                     | hi there
the ﬁrst ①, ½                         | the first one, one half
caf\u00e9 cafe\u0301                  | café café
"""

FRENCH = """
Il coûte 5,50 €.                      | Il coûte cinq euros cinquante.
1 000 000 €                           | un million d'euros
1 € et 2€                             | un euro et deux euros
5 M€ et 3 millions €                  | cinq millions d'euros et trois millions d'euros
$5                                    | cinq dollars
3,14 et 1.234.500                     | trois virgule quatorze et un million deux cent trente-quatre mille cinq cents
20 % et 12,5 kg                       | vingt pour cent et douze virgule cinq kilogrammes
25 km/h                               | vingt-cinq kilomètres par heure
17h30, 8 h, 1h, 21 h 01               | dix-sept heures trente, huit heures, une heure, vingt et une heures une
12:05                                 | douze heures cinq
le 5 mai 2026 et le 1er mai           | le cinq mai deux mille vingt-six et le premier mai
30/11/2026                            | trente novembre deux mille vingt-six
06 12 34 56 78                        | zéro six, douze, trente-quatre, cinquante-six, soixante-dix-huit
+33 6 12 34 56 78                     | plus trente-trois, six, douze, trente-quatre, cinquante-six, soixante-dix-huit
M. Dupont, Mme Durand                 | Monsieur Dupont, Madame Durand
n° 5 et n°5                           | numéro cinq et numéro cinq
XXIe siècle, 2e étage, 1re fois       | vingt et unième siècle, deuxième étage, première fois
Louis XIV                             | Louis quatorze
Vraiment ? Oui !                      | Vraiment? Oui!
« Bonjour », dit-il : non             | Bonjour, dit-il, non
½ litre, 3/4                          | un demi litre, trois quarts
contact@exemple.fr                    | contact arobase exemple point fr
l’eau d’été                           | l'eau d'été
en 1995                               | en mille neuf cent quatre-vingt-quinze
"""

OTHERS = """
de | 1.234,5 und info@firma.de        | eintausendzweihundertvierunddreißig Komma fünf und info at firma Punkt de
es | 1.234 y 3,5                      | mil doscientos treinta y cuatro y tres coma cinco
pt | 21 e 100                         | vinte e um e cem
"""


def cases(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


@pytest.mark.parametrize(("written", "said"), cases(ENGLISH))
def test_english(written: str, said: str) -> None:
    assert spoken_text(written) == said


@pytest.mark.parametrize(("written", "said"), cases(FRENCH))
def test_french(written: str, said: str) -> None:
    assert spoken_text(written, ("fr",)) == said


@pytest.mark.parametrize(("language", "written", "said"), cases(OTHERS))
def test_numbers_and_addresses_in_other_languages(language: str, written: str, said: str) -> None:
    assert spoken_text(written, (language,)) == said


def test_markdown_is_not_read_aloud() -> None:
    text = "# Title\n\n- item one\n* item two\n> quote\n\n| a | b |\n|---|---|\n```python\ncode\n```\n---\n1. first"
    assert spoken_text(text) == "Title item one item two quote a b code one. first"


def test_an_llms_reply_with_everything_in_it() -> None:
    text = "Sure! 😊 Here's your **order #42**:\n- 2× coffee — $3.50 each\n- 1 bagel (toasted)\n\nReady at 8:15 a.m. 🥯"
    assert spoken_text(text) == (
        "Sure! Here's your order number forty-two, two times coffee three dollars and fifty cents each "
        "one bagel toasted Ready at eight fifteen A M."
    )
