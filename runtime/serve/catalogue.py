"""Which voices and pronunciations there are, under which names. Owns the made voices and the rules, and their file.

A made voice is a mix of the engine's own ("anna:0.7+ben:0.3"), or a clone, which the engine knows by its uid. Names
that clients bring along without asking (the defaults of LiveKit and pipecat, OpenAI's names) are mapped to ours; any
other unknown name is refused with the list of those there are, unless the operator maps `*`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runtime.errors import NameUnknown, Usage
from runtime.port import Pronunciation
from runtime.serve import openai
from runtime.serve.wire import WireError, get_flag, get_text, required_text
from runtime.whole_file import check_place, whole_file

# Voices that client libraries ask for when their user named none.
CLIENT_DEFAULTS = ("default", "vjFyp2BcCyTlUmYb", "_6Aslh2DxfmnRLmP")
MADE_MAX = 1_000
# A rule of more words than this would hold back too much of a stream's text.
RULE_CHARS_MAX, RULES_MAX = 200, 1_000


@dataclass(frozen=True, slots=True)
class Voice:
    """As the Gradium API shows it; `mix` is ours: how the engine names the sound."""

    uid: str
    name: str
    mix: str
    description: str = ""
    language: str = "en"
    made: bool = False
    filename: str | None = None  # of a clone's clip, as its sender called it

    @property
    def cloned(self) -> bool:
        return self.made and self.mix == self.uid

    def public(self) -> dict[str, object]:
        return {
            "uid": self.uid, "name": self.name, "description": self.description, "language": self.language,
            "filename": self.filename, "start_s": 0.0, "is_catalog": not self.made, "is_pro_clone": False, "tags": [],
            "mix": self.mix,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dictionary:
    uid: str
    name: str
    language: str
    rules: tuple[Pronunciation, ...]

    def public(self) -> dict[str, object]:
        return asdict(self)


class Catalogue:
    def __init__(
        self, engine_voices: Sequence[str], *, default: str = "", aliases: Sequence[str] = (), state: Path | None = None
    ) -> None:
        self._own = {v: Voice(v, v, v) for v in engine_voices}
        self._made: dict[str, Voice] = {}
        self._pronunciations: dict[str, Dictionary] = {}
        self._state = state
        if default and default not in self._own:
            raise NameUnknown("voice", default, self._own)
        self.default = default or (engine_voices[0] if engine_voices else "")
        self._aliases = dict.fromkeys(CLIENT_DEFAULTS, self.default) | dict(openai.aliases(tuple(engine_voices)))
        self._aliases |= self._read_aliases(aliases)
        self._load()

    def resolve(self, name: str) -> tuple[str, ...]:
        """The engine's names for what a client calls a voice; "a,b" are the speakers of a dialogue."""
        if not name:
            return (self.default,) if self.default else ()
        voice = self._find(name)
        if voice is None and "," in name:
            return tuple(v for part in name.split(",") for v in self.resolve(part.strip()))
        if voice is None:
            raise NameUnknown("voice", name, (*self._own, *(v.name for v in self._made.values())))
        return (voice,)

    def rules(self, uid: str | None) -> tuple[Pronunciation, ...]:
        if uid is None:
            return ()
        if uid not in self._pronunciations:
            raise NameUnknown("pronunciation", uid, self._pronunciations)
        # Of two that match, the first is taken: the one that says more.
        return tuple(sorted(self._pronunciations[uid].rules, key=lambda rule: -len(rule.original)))

    def voices(self, *, own: bool = True) -> list[Voice]:
        return [*(self._own.values() if own else ()), *self._made.values()]

    def voice(self, uid: str) -> Voice:
        found = self._made.get(uid) or self._own.get(uid)
        if found is None:
            raise WireError("not_found", f"there is no voice {uid!r}")
        return found

    def make_voice(self, obj: Mapping[str, object]) -> Voice:
        """A new voice as a mix of existing ones. Raises WireError."""
        mix = required_text(obj, "mix")
        for part in mix.split("+"):
            if part.split(":")[0] not in self._own:
                raise WireError("voice_unknown", str(NameUnknown("voice", part.split(":")[0], self._own)))
        return self._add(self.new_uid(), mix, get_text(obj, "name") or mix, obj)

    def new_uid(self) -> str:
        """A name for one more made voice. Raises WireError where there are too many."""
        if len(self._made) >= MADE_MAX:
            raise WireError("too_large", f"there are already {MADE_MAX} made voices")
        return secrets.token_hex(9)

    def add_clone(self, uid: str, obj: Mapping[str, object], clip: bytes) -> Voice:
        """The voice that the engine now knows by its uid; its clip (a WAV) is kept beside the state file."""
        filename = get_text(obj, "filename", "clip")
        path = self.clip(uid)
        try:
            if path:
                with _kept(path):
                    path.write_bytes(clip)
            return self._add(uid, uid, get_text(obj, "name") or filename, obj, filename)
        except WireError:
            _remove(path)
            raise

    def clip(self, uid: str) -> Path | None:
        """Where a clone's clip lies; None where nothing is kept."""
        return self._state and self._state.with_name(f"{self._state.name}.{uid}.wav")

    def _add(self, uid: str, mix: str, name: str, obj: Mapping[str, object], filename: str | None = None) -> Voice:
        voice = Voice(
            uid, name, mix, get_text(obj, "description", chars_max=2_000), get_text(obj, "language", "en"), made=True,
            filename=filename,
        )  # fmt: skip
        self._keep(made=self._made | {voice.uid: voice})
        return voice

    def update_voice(self, uid: str, obj: Mapping[str, object]) -> Voice:
        old = self._changeable(uid)
        voice = replace(
            old, name=get_text(obj, "name") or old.name, language=get_text(obj, "language") or old.language,
            description=get_text(obj, "description", chars_max=2_000) or old.description,
        )  # fmt: skip
        self._keep(made=self._made | {uid: voice})
        return voice

    def delete_voice(self, uid: str) -> None:
        gone = self._changeable(uid)
        self._keep(made={key: voice for key, voice in self._made.items() if key != gone.uid})
        _remove(self.clip(uid))

    def pronunciations(self) -> list[Dictionary]:
        return list(self._pronunciations.values())

    def pronunciation(self, uid: str) -> Dictionary:
        if uid not in self._pronunciations:
            raise WireError("not_found", f"there is no pronunciation {uid!r}")
        return self._pronunciations[uid]

    def put_pronunciation(self, obj: Mapping[str, object], uid: str | None = None) -> Dictionary:
        """Makes one, or replaces the one of that uid."""
        if uid is not None:
            self.pronunciation(uid)
        elif len(self._pronunciations) >= MADE_MAX:
            raise WireError("too_large", f"there are already {MADE_MAX} pronunciations")
        made = Dictionary(
            uid or secrets.token_urlsafe(12), get_text(obj, "name"), get_text(obj, "language", "en"),
            _rules(obj.get("rules")),
        )  # fmt: skip
        self._keep(pronunciations=self._pronunciations | {made.uid: made})
        return made

    def delete_pronunciation(self, uid: str) -> None:
        self.pronunciation(uid)
        self._keep(pronunciations={key: rules for key, rules in self._pronunciations.items() if key != uid})

    def _find(self, name: str) -> str | None:
        if name in self._own:
            return name
        if name in self._made:
            return self._made[name].mix
        by_name = next((v.mix for v in self._made.values() if v.name == name), None)
        if by_name or name in self._aliases:
            return by_name or self._aliases[name]
        parts = name.split("+")
        if len(parts) > 1 and all(p.split(":")[0] in self._own for p in parts):
            return name
        return self._aliases.get("*")

    def _changeable(self, uid: str) -> Voice:
        voice = self.voice(uid)
        if not voice.made:
            raise WireError("invalid", f"{uid} belongs to the model and cannot be changed")
        return voice

    def _read_aliases(self, pairs: Sequence[str]) -> dict[str, str]:
        out = {}
        for pair in pairs:
            name, sep, voice = pair.partition("=")
            if not sep or not name:
                raise Usage(f"voice alias {pair!r} is not name=voice", "see --voice-aliases")
            if voice not in self._own:
                raise NameUnknown("voice", voice, self._own)
            out[name] = voice
        return out

    def _load(self) -> None:
        if self._state is None or not self._state.exists():
            return
        try:
            raw = json.loads(self._state.read_text(encoding="utf-8"))
            self._made = {v["uid"]: Voice(**v) for v in raw["voices"]}
            self._pronunciations = {
                p["uid"]: Dictionary(p["uid"], p["name"], p["language"], tuple(Pronunciation(**r) for r in p["rules"]))
                for p in raw["pronunciations"]
            }
        except (OSError, ValueError, KeyError, TypeError) as why:
            raise Usage(f"{self._state}: is not a state file of ours: {why}", "move it away to start afresh") from None

    def _keep(
        self, made: dict[str, Voice] | None = None, pronunciations: dict[str, Dictionary] | None = None
    ) -> None:
        """What there is from now on, once it is on disk. Raises WireError where that fails, and nothing has changed."""
        made = self._made if made is None else made
        pronunciations = self._pronunciations if pronunciations is None else pronunciations
        if self._state is not None:
            body = {
                "voices": [asdict(v) for v in made.values()],
                "pronunciations": [asdict(p) for p in pronunciations.values()],
            }
            with _kept(self._state), whole_file(str(self._state)) as file:
                file.write(json.dumps(body, ensure_ascii=False, indent=1).encode())
        self._made, self._pronunciations = made, pronunciations


def check_state(path: Path) -> None:
    """Raises Usage where what clients make could not be kept: found at the start, not by the first of them."""
    try:
        check_place(str(path))
    except OSError as why:
        hint = "make its directory, or name another"
        raise Usage(f"--state {path}: cannot be written: {why.strerror}", hint) from None


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as why:
        raise WireError("storage", f"nothing was changed: {path.name} cannot be written: {why.strerror}") from None


def _remove(path: Path | None) -> None:
    """A clip that nothing names any more; one that cannot be removed does no harm."""
    if path:
        with suppress(OSError):
            path.unlink()


def _rules(value: object) -> tuple[Pronunciation, ...]:
    if not isinstance(value, list) or not value or len(value) > RULES_MAX:
        raise WireError("invalid", f"rules must be a list of 1 to {RULES_MAX} rules")
    out = []
    for item in value:
        if not isinstance(item, dict):
            raise WireError("invalid", "a rule is an object with original and rewrite")
        original = get_text(item, "original", chars_max=RULE_CHARS_MAX).strip()
        if not original:
            raise WireError("invalid", "a rule's original must not be empty")
        rewrite = get_text(item, "rewrite", chars_max=RULE_CHARS_MAX)
        out.append(Pronunciation(original, rewrite, get_flag(item, "case_sensitive", False)))
    return tuple(out)
