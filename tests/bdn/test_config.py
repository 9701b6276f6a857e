"""Settings: a flag beats the environment, which beats the file, which beats the default; nothing unknown passes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bdn import config
from bdn.config import AgentSettings, ClientSettings, MirrorSettings
from bdn.errors import Invalid, Usage


def flags(*argv: str, group: type = AgentSettings) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, group)
    return parser.parse_args(argv)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default() -> None:
    env, file = {"BDN_PORT": "2"}, {"port": 3}
    assert config.load(AgentSettings, flags("--port", "1"), env, file).port == 1
    assert config.load(AgentSettings, flags(), env, file).port == 2
    assert config.load(AgentSettings, flags(), {}, file).port == 3
    assert config.load(AgentSettings, flags(), {}, {}).port == 7411


def test_an_empty_variable_counts_as_unset() -> None:
    assert config.load(AgentSettings, flags(), {"BDN_PORT": ""}, {}).port == 7411


@pytest.mark.parametrize("text", ["70000", "-1", "x", "1.5", "", "nan"])
def test_a_bad_port_is_refused_naming_the_flag(text: str) -> None:
    with pytest.raises(Usage, match="--port"):
        config.load(AgentSettings, flags("--port", text), {}, {})


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0"])
def test_a_number_that_compares_with_nothing_is_out_of_bounds(text: str) -> None:
    with pytest.raises(Usage, match="out of bounds"):
        config.load(AgentSettings, flags("--stall-s", text), {}, {})


def test_sizes_are_written_with_units_or_as_bytes() -> None:
    for text in ("64MiB", "67108864"):
        given = flags("--mirror-window-bytes", text, group=MirrorSettings)
        assert config.load(MirrorSettings, given, {}, {}).mirror_window_bytes == 64 << 20
    given = flags("--upload-bytes-per-s", "100MB")
    assert config.load(AgentSettings, given, {}, {}).upload_bytes_per_s == 100e6, "rates are sizes a second"


def test_help_and_errors_write_sizes_as_a_person_would() -> None:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, MirrorSettings)
    assert "default: 192MiB" in " ".join(parser.format_help().split())
    with pytest.raises(Usage) as why:
        config.load(MirrorSettings, flags("--mirror-window-bytes", "1MiB", group=MirrorSettings), {}, {})
    assert "32MiB to 64GiB" in str(why.value.hint)


def test_lists_are_comma_separated_in_text_and_lists_in_the_file() -> None:
    want = ("a=h:1", "b=h:2")
    assert config.load(AgentSettings, flags("--peers", "a=h:1, b=h:2"), {}, {}).peers == want
    assert config.load(AgentSettings, flags(), {}, {"peers": ["a=h:1", "b=h:2"]}).peers == want


def test_an_unknown_variable_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(Usage, match="BDN_STALL_S"):
        config.check_environment({"BDN_STAL_S": "3"})
    config.check_environment({"BDN_MODEL_DIR": "/x", "BDN_PORT": "1", "HOME": "/root"})


def test_an_unknown_line_of_the_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bdn.yaml"
    path.write_text("prot: 3\n")
    with pytest.raises(Usage, match=r"unknown setting 'prot'.*did you mean port"):
        config.read_file(argparse.Namespace(config=str(path)), {})


@pytest.mark.parametrize("body", ["[1, 2]", "a: [", "\x00"])
def test_a_file_that_is_not_settings_is_one_line(tmp_path: Path, body: str) -> None:
    path = tmp_path / "bdn.yaml"
    path.write_text(body)
    with pytest.raises(Usage) as why:
        config.read_file(argparse.Namespace(config=str(path)), {})
    assert "\n" not in str(why.value) and str(path) in str(why.value)


def test_a_missing_file_is_an_error_and_no_file_is_none(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="No such file"):
        config.read_file(argparse.Namespace(config=str(tmp_path / "no.yaml")), {})
    assert config.read_file(argparse.Namespace(config=None), {}) == {}


def test_the_agent_and_its_clients_find_the_same_socket() -> None:
    one = config.load(ClientSettings, flags(group=ClientSettings), {"BDN_STORE": "/nvme/bdn"}, {})
    assert one.socket_path == Path("/nvme/bdn/agent.sock")
    with pytest.raises(Invalid, match="107"):
        config.check_socket(Path("/" + "x" * 120))


def test_a_secret_is_no_flag_and_the_hub_library_s_variable_works() -> None:
    assert not hasattr(flags(group=MirrorSettings), "hf_token")
    assert config.load(MirrorSettings, flags(group=MirrorSettings), {"HF_TOKEN": "hf_x"}, {}).hf_token == "hf_x"


def test_every_setting_has_words_and_every_number_bounds() -> None:
    for s in config.all_settings():
        assert s.about
        if s.kind in (int, float):
            assert s.unit and s.low is not None and s.high is not None, s.name
    names = [s.name for s in config.all_settings()]
    assert len(names) == len(set(names))
