"""Owns which files of a listing are taken: gitignore rules, and no pattern may match nothing.

`*.safetensors` matches in every folder, `/config.json` only at the top, `voices/` a folder, `!x` takes back. Other
tools' rule, `*` at the top level only, silently skips weights in subfolders; there, a file is missed at load time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pathspec import GitIgnoreSpec

from bdn.errors import Usage
from bdn.ports import Listing, UpstreamFile

_LISTED_MAX = 12  # Enough to see the layout; a hub repository can have thousands of files.


def chosen(listing: Listing, allow: Sequence[str], ignore: Sequence[str]) -> tuple[UpstreamFile, ...]:
    """The files that some allow pattern takes (all, without any) and no ignore pattern drops, in the listing's order.

    Raises Usage when a pattern matches nothing or nothing is left: the line lists what is there.
    """
    paths = [f.path for f in listing.files]
    for flag, patterns in (("--allow", allow), ("--ignore", ignore)):
        for pattern in patterns:
            if not _matches(pattern.removeprefix("!"), paths):
                raise Usage(f"{flag} {pattern!r} matches no file of {listing.source}", hint=_there(paths))
    kept = set(paths) if not allow else _union(allow, paths)
    kept -= _union(ignore, paths)
    if not kept:
        raise Usage(f"no file of {listing.source} is left to take", hint=_there(paths))
    return tuple(f for f in listing.files if f.path in kept)


def takes(path: str, allow: Sequence[str], ignore: Sequence[str]) -> bool:
    """Whether a file of that path would be taken, once it is there."""
    return (not allow or bool(_union(allow, [path]))) and not _union(ignore, [path])


def _union(patterns: Sequence[str], paths: Iterable[str]) -> set[str]:
    spec = GitIgnoreSpec.from_lines(patterns)
    return {p for p in paths if spec.match_file(p)}


def _matches(pattern: str, paths: Iterable[str]) -> bool:
    spec = GitIgnoreSpec.from_lines([pattern])
    return any(spec.match_file(p) for p in paths)


def _there(paths: Sequence[str]) -> str:
    more = f", and {len(paths) - _LISTED_MAX} more" if len(paths) > _LISTED_MAX else ""
    return f"there are {', '.join(sorted(paths)[:_LISTED_MAX])}{more}" if paths else "it is empty"
