"""Owns a pull without an agent: one process, one model, from the origin straight into a directory.

For machines that keep no store: a build job, a laptop. The same delivery as in an agent, with a roster of one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from bdn.clock import LoopClock
from bdn.delivery import Delivered, Delivery, Progress
from bdn.errors import Invalid
from bdn.http.client import PeerClient
from bdn.inspection import inspect
from bdn.manifest import Manifest
from bdn.membership.static import static_members
from bdn.nvme import NvmeStore
from bdn.policy import Limits, OriginUse
from bdn.ports import Origin
from bdn.resolver import Resolver
from bdn.window import Window

_ME = "direct"


async def pull_into(
    manifest: Manifest, origin: Origin, target: Path, *, limits: Limits, progress: Callable[[Progress], None]
) -> Delivered:
    """The directory appears whole. What a killed pull had verified lies beside it, and the next one goes on from there.

    Raises the delivery's errors, and Invalid when the target's parent cannot be written.
    """
    clock, staging = LoopClock(), staging_of(target)
    store, peers = NvmeStore(staging), PeerClient()
    try:
        resolver = Resolver(_ME, store, peers, origin, static_members([f"{_ME}=localhost:1"]), clock, limits=limits)
        window = Window(slots=limits.in_flight_chunks, bytes_max=limits.in_flight_bytes)
        done = await Delivery(manifest, resolver, window, clock, use=OriginUse.REQUIRE, progress=progress).run()
        _place(Path(done.path), target)
    finally:
        await peers.close()
        begun = list(store.models())
        store.close()
        if not begun:
            shutil.rmtree(staging, ignore_errors=True)  # Nothing came, such as for want of space: nothing is kept.
    shutil.rmtree(staging, ignore_errors=True)
    return done


def staging_of(target: Path) -> Path:
    """What lies beside the target while it is filled, and stays there when a pull is cut off."""
    return target.parent / f".{target.name}.bdn-pull"


def _place(source: Path, target: Path) -> None:
    if target.is_dir():
        target.rmdir()  # The caller has seen that it is empty.
    os.rename(source, target)


def check_place(target: Path) -> bool:
    """Whether something lies there already. Raises Invalid where no directory can be made: before a byte moves."""
    if target.exists() or target.is_symlink():
        if not target.is_dir():
            raise Invalid(f"{target} is not a directory", hint="name a directory, or one that is not there yet")
    elif not target.parent.is_dir():
        raise Invalid(f"there is no directory {target.parent}", hint="make it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise Invalid(f"{target.parent} may not be written", hint="name a place where this user may make a directory")
    return target.is_dir() and any(target.iterdir())


def check_target(target: Path, manifest: Manifest) -> bool:
    """Whether the target already is this model, byte for byte. Raises Invalid when it is anything else but empty."""
    if not check_place(target):
        return False
    findings = inspect(manifest, target)
    if findings.clean:
        return True
    raise Invalid(f"{target} holds something else: {findings.summary()}", hint="remove it or name another directory")
