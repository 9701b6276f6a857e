"""Owns this node's pulls: one a model, whoever asks and however often, with its progress and its own account.

A pull belongs to the agent, not to who asked: a client that goes away cancels nothing, and asking again joins it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum

from bdn.delivery import Delivery, Progress
from bdn.digest import Digest
from bdn.errors import BdnError, Down, Invalid, Missing
from bdn.ledger import Ledger
from bdn.manifest import Manifest
from bdn.manifest_search import ManifestSearch
from bdn.nvme import NvmeStore
from bdn.origin_reads import patiently
from bdn.policy import OriginUse
from bdn.ports import Clock, Origin, Tier
from bdn.reference import Reference
from bdn.resolver import Resolver
from bdn.shortage import shortage
from bdn.sinks import disk_error
from bdn.window import Window

REMEMBERED_MAX = 256  # Ended pulls kept for `bdn status`; the oldest are forgotten first.


class State(StrEnum):
    QUEUED = "queued"
    PULLING = "pulling"
    READY = "ready"
    FAILED = "failed"


@dataclass
class Pull:
    """One model's way onto this node. `path` is its directory once it is ready."""

    manifest: Digest
    name: str
    state: State = State.QUEUED
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0, 0))
    ledger: Ledger = field(default_factory=Ledger)
    seconds: float = 0.0
    path: str | None = None
    error: BdnError | None = None
    use: OriginUse = OriginUse.PREFER
    """May it read the origin? `ledger.origin_reasons` says why it did."""
    manifest_from: Tier = Tier.NVME
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        return self.state in (State.READY, State.FAILED)

    def touch(self) -> None:
        """Wake everyone who follows."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, every_s: float) -> AsyncIterator[None]:
        """Yields now, then after changes (at most once in `every_s`) and every second without one, until the end.

        The word that nothing has changed is what lets a client tell a slow pull from a dead agent.
        """
        while not self.ended:
            yield
            changed = self._changed
            await asyncio.sleep(every_s)
            if not changed.is_set() and not self.ended:
                try:
                    async with asyncio.timeout(1.0):
                        await changed.wait()
                except TimeoutError:
                    continue
        yield


class Pulls:
    """See the module. `observe` hears of each pull that ended."""

    def __init__(
        self,
        resolver: Resolver,
        store: NvmeStore,
        origin: Origin | None,
        search: ManifestSearch,
        window: Window,
        clock: Clock,
        *,
        at_once: int,
        observe: Callable[[Pull], None] = lambda _: None,
    ) -> None:
        self._resolver, self._store, self._origin, self._search = resolver, store, origin, search
        self._window, self._clock, self._observe = window, clock, observe
        self._slots = asyncio.Semaphore(at_once)
        self._pulls: dict[Digest, Pull] = {}
        self._tasks: dict[Digest, asyncio.Task[None]] = {}
        self.outcomes: Counter[State] = Counter()

    @property
    def all(self) -> tuple[Pull, ...]:
        return tuple(self._pulls.values())

    async def ask(self, reference: Reference, *, priority: int = 0, use: OriginUse = OriginUse.PREFER) -> Pull:
        """The pull of the model that the reference names now: a running one is joined, else one is begun.

        Raises what resolving the reference raises: Missing, SourceDown (after the origin's patience), Corrupt, Invalid.
        A tag is the origin's to know; a digest's manifest comes from any node that has it.
        """
        digest = reference.digest or await self.digest_of(reference)
        if digest in self._tasks:
            return await self._join(digest, reference)
        found = await self._search.find(digest, use)
        manifest = found.manifest
        if digest in self._tasks:  # Someone else asked while the manifest was read.
            return await self._join(digest, reference)
        pull = Pull(digest, str(reference), use=use, manifest_from=found.tier)
        pull.progress = Progress(0, manifest.unique_bytes, 0, len(manifest.chunks))
        self._pulls.pop(digest, None)
        self._pulls[digest] = pull
        self._forget_oldest()
        task = asyncio.create_task(self._run(pull, manifest, reference, priority, use))
        self._tasks[digest] = task
        task.add_done_callback(lambda _: self._tasks.pop(digest, None))
        return pull

    async def digest_of(self, reference: Reference) -> Digest:
        """What the tag points to now. Never guessed from an earlier answer: a silent old model is worse than a wait."""
        if self._origin is None:
            raise Invalid(f"cannot look up {reference}: this agent has no origin", hint="name it with its @b3: digest")
        try:
            origin = self._origin
            tag = lambda: origin.read_tag(reference.name, reference.tag)  # noqa: E731
            return await patiently(tag, self._resolver.limits, self._clock)
        except Missing:
            what = f"there is no model {reference.name}:{reference.tag} at the origin"
            raise Missing(what, hint="`bdn ls` lists those there are") from None
        except Down as why:
            why.hint = why.hint or self._without_origin(reference)
            raise

    def _without_origin(self, reference: Reference) -> str:
        """How to pull while a tag cannot be looked up. What it was the last time is said, and never taken for it."""
        last = next((d for d in self._store.models() if str(reference) in self._store.names(d)), None)
        if last is None:
            return "the digest needs no origin, NAME@b3:…; `bdn status` on a node that has the model shows it"
        return f"the digest needs no origin; what was pulled here as {reference} is {reference.name}@{last}"

    async def _join(self, digest: Digest, reference: Reference) -> Pull:
        """Who joins may call the model otherwise than who began."""
        pull = self._pulls[digest]
        if digest in self._store.models():
            await self._note(digest, reference)
        return pull

    async def _note(self, digest: Digest, reference: Reference) -> None:
        if reference.name:
            await self._store.note_name(digest, str(reference))

    async def _run(self, pull: Pull, manifest: Manifest, reference: Reference, priority: int, use: OriginUse) -> None:
        started = self._clock.now()
        try:
            async with self._slots:
                pull.state = State.PULLING
                # Named before it is filled: what a crash leaves half pulled has a name as well.
                await self._store.admit(manifest)
                await self._note(manifest.digest, reference)

                def progressed(progress: Progress) -> None:
                    pull.progress = progress
                    pull.touch()

                delivery = Delivery(
                    manifest, self._resolver, self._window, self._clock, priority=priority, use=use,
                    progress=progressed, ledger=pull.ledger,
                )  # fmt: skip
                done = await delivery.run()
            pull.path, pull.state = done.path, State.READY
        except BdnError as why:
            pull.error, pull.state = why, State.FAILED
        except asyncio.CancelledError:
            pull.state = State.FAILED
            pull.error = Down("the agent is stopping", hint="the pull goes on when it runs again")
            raise
        except Exception as why:
            pull.error, pull.state = self._failure(why), State.FAILED
            if pull.error is None:  # A defect must reach who waits; a pull that never ends is worse.
                pull.error = Invalid(f"internal error: {type(why).__name__}: {why}")
                raise
        finally:
            pull.seconds = self._clock.now() - started
            self.outcomes[pull.state] += 1
            self._observe(pull)
            pull.touch()

    def _failure(self, why: Exception) -> BdnError | None:
        """What this machine refused, which is no defect."""
        if (short := shortage(why, "a smaller --in-flight-bytes of the agent needs less")) is not None:
            return short
        # The store's own directory: the file that failed may be in one that is not there any more.
        return disk_error(why, str(self._store.root), 0) if isinstance(why, OSError) else None

    def _forget_oldest(self) -> None:
        ended = [d for d, p in self._pulls.items() if p.ended]
        for digest in ended[: max(0, len(self._pulls) - REMEMBERED_MAX)]:
            del self._pulls[digest]

    async def stop(self) -> None:
        """Cancel what runs. Verified chunks stay; the next pull of the model goes on from there."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
