"""Runners: given the same noise, the captured, the compiled and the eager step give the same codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.errors import SpeechError
from runtime.graphs import CapturedStep, CompiledStep, CudaRecorder, Rehearsal, RuleBroken
from runtime.lanes import LaneTensors
from runtime.model.frame import FrameStep
from runtime.port import StreamSpec
from tests.runtime.models import run_out, small_engine, sound, speak

DRAWN = StreamSpec(temp=0.7, text_temp=0.7, seed=11)
WORDS = "one two"


def rehearsed(step: FrameStep, state: LaneTensors) -> CapturedStep:
    return CapturedStep(step, state, Rehearsal())


@pytest.mark.parametrize("size", ["small", "small-prompted"])
def test_a_captured_step_keeps_the_rules_and_gives_the_eager_codes(tmp_path: Path, size: str) -> None:
    expected = sound(speak(small_engine(tmp_path, size=size, codebooks=3), DRAWN, WORDS))
    engine = small_engine(tmp_path, size=size, codebooks=3, lanes=2, runner=rehearsed)
    engine.prepare()
    busy = engine.open(replace(DRAWN, seed=1))
    assert np.array_equal(sound(speak(engine, DRAWN, WORDS)), expected)
    engine.close(busy)
    assert np.array_equal(sound(speak(engine, DRAWN, WORDS)), expected), "streams opened later change no address"


def test_greedy_streams_need_no_graph_of_their_own(tmp_path: Path) -> None:
    greedy = StreamSpec(temp=0, text_temp=0)
    engine = small_engine(tmp_path, codebooks=3, runner=rehearsed)
    engine.prepare()
    assert np.array_equal(
        sound(speak(engine, greedy, WORDS)), sound(speak(small_engine(tmp_path, codebooks=3), greedy, WORDS))
    )


def test_preparing_moves_no_lane(tmp_path: Path) -> None:
    engine = small_engine(tmp_path, codebooks=3, runner=rehearsed)
    expected = sound(speak(small_engine(tmp_path, codebooks=3), DRAWN, WORDS))
    lane = engine.open(DRAWN)
    engine.prepare()
    feed = engine.text_feed(DRAWN)
    engine.feed(lane, [*feed.push(WORDS), *feed.end()])
    engine.end(lane)
    assert np.array_equal(sound(run_out(engine, [lane])), expected)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda x: x.sum().item(), "waits for the host"),
        (lambda x: x.nonzero(), "waits for the host"),
        (lambda x: torch.rand_like(x).exponential_(), "draws at random"),
    ],
)
def test_the_rehearsal_fails_what_a_graph_cannot_do(fault: object, words: str) -> None:
    x = torch.zeros(4)
    with pytest.raises(RuleBroken, match=words):
        Rehearsal().capture(lambda: fault(x))  # type: ignore[operator]


def test_the_rehearsal_notices_a_tensor_that_moved_and_work_that_changed() -> None:
    held, steps = [torch.zeros(4), torch.zeros(4)], [1]

    def work() -> None:
        for _ in range(steps[0]):
            held[0].add_(1)

    replay = Rehearsal().capture(work)
    replay()
    held[0] = held[1]
    with pytest.raises(RuleBroken, match="operation 0 of a step changed"):
        replay()
    steps[0] = 2
    with pytest.raises(RuleBroken, match="1 operations became one of 2"):
        replay()


def test_capturing_without_a_gpu_says_what_to_use_instead() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(SpeechError, match="use --step eager or compiled"):
        CudaRecorder()


@pytest.mark.slow
def test_a_compiled_step_gives_the_eager_codes_and_is_never_traced_again(tmp_path: Path) -> None:
    """About two minutes of compiling, even for two codebooks."""
    expected = sound(speak(small_engine(tmp_path, codebooks=2), DRAWN, WORDS))
    engine = small_engine(tmp_path, codebooks=2, lanes=2, runner=CompiledStep)
    engine.prepare()
    with torch.compiler.set_stance("fail_on_recompile"):
        assert np.array_equal(sound(speak(engine, DRAWN, WORDS)), expected)
        lanes = [engine.open(replace(DRAWN, seed=n)) for n in (1, 2)]
        for lane in lanes:
            feed = engine.text_feed(DRAWN)
            engine.feed(lane, [*feed.push(WORDS), *feed.end()])
            engine.end(lane)
        run_out(engine, lanes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: only a GPU can tell")
def test_a_captured_step_on_a_gpu_gives_the_eager_codes(tmp_path: Path) -> None:
    device = torch.device("cuda")
    expected = sound(speak(small_engine(tmp_path, device=device), DRAWN, WORDS))
    engine = small_engine(tmp_path, device=device, lanes=4, runner=CapturedStep)
    engine.prepare()
    assert np.array_equal(sound(speak(engine, DRAWN, WORDS)), expected)
