"""Word times as files: JSON for programs, SRT for players. It owns the two layouts, not the times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from runtime.port import WordTime as WordTime

# A cue ends when it would grow past a line people read at a glance, or the voice pauses.
CUE_CHARS = 42
CUE_S = 5.0
PAUSE_S = 0.7


def merged(words: Iterable[WordTime]) -> list[WordTime]:
    """The words as they were written: one read out as several ("$5.50") spans them all, its text on the first."""
    whole: list[WordTime] = []
    for word in words:
        if word.text or not whole:
            whole.append(word)
        else:
            whole[-1] = replace(whole[-1], stop_s=max(whole[-1].stop_s, word.stop_s))
    return whole


def times_json(words: Iterable[WordTime]) -> str:
    """One object, `{"words": [{"text", "start_s", "stop_s"}, ...]}`; times to the millisecond."""
    rows = [asdict(w) | {"start_s": round(w.start_s, 3), "stop_s": round(w.stop_s, 3)} for w in merged(words)]
    return json.dumps({"words": rows}, ensure_ascii=False, indent=1) + "\n"


def times_srt(words: Iterable[WordTime]) -> str:
    """SubRip cues of a few words each."""
    return "".join(
        f"{number}\n{_stamp(cue[0].start_s)} --> {_stamp(max(w.stop_s for w in cue))}\n"
        f"{' '.join(w.text for w in cue)}\n\n"
        for number, cue in enumerate(cues(words), start=1)
    )


def cues(words: Iterable[WordTime]) -> list[list[WordTime]]:
    """The words in groups short enough to read; a new group after a pause or the end of a sentence."""
    groups: list[list[WordTime]] = []
    for word in merged(words):
        if groups and _fits(groups[-1], word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _fits(cue: Sequence[WordTime], word: WordTime) -> bool:
    length = sum(len(w.text) + 1 for w in cue) + len(word.text)
    return (
        length <= CUE_CHARS
        and word.stop_s - cue[0].start_s <= CUE_S
        and word.start_s - cue[-1].stop_s < PAUSE_S
        and not cue[-1].text.rstrip("\"'”’)»").endswith((".", "!", "?", "…"))
    )


def _stamp(seconds: float) -> str:
    ms = max(0, round(seconds * 1000))
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02},{ms % 1000:03}"
