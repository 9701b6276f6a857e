"""How a step is run: eagerly, compiled, or captured and replayed. One interface; the step itself is model/frame.py.

All runners work on the same static buffers and give the same codes from the same noise. Buckets are views of the lanes'
memory, so switching between them costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from runtime.lanes import LaneTensors
from runtime.model.frame import FrameStep


class StepRunner(Protocol):
    """Runs steps over the first lanes of one set of buffers."""

    @property
    def state(self) -> LaneTensors: ...

    def bucket(self, lanes: int) -> int:
        """How many lanes a step over `lanes` lanes really computes."""

    def prepare(self) -> None:
        """Compiles and captures all there is to; afterwards no step is slower than its like. Advances no lane."""

    def run(self, lanes: int, *, lead: bool, greedy: bool) -> None:
        """One step for the lanes whose advance flag is set, all among the first `lanes`."""


class EagerStep:
    """Operation by operation; the reference for the other runners, and the quickest to start."""

    def __init__(self, step: FrameStep, state: LaneTensors) -> None:
        self._step, self._state = step, state
        self._views: dict[int, LaneTensors] = {}

    @property
    def state(self) -> LaneTensors:
        return self._state

    def bucket(self, lanes: int) -> int:
        return lanes

    def prepare(self) -> None:
        """Nothing to do."""

    def run(self, lanes: int, *, lead: bool, greedy: bool) -> None:
        view = self._views.get(lanes)
        if view is None:
            view = self._views[lanes] = self._state.first(lanes)
        with torch.inference_mode():
            self._step.run(view, lead=lead, greedy=greedy)


MakeRunner = Callable[[FrameStep, LaneTensors], StepRunner]
