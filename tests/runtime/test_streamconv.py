"""Convolutions that carry state, beside the library's convolution of the whole."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from runtime.model.seanet import elu
from runtime.model.streamconv import StreamConv, TailList


@pytest.mark.parametrize("channels", [(1, 1), (8, 1), (8, 4), (4, 8), (5, 3), (64, 32)])
@pytest.mark.parametrize("taps", [1, 3, 7])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("steps", [(48, 16, 32), (7, 5, 1)], ids=["whole blocks", "broken blocks"])
def test_steps_of_any_length_give_the_convolution_of_the_whole(
    channels: tuple[int, int], taps: int, dilation: int, steps: tuple[int, ...]
) -> None:
    draws = torch.Generator().manual_seed(taps)
    into, out = channels
    weight, bias = torch.randn(out, into, taps, generator=draws), torch.randn(out, generator=draws)
    x = torch.randn(3, sum(steps), into, generator=draws)
    tails = TailList(is_steady=True)
    layer = StreamConv(weight, bias, tails, dilation=dilation)
    state, keep = tails.split(tails.zeros(3, x)), torch.ones(3, 1, 1, dtype=torch.bool)
    got = torch.cat([layer(part, state, keep) for part in x.split(steps, 1)], 1)
    padded = F.pad(x.transpose(1, 2), ((taps - 1) * dilation, 0))
    wanted = F.conv1d(padded, weight, bias, dilation=dilation).transpose(1, 2)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_elu_is_the_librarys_to_the_last_place_that_sounds() -> None:
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, -1e-4])])
    torch.testing.assert_close(elu(x), F.elu(x), rtol=0, atol=1.2e-7)
