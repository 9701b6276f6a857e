"""How a step is run: eagerly, compiled, or captured and replayed. One interface; the step itself is model/frame.py.

All runners work on the same static buffers and give the same codes from the same noise. Buckets are views of the lanes'
memory, so switching between them costs nothing. A captured step keeps three rules, which `Rehearsal` enforces where
there is no GPU: every tensor it reads or writes from outside lies where it lay at capture, it does the same work each
time, and it never waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.errors import SpeechError
from runtime.lanes import LaneTensors
from runtime.model.frame import FrameStep
from runtime.model.rows import Rows

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WARMUP_RUNS = 2  # before a capture: lazy initialisation and workspace allocation happen outside the graph
RECOMPILES_MAX = 2 * len(BUCKETS) * 2  # a bucket has a lead and a whole step; each may be traced again once


class StepRunner(Protocol):
    """Runs steps over the first lanes of one set of buffers."""

    @property
    def state(self) -> LaneTensors: ...

    def prepare(self) -> None:
        """Compiles and captures all there is to; afterwards no step is slower than its like. Advances no lane."""

    def run(self, lanes: Sequence[int], *, lead: bool, greedy: bool) -> None:
        """One step for these lanes, whose advance flags are set and no others."""


MakeRunner = Callable[[FrameStep, LaneTensors], StepRunner]


class _Bucketed:
    """The buckets of one set of buffers, as views made once."""

    def __init__(self, step: FrameStep, state: LaneTensors) -> None:
        self._step, self._state = step, state
        sizes = [b for b in BUCKETS if b < state.lanes] + [state.lanes]
        self._views = {size: state.span(0, size) for size in sizes}

    @property
    def state(self) -> LaneTensors:
        return self._state

    def bucket(self, lanes: Sequence[int]) -> int:
        """How many lanes a step over these lanes computes."""
        return next(size for size in self._views if size > max(lanes))

    def idle(self) -> None:
        """No lane advances: a step made now changes nothing that a later one reads."""
        self._state.ints[:, 0] = 0


class EagerStep:
    """Operation by operation; the reference for the other runners, and the quickest to start.

    It computes the lanes asked for and no others, wherever they lie: one by itself in place, as a first sound is made,
    and more of them gathered, all but their large memories. For each number of lanes what they are gathered in is kept,
    and with it the calls that a step makes there.
    """

    def __init__(self, step: FrameStep, state: LaneTensors) -> None:
        self._step, self._state = step, state
        self._alone: dict[int, LaneTensors] = {}
        self._rooms: dict[int, LaneTensors] = {}

    @property
    def state(self) -> LaneTensors:
        return self._state

    def prepare(self) -> None:
        """Makes ready what first steps would: beside callers, that made some of them run dry."""
        lanes, device = self._state.lanes, self._state.offset.device
        with torch.inference_mode():
            for count in range(lanes, 1, -1):  # the largest first: the smaller ones share its memory
                every = Rows.of(range(count), device)
                self._step.make_ready(self._room_for(count).gathered(every, self._state, lead=False))
            for lane in range(lanes):
                self._step.make_ready(self._alone_at(lane))

    def run(self, lanes: Sequence[int], *, lead: bool, greedy: bool) -> None:
        with torch.inference_mode():
            if len(lanes) == 1:
                self._step.run(self._alone_at(lanes[0]), lead=lead, greedy=greedy)
                return
            rows = Rows.of(sorted(lanes), self._state.offset.device)
            gathered = self._room_for(len(lanes)).gathered(rows, self._state, lead=lead)
            self._step.run(gathered, lead=lead, greedy=greedy)
            self._state.put(rows.index, gathered, lead=lead)

    def _room_for(self, lanes: int) -> LaneTensors:
        """Memory to gather so many lanes in: views of one that holds them all."""
        most = self._state.lanes
        if most not in self._rooms:
            self._rooms[most] = self._state.room(most)
        if lanes not in self._rooms:
            self._rooms[lanes] = self._rooms[most].span(0, lanes)
        return self._rooms[lanes]

    def _alone_at(self, lane: int) -> LaneTensors:
        if lane not in self._alone:
            self._alone[lane] = self._state.span(lane, lane + 1)
        return self._alone[lane]


class CompiledStep(_Bucketed):
    """Each bucket's lead and whole step as one compiled graph; nothing is traced again after `prepare`.

    Compiling takes minutes for a deep model: the depth loop is unrolled. `greedy` makes no difference here: a second
    pair of graphs would double that time to save the drawing of codes.
    """

    def __init__(self, step: FrameStep, state: LaneTensors) -> None:
        super().__init__(step, state)
        self._lead = torch.compile(lambda view: step.run(view, lead=True), fullgraph=True, dynamic=False)
        self._whole = torch.compile(lambda view: step.run(view, lead=False), fullgraph=True, dynamic=False)

    def prepare(self) -> None:
        self.idle()
        with torch.inference_mode(), torch._dynamo.config.patch(recompile_limit=RECOMPILES_MAX):
            for view in self._views.values():
                self._lead(view)
                self._whole(view)

    def run(self, lanes: Sequence[int], *, lead: bool, greedy: bool) -> None:
        with torch.inference_mode():
            (self._lead if lead else self._whole)(self._views[self.bucket(lanes)])


class Recorder(Protocol):
    """Turns a function of static buffers into something that repeats its work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]: ...


class CudaRecorder:
    """CUDA graphs that share one memory pool."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise SpeechError("captured steps need a CUDA device; use --step eager or compiled")
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARMUP_RUNS):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        return graph.replay


class CapturedStep(_Bucketed):
    """Two graphs a bucket, lead and whole, captured by `prepare`, smallest bucket first."""

    def __init__(self, step: FrameStep, state: LaneTensors, recorder: Recorder | None = None) -> None:
        super().__init__(step, state)
        self._recorder = CudaRecorder() if recorder is None else recorder
        self._graphs: dict[tuple[int, bool], Callable[[], None]] = {}

    def prepare(self) -> None:
        self.idle()
        for size, view in self._views.items():
            for lead in (True, False):
                if (size, lead) not in self._graphs:
                    self._graphs[size, lead] = self._captured(view, lead)

    def run(self, lanes: Sequence[int], *, lead: bool, greedy: bool) -> None:
        self._graphs[self.bucket(lanes), lead]()

    def _captured(self, view: LaneTensors, lead: bool) -> Callable[[], None]:
        def work() -> None:
            with torch.inference_mode():
                self._step.run(view, lead=lead)

        return self._recorder.capture(work)


class RuleBroken(SpeechError):
    """A step did what a captured graph cannot repeat."""


class Rehearsal:
    """A recorder without a GPU: it repeats the work itself and fails where a captured graph would go wrong."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        script = _Watched()
        with script:
            work()

        def replay() -> None:
            again = _Watched()
            with again:
                work()
            script.compare(again)

        return replay


# Operations that wait for the host, or whose result's shape depends on contents.
HOST_BOUND = (
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "unique", "_unique2", "bincount", "equal",
    "lift_fresh", "repeat_interleave.Tensor", "multinomial", "normal_", "exponential_", "uniform_", "random_",
)  # fmt: skip


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down each operation: its name, its result's shape, and where its outside tensors lie."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[tuple[str, tuple[object, ...]]] = []
        self._inside: set[int] = set()
        self._alive: list[torch.Tensor] = []  # else an address could be given twice within one step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if any(name == bound or name.startswith(f"{bound}.") for bound in HOST_BOUND):
            raise RuleBroken(f"{name} inside a step: it waits for the host, draws at random or has no fixed shape")
        outside = tuple(_address(t) for t in _tensors(args) if _address(t) not in self._inside)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors((result,)):
            if _address(tensor) not in outside:
                self._inside.add(_address(tensor))
                self._alive.append(tensor)
            outside += tuple(tensor.shape)
        self.lines.append((name, outside))
        return result

    def compare(self, again: _Watched) -> None:
        """Raises RuleBroken unless `again` did the same, on the same memory."""
        if len(self.lines) != len(again.lines):
            raise RuleBroken(f"a step of {len(self.lines)} operations became one of {len(again.lines)}")
        for number, (first, second) in enumerate(zip(self.lines, again.lines, strict=True)):
            if first != second:
                raise RuleBroken(f"operation {number} of a step changed: {first} became {second}")


def _tensors(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
