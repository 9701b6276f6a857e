"""Owns comparing a directory with its manifest, byte for byte, and making one from another."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bdn.digest import Hasher
from bdn.manifest import File, Manifest

_PIECE_BYTES = 1 << 20


@dataclass
class Findings:
    """What is not as the manifest says. Paths relative to the directory."""

    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.missing or self.changed or self.extra)

    def summary(self) -> str:
        parts = [f"{len(paths)} {word} ({', '.join(paths[:3])}{', …' if len(paths) > 3 else ''})"
                 for word, paths in (("missing", self.missing), ("changed", self.changed), ("extra", self.extra))
                 if paths]  # fmt: skip
        return "; ".join(parts) or "every byte is as the manifest says"


def inspect(manifest: Manifest, root: Path, progress: Callable[[int, int], None] = lambda d, t: None) -> Findings:
    """Read the whole directory and compare. Costs one read at disk speed and a hash; nothing is written."""
    found, done = Findings(), 0
    for file in manifest.files:
        path = root / file.path
        try:
            info = path.lstat()
            same = stat.S_ISREG(info.st_mode) and info.st_size == file.size and _hash(path) == file.digest.raw
            if not same:
                found.changed.append(file.path)
        except OSError as why:
            if why.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            found.missing.append(file.path)
        done += file.size
        progress(done, manifest.total_bytes)
    for link in manifest.symlinks:
        path = root / link.path
        if not path.is_symlink():
            (found.changed if path.exists() else found.missing).append(link.path)
        elif os.readlink(path) != link.target:
            found.changed.append(link.path)
    known = {f.path for f in manifest.files} | {s.path for s in manifest.symlinks}
    found.extra = sorted(p for p in _paths(root) if p not in known)
    return found


def _hash(path: Path) -> bytes:
    hasher, buffer = Hasher(), memoryview(bytearray(_PIECE_BYTES))
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            hasher.update(buffer[:got])
    return hasher.digest().raw


def _paths(root: Path) -> Iterator[str]:
    for directory, folders, files in os.walk(root):
        links = [d for d in folders if os.path.islink(os.path.join(directory, d))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(directory, name), root)


def lay_out(manifest: Manifest, source: Path, target: Path) -> None:
    """A copy of a verified directory that shares no writable byte with it; it appears whole or not at all.

    A reflink where the file system has them, else a copy inside the kernel. Never a hard link: whoever edits the copy
    would change the store's verified bytes behind its back.
    """
    _sweep(target)
    # Drawn as well: two containers that share a disk have the same process ids.
    building = target.parent / f".{target.name}.bdn-{os.getpid()}-{secrets.token_hex(4)}"
    building.mkdir(parents=True)
    lock = os.open(building, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Goes with this process, however it ends: see `_sweep`.
        for file in manifest.files:
            _copy(file, source, building)
        for link in manifest.symlinks:
            path = building / link.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(link.target)
        if target.is_dir():
            target.rmdir()  # Only an empty one goes.
        os.rename(building, target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _sweep(target: Path) -> None:
    """Remove what killed copies to the same place have left: half a copy that no living process holds."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.bdn-[0-9]*"):
        lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            pass  # Another pull to the same place is at work; who renames last has the place.
        finally:
            os.close(lock)


def _copy(file: File, source: Path, building: Path) -> None:
    path = building / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(source / file.path, "rb") as old, open(path, "xb") as new:
        at = 0
        while at < file.size:
            count = os.copy_file_range(old.fileno(), new.fileno(), min(file.size - at, 1 << 30))
            if count == 0:
                raise OSError(errno.EIO, "the file became shorter", str(source / file.path))
            at += count
    path.chmod(file.mode)
