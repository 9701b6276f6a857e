"""A whole step lies on the device that it was given; what only a GPU can tell is marked `gpu`.

The meta device has shapes and no values: it stands for a GPU, and a tensor left on the CPU fails beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime import checkpoint, weights
from runtime import model_config as configs
from runtime.config import ModelSettings
from runtime.lanes import allocate
from runtime.model import layout
from runtime.model.codec import load_codec
from runtime.model.frame import FrameStep
from runtime.port import StreamSpec
from tests.runtime.models import run_out

DEMO = Path(__file__).parents[2] / "voices" / "demo"


class OnlyOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails an operation whose result, if it is more than one number, lies on another device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dim():
                assert tensor.device.type == "meta", f"{func} gives a tensor on {tensor.device}"
                self.operations += 1
        return result


@pytest.mark.parametrize("lead", [True, False], ids=["lead", "whole"])
@pytest.mark.parametrize("which", ["mimi", "spectral"])
def test_a_step_makes_every_tensor_on_its_device(small_checkpoint: Path, which: str, lead: bool) -> None:
    directory = small_checkpoint if which == "mimi" else DEMO
    if not directory.exists():
        pytest.skip("the demo voice is not here")
    config, device = configs.read(directory), torch.device("meta")
    model = layout.assemble(config, weights.read(directory / config.model_file), dtype=torch.float32, device=device)
    codec = load_codec(
        weights.read(directory / config.codec_file), checkpoint.codec_config(directory, config), n_q=8, device=device
    )
    state = allocate(
        config, codec, lanes=3, ways=2 if config.guided else 1, codebooks=8, top_k=250, text_top_k=25,
        voice_positions=80, dtype=torch.float32, device=device,
    )  # fmt: skip
    with torch.inference_mode(), OnlyOnMeta() as watched:
        FrameStep(model, codec).run(state, lead=lead)
    assert watched.operations > (50 if lead else 300)


def test_the_watch_notices_a_tensor_on_the_wrong_device() -> None:
    with pytest.raises(AssertionError, match="on cpu"), OnlyOnMeta():
        torch.zeros(3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: only a GPU can tell")
@pytest.mark.parametrize("step", ["eager", "captured"])
def test_a_checkpoint_speaks_on_a_gpu_what_it_speaks_on_a_processor(small_checkpoint: Path, step: str) -> None:
    """Greedy, in float32: the near ties of a random model are further apart than the two devices' roundings."""
    said = []
    for device, how in (("cpu", "eager"), ("cuda", step)):
        engine = checkpoint.start(ModelSettings(model=small_checkpoint, device=device, step=how, lanes=2))
        spec = StreamSpec(temp=0.0, text_temp=0.0)
        lane, feed = engine.open(spec), engine.text_feed(spec)
        engine.feed(lane, [*feed.push("Hello there."), *feed.end()])
        engine.end(lane)
        frames = run_out(engine, [lane])
        said.append(torch.cat([torch.from_numpy(f.pcm) for f in frames if f.pcm is not None]))
    torch.testing.assert_close(said[1], said[0], rtol=1e-4, atol=1e-3)
