"""Names and pronunciations: the same is spoken however text is cut; unknown names are told which voices there are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.errors import NameUnknown, Usage
from runtime.serve.catalogue import CLIENT_DEFAULTS, Catalogue, check_state
from runtime.serve.openai import VOICES
from runtime.serve.wire import WireError


def names(**more: object) -> Catalogue:
    return Catalogue(("anna", "ben"), **more)  # type: ignore[arg-type]


def test_names_that_clients_bring_along_find_a_voice() -> None:
    it = names(default="ben", aliases=("support=anna",))
    assert it.resolve("") == ("ben",) and it.resolve("support") == ("anna",)
    assert {it.resolve(n) for n in CLIENT_DEFAULTS} == {("ben",)}
    assert {it.resolve(n)[0] for n in VOICES} == {"anna", "ben"}
    assert it.resolve("anna:0.7+ben:0.3") == ("anna:0.7+ben:0.3",)
    assert it.resolve("anna,ben") == ("anna", "ben")


def test_an_unknown_name_is_refused_with_the_list_unless_a_star_is_mapped() -> None:
    with pytest.raises(NameUnknown, match="anna, ben"):
        names().resolve("v")
    assert names(aliases=("*=anna",)).resolve("v") == ("anna",)


@pytest.mark.parametrize("alias", ["x", "=anna", "x=nobody"])
def test_an_alias_that_cannot_be_meant_is_refused_at_start(alias: str) -> None:
    with pytest.raises((Usage, NameUnknown)):
        names(aliases=(alias,))


def test_made_voices_and_rules_survive_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    it = names(state=state)
    voice = it.make_voice({"name": "duo", "mix": "anna:0.5+ben:0.5"})
    rules = it.put_pronunciation({"name": "p", "rules": [{"original": "SQL", "rewrite": "sequel"}]})
    again = names(state=state)
    assert again.resolve("duo") == again.resolve(voice.uid) == ("anna:0.5+ben:0.5",)
    assert again.rules(rules.uid) == rules.rules
    again.delete_voice(voice.uid)
    with pytest.raises(NameUnknown):
        names(state=state).resolve("duo")


def test_a_state_file_that_is_not_ours_stops_the_start_with_one_line(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text("{}")
    with pytest.raises(Usage, match=r"state\.json"):
        names(state=state)


def test_a_state_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for state in (tmp_path / "none" / "x", tmp_path / "file" / "x", tmp_path):
        with pytest.raises(Usage, match="cannot be written"):
            check_state(state)
    check_state(tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "looking leaves nothing behind"


def test_what_cannot_be_kept_is_refused_in_words_and_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    it = names(state=place / "state.json")
    voice = it.make_voice({"name": "duo", "mix": "anna:0.5+ben:0.5"})
    rules = it.put_pronunciation({"name": "p", "rules": [{"original": "SQL", "rewrite": "sequel"}]})
    shutil.rmtree(place)
    clip: dict[str, object] = {"filename": "a.wav"}
    for change in (
        lambda: it.make_voice({"mix": "anna:0.1+ben:0.9"}), lambda: it.add_clone("u", clip, b"RIFF"),
        lambda: it.update_voice(voice.uid, {"name": "trio"}), lambda: it.delete_voice(voice.uid),
        lambda: it.put_pronunciation({"rules": [{"original": "x"}]}), lambda: it.delete_pronunciation(rules.uid),
    ):  # fmt: skip
        with pytest.raises(WireError, match="nothing was changed") as why:
            change()
        assert why.value.code == "storage"
    assert it.voices(own=False) == [voice] and it.pronunciations() == [rules]


def test_the_models_own_voices_cannot_be_changed() -> None:
    with pytest.raises(WireError, match="cannot be changed"):
        names().delete_voice("anna")


@pytest.mark.parametrize("rules", [None, [], [1], [{"original": " ", "rewrite": "x"}], [{"original": "x" * 300}]])
def test_rules_that_cannot_be_meant_are_refused(rules: object) -> None:
    with pytest.raises(WireError):
        names().put_pronunciation({"rules": rules})
