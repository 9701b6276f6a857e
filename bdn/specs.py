"""Owns what to mirror, as a person writes it: one source on the command line, or a YAML list of models."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from bdn.errors import Usage
from bdn.reference import DEFAULT_TAG, check_name, check_tag, likely_name

FORMS = "hf://org/repo[@revision], s3://bucket/prefix, https://host/file-or-list, or a directory"
_KEYS = ("source", "name", "tag", "revision", "allow", "ignore")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model to mirror. `name` and `tag` are checked; `source` is for `open_upstream` to judge."""

    source: str
    name: str
    tag: str = DEFAULT_TAG
    revision: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


def make_spec(
    source: str, *, name: str = "", tag: str = "", revision: str = "", allow: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
) -> ModelSpec:  # fmt: skip
    """Raises Usage for a name or tag that cannot be one, and for a source that says nothing but what kind it is."""
    if source.partition("://")[1:] == ("://", ""):
        raise Usage(f"{source!r} says only what kind of source it is", hint=f"expected {FORMS}")
    return ModelSpec(
        source, check_name(name) if name else default_name(source), check_tag(tag or DEFAULT_TAG), revision, allow,
        ignore,
    )  # fmt: skip


def default_name(source: str) -> str:
    """`org/repo` of a hub source, the last part of anything else, in lower case. Raises Usage where that is no name."""
    scheme, slashes, rest = source.partition("://")
    if scheme == "hf" and slashes:
        name = rest.partition("@")[0].lower()
    elif slashes:
        name = rest.rstrip("/").rpartition("/")[2].lower()
    else:
        name = Path(source).expanduser().absolute().name.lower()
    try:
        return check_name(name)
    except Usage:
        hint = f"give it one, such as --name {likely_name(name) or 'voice'}"
        raise Usage(f"{source[:200]!r} makes no model name", hint=hint) from None


def read_specs(path: Path) -> tuple[ModelSpec, ...]:
    """The models of a spec file. Directories are relative to it. Raises Usage, naming the entry that is off."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise Usage(f"cannot read {path}: {why.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        raise Usage(f"{path} is not YAML: {(str(why).splitlines() or ['?'])[0]}") from None
    models = value.get("models") if isinstance(value, dict) and set(value) == {"models"} else None
    if not isinstance(models, list) or not models:
        raise Usage(f"{path} has no list `models`", hint="see manifests/README.md, Model specs")
    return tuple(_entry(entry, f"{path}, model {i}", path.parent) for i, entry in enumerate(models, 1))


def _entry(entry: object, where: str, base: Path) -> ModelSpec:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("source"), str):
        raise Usage(f"{where} names no source")
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            raise Usage(f"{where}: unknown key {key!r}", hint=f"did you mean {near[0]}?" if near else ", ".join(_KEYS))
    source = str(entry["source"])
    if "://" not in source:
        source = str(base / Path(source).expanduser())
    for key in ("name", "tag", "revision"):
        if entry.get(key) == "":  # An empty variable of a template must not move `latest`, or read another branch.
            raise Usage(f"{where}: {key} is empty", hint="give it a value, or leave the key out")
    return make_spec(
        source, name=_text(entry, "name", where), tag=_text(entry, "tag", where),
        revision=_text(entry, "revision", where), allow=_list(entry, "allow", where),
        ignore=_list(entry, "ignore", where),
    )  # fmt: skip


def _text(entry: Mapping[str, object], key: str, where: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise Usage(f"{where}: {key} is not text", hint="put it in quotes")
    return value


def _list(entry: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise Usage(f"{where}: {key} is not a list of patterns")
    return tuple(value)
