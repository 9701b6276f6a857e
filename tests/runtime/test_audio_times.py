"""Word times as JSON and as SRT."""

from __future__ import annotations

import json

from runtime.audio_times import WordTime, cues, times_json, times_srt


def words(text: str, start_s: float = 0.0, each_s: float = 0.3) -> list[WordTime]:
    return [
        WordTime(w, start_s + i * each_s, start_s + (i + 1) * each_s - 0.02) for i, w in enumerate(text.split())
    ]


def test_json_keeps_every_word_to_the_millisecond() -> None:
    rows = json.loads(times_json([WordTime("Où", 0.12345, 0.4), WordTime("ça", 0.4, 0.9)]))["words"]
    assert rows == [{"text": "Où", "start_s": 0.123, "stop_s": 0.4}, {"text": "ça", "start_s": 0.4, "stop_s": 0.9}]


def test_srt_is_numbered_stamped_and_grouped() -> None:
    assert times_srt([WordTime("Hello", 0.0, 0.4), WordTime("there.", 0.45, 3661.5)]).startswith(
        "1\n00:00:00,000 --> 00:00:00,400\nHello\n\n2\n00:00:00,450 --> 01:01:01,500\nthere.\n\n"
    )


def test_cues_end_at_sentences_pauses_and_line_length() -> None:
    said = words("One two. Three four") + words("after a pause", start_s=9.0)
    assert [" ".join(w.text for w in cue) for cue in cues(said)] == ["One two.", "Three four", "after a pause"]
    long = cues(words("word " * 40, each_s=0.1))
    assert all(len(" ".join(w.text for w in cue)) <= 42 for cue in long)
    assert sum(len(cue) for cue in long) == 40


def test_no_words_are_an_empty_file() -> None:
    assert times_srt([]) == ""
    assert json.loads(times_json([])) == {"words": []}


def test_a_written_word_read_out_as_several_spans_them_all() -> None:
    said = [WordTime("$5.50", 0.0, 0.3), WordTime("", 0.3, 0.6), WordTime("", 0.6, 0.9), WordTime("now", 0.9, 1.2)]
    assert json.loads(times_json(said))["words"] == [
        {"text": "$5.50", "start_s": 0.0, "stop_s": 0.9},
        {"text": "now", "start_s": 0.9, "stop_s": 1.2},
    ]
    assert times_srt(said) == "1\n00:00:00,000 --> 00:00:01,200\n$5.50 now\n\n"
