"""The decoder's convolutions as eager steps on a processor run them: in fixed memory, a few lanes at a time.

What seanet.py's layers compute, without their temporary tensors: for many lanes those are megabytes each, which the
allocator takes from the kernel page by page and gives back in every step, and which no core's cache holds from one
operation to the next. Here every operation writes to memory that was made at the start, over so few lanes that it
stays in the cache; results are the layers' own to a rounding of the bias, and the same bits for any number of lanes.

Shapes: B lanes, n of them in a piece, T steps, C channels. The state is streamconv.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from runtime.model.matrices import ROWS_MIN
from runtime.model.placed import Operation, Placed
from runtime.model.seanet import Activated, Layer, Residual
from runtime.model.streamconv import COLUMNS_MIN, StreamConv, StreamUpsample

# Floats that a piece's rows hold at most, where it has more than one lane: a quarter of a megabyte, so that the four or
# five parts of memory that a stage uses fit a second-level cache. A larger piece saves calls, a smaller one fits L1.
PIECE_FLOATS = 64 * 1024
PIECE_LANES = 64

Conv = StreamConv | StreamUpsample


def elu_into(x: Tensor, out: Tensor) -> list[Operation]:
    """The operations of `seanet.elu` from x to `out`, which is other memory of the same shape."""
    return [
        partial(torch.clamp, x, max=0.0, out=out), out.exp_, partial(out.sub_, 1.0),
        partial(torch.maximum, x, out, out=out),
    ]  # fmt: skip


class Pieces:
    """All layers, latent steps [B, T, C] to sound [B, samples]; the same T in every call."""

    def __init__(self, layers: Sequence[Layer], steps: int) -> None:
        """layers: seanet.decoder_layers' with steady products. steps: T."""
        self._stages: list[_Stage] = []
        for group in _grouped(layers):
            self._stages.append(_Stage(group, steps))
            steps = self._stages[-1].steps_made

    def __call__(self, latent: Tensor, state: Tensor, keep: Tensor) -> Tensor:
        """state [B, floats] is updated in place for the lanes that keep [B, 1] names."""
        sound = latent.new_empty(latent.shape[0], self._stages[-1].steps_made)
        self._run(0, latent, state, keep, sound)
        return sound

    def make_ready(self, lanes: int) -> None:
        """Makes the calls for up to so many lanes ready."""
        for stage in self._stages:
            stage.make_ready(lanes)

    def _run(self, number: int, source: Tensor, state: Tensor, keep: Tensor, sound: Tensor) -> None:
        """One stage and those after it, a piece at a time: what a stage hands on is still in the cache."""
        if number == len(self._stages):
            sound.copy_(source.flatten(1))
            return
        stage, lanes = self._stages[number], source.shape[0]
        if lanes <= stage.lanes:
            self._run(number + 1, stage.run(source, state, keep), state, keep, sound)
            return
        for pieces in zip(*(torch.split(t, stage.lanes) for t in (source, state, keep, sound)), strict=True):
            self._run(number, *pieces)


def _grouped(layers: Sequence[Layer]) -> list[list[Layer]]:
    """The layers in stages: each begins where the number of steps changes; what comes last belongs to the last one."""
    groups: list[list[Layer]] = []
    for layer in layers:
        is_upsampling = isinstance(layer, Activated) and isinstance(layer.layer, StreamUpsample)
        if is_upsampling or not groups:
            groups.append([])
        groups[-1].append(layer)
    return groups


@dataclass(frozen=True)
class _Piece:
    """One stage's operations over n lanes, each bound to its part of the stage's memory."""

    body: Tensor  # [n, T, C]: where the stage's input goes
    carried: Tensor  # [n, floats]: the stage's tails
    operations: list[Operation]
    made: Tensor  # [n, T', C']: the result


class _Work:
    """One convolution's product for up to `lanes` lanes, with memory for what it is given and what it makes.

    The memory is rows of ones at first, so that behind each window stands the one that its bias is multiplied by.
    """

    def __init__(self, conv: Conv, steps: int, lanes: int) -> None:
        self.conv, self.steps = conv, steps
        self.windows, product = conv.parts(steps)
        self.product = Placed(product.form)
        self.channels = conv.steps(steps) * conv.channels // self.windows.count
        rows = lanes * self.windows.count + ROWS_MIN  # a product may want more than there are
        self.before = torch.ones(rows * (self.windows.width + self.product.ones))
        self.behind = torch.ones(rows * self.channels + ROWS_MIN * COLUMNS_MIN)

    def given(self, lanes: int) -> Tensor:
        """[R, in + ones]: as many rows as these lanes' windows, or as a product wants at least."""
        return _rows(self.before, lanes * self.windows.count, self.windows.width + self.product.ones)

    def made(self, lanes: int) -> Tensor:
        """[R, out], likewise."""
        return _rows(self.behind, lanes * self.windows.count, self.channels)

    def result(self, lanes: int) -> Tensor:
        """[n, T', C'] in the same memory."""
        return self.made(lanes)[: lanes * self.windows.count].view(lanes, -1, self.conv.channels)


class _Stage:
    """Layers that share one number of steps behind the first, and the memory they work in."""

    def __init__(self, layers: list[Layer], steps: int) -> None:
        self._layers = layers
        used = _convolutions(layers, steps)
        (first, _), (last, before_last) = used[0], used[-1]
        self.steps_made = last.steps(before_last)
        self._columns = slice(first.tail.start, last.tail.stop)  # of the state
        self.lanes = min(PIECE_LANES, max(1, PIECE_FLOATS // max(c.steps(n) * c.channels for c, n in used)))
        self._carried = torch.empty(self.lanes, last.tail.stop - first.tail.start)
        self._whole = torch.empty(self.lanes * max((c.tail.rows + n) * c.tail.channels for c, n in used))
        self._work = {conv: _Work(conv, n, self.lanes) for conv, n in used}
        self._pieces: dict[int, _Piece] = {}

    def make_ready(self, lanes: int) -> None:
        for count in range(1, min(lanes, self.lanes) + 1):
            if count not in self._pieces:
                self._piece(count)

    def run(self, source: Tensor, state: Tensor, keep: Tensor) -> Tensor:
        """The result [n, T', C'] of source [n, T, C], n at most `lanes`: memory that the next call overwrites."""
        lanes = source.shape[0]
        piece = self._pieces.get(lanes) or self._piece(lanes)
        mine = state[:, self._columns]
        piece.carried.copy_(mine)
        if isinstance(self._layers[0], Activated):
            for operation in elu_into(source, piece.body):
                operation()
        else:
            piece.body.copy_(source)
        for operation in piece.operations:
            operation()
        torch.where(keep, piece.carried, mine, out=mine)
        return piece.made

    def _piece(self, lanes: int) -> _Piece:
        carried = self._carried[:lanes]
        first, *rest = self._layers
        work = self._work[_convolution(first)]
        body, operations = self._convolved(work, carried)
        for layer in rest:
            if isinstance(layer, Residual):
                operations += self._residual(layer, carried, work)
                continue
            x, work = work.result(lanes), self._work[_convolution(layer)]
            into, convolve = self._convolved(work, carried)
            operations += [*elu_into(x, into), *convolve]
        piece = self._pieces[lanes] = _Piece(body, carried, operations, work.result(lanes))
        return piece

    def _convolved(self, work: _Work, carried: Tensor) -> tuple[Tensor, list[Operation]]:
        """Where the input [n, T, C] is to be put, and what makes the result of it."""
        lanes, tail, windows = carried.shape[0], work.conv.tail, work.windows
        rows = tail.rows + work.steps
        whole = self._whole[: lanes * rows * tail.channels].view(lanes, rows, tail.channels)
        mine = carried[:, tail.start - self._columns.start : tail.stop - self._columns.start]
        mine = mine.view(lanes, tail.rows, tail.channels)
        given, taken = work.given(lanes), windows.of(whole)
        put = given.as_strided(taken.shape, (windows.count * given.stride(0), given.stride(0), windows.length, 1))
        return whole[:, tail.rows :], [
            partial(whole[:, : tail.rows].copy_, mine), partial(mine.copy_, whole[:, work.steps :]),
            partial(put.copy_, taken), work.product.into(given, work.made(lanes)),
        ]  # fmt: skip

    def _residual(self, layer: Residual, carried: Tensor, before: _Work) -> list[Operation]:
        """What adds the layer's result to what `before` makes."""
        lanes = carried.shape[0]
        x, narrow, widen = before.result(lanes), self._work[layer.narrow], self._work[layer.widen]
        body, convolve = self._convolved(narrow, carried)
        hidden, windows = narrow.result(lanes), widen.windows
        # A kernel of 1 has no carried rows, and its windows are its input as it lies.
        given = _rows(widen.before, lanes * windows.count, windows.width)
        activated = given[: lanes * windows.count].view(hidden.shape)
        operations = [*elu_into(x, body), *convolve, *elu_into(hidden, activated)]
        bias = widen.product.bias
        if bias is not None:  # In rows of many floats: in rows of a few channels adding costs several times as much.
            flat = x.view(lanes, -1)
            operations.append(partial(flat.add_, bias.repeat(flat.shape[1] // len(bias))))
        return [*operations, widen.product.onto(given, _rows(before.behind, lanes * windows.count, widen.channels))]


def _rows(memory: Tensor, count: int, columns: int) -> Tensor:
    """The first `count` rows in it, or as many as a product wants at least, of which the last are nobody's."""
    rows = max(ROWS_MIN, count)
    return memory[: rows * columns].view(rows, columns)


def _convolution(layer: Layer) -> Conv:
    conv = layer.layer if isinstance(layer, Activated) else layer
    assert isinstance(conv, Conv), layer
    return conv


def _convolutions(layers: list[Layer], steps: int) -> list[tuple[Conv, int]]:
    """Every convolution of a stage in order, with the number of steps it is given."""
    found: list[tuple[Conv, int]] = []
    for layer in layers:
        for conv in (layer.narrow, layer.widen) if isinstance(layer, Residual) else (_convolution(layer),):
            found.append((conv, steps))
            steps = conv.steps(steps)
    return found
