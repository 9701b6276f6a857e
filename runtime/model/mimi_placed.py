"""Codes to the latent steps that Mimi's convolutions are given, as eager steps on a processor make them: calls ready.

What mimi.py's look-up and up-sampling and mimi_transformer.py's layers compute, to a rounding of the channels' scales,
which are multiplied into the matrices. Every part of a decoder's state has calls of its own, bound to its memory; which
of the ring's lanes they read and write may change from frame to frame.

Shapes: B lanes, K codebooks, T latent steps a frame, S rows of memory (B T, or as many as a product wants at least: the
last are nobody's), C channels, H heads, D head width, N ring slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.layers import WHOLE_VECTORS
from runtime.model.matrices import ROWS_MIN, steady
from runtime.model.mimi_config import MimiConfig
from runtime.model.mimi_transformer import LAYER_NORM_EPS, Rotation, layer_names
from runtime.model.placed import Memory, Operation, Placed
from runtime.model.rows import Rows
from runtime.model.streamconv import StreamUpsampleDepthwise


class PlacedLayer:
    """One layer of the transformer, its channels' scales in its matrices."""

    def __init__(self, w: Mapping[str, Tensor], name: str) -> None:
        scale1, scale2 = (w[f"{name}layer_scale_{n}.scale"].unsqueeze(1) for n in (1, 2))
        self.qkv = Placed(steady(w[f"{name}self_attn.in_proj_weight"]))
        self.up = Placed(steady(w[f"{name}linear1.weight"]))
        self.out = Placed(steady(w[f"{name}self_attn.out_proj.weight"] * scale1))
        self.down = Placed(steady(w[f"{name}linear2.weight"] * scale2))
        self.norm1, self.norm2 = ((w[f"{name}norm{n}.weight"], w[f"{name}norm{n}.bias"]) for n in (1, 2))


class Latents:
    """The weights, and the memory that all states' calls share. One frame at a time."""

    def __init__(
        self, w: Mapping[str, Tensor], c: MimiConfig, rotation: Rotation, *, slots: int, table: Tensor, first: Tensor,
        project: Tensor, up: StreamUpsampleDepthwise,
    ) -> None:  # fmt: skip
        """table: [K card, dim]. first: [K], each codebook's first row in it. project: [C, 2 dim]."""
        self.table, self.first, self.card = table, first, c.card
        self.project, self.up, self.steps = Placed(steady(project)), up, c.resample_stride
        self.layers = [PlacedLayer(w, name) for name in layer_names("decoder", c)]
        self.heads, self.slots, self.frequencies = c.num_heads, slots, rotation.frequencies.numpy()
        # A full ring's mask depends only on where in it a lane stands.
        offsets = torch.arange(2 * slots)
        lanes = Rows.of(range(2 * slots), offsets.device)
        self.masks = rotation.places(offsets, self.steps, lanes).mask.flatten(1)  # [2 N, T N]
        self.memory = Memory()


class FrameCalls:
    """The calls of a frame over one state's memory."""

    def __init__(self, latents: Latents, tails: Tensor, ring: Tensor, offset: Tensor) -> None:
        """The state's tensors as in mimi.MimiState."""
        self._latents, memory, steps = latents, latents.memory, latents.steps
        self._lanes, self._room = len(offset), max(ROWS_MIN, len(offset) * steps)
        channels = latents.project.width
        self._x, self._normed = memory("x", self._room, channels), memory("normed", self._room, channels)
        self.latent = self._x[: self._lanes * steps].view(self._lanes, steps, channels)
        self._codes = torch.zeros(self._lanes, len(latents.first), dtype=torch.int64)
        self._moving = torch.zeros(self._lanes, dtype=torch.bool)
        heads, slots, width = ring.shape[3:]
        self._turned = memory("turned", 3, self._lanes, heads, steps, width)  # queries, keys, values
        self._heard = memory("heard", self._lanes, heads, steps, width)
        self._score, self._weight = (memory(name, self._lanes * heads, steps, slots) for name in ("score", "weight"))
        self._ring, self._place = ring, _Places(latents, ring, offset)
        self._rows: Rows | None = None  # that `_reading` is for
        self._reading: list[list[Operation]] = []  # each layer's; between the first and the second half of its calls
        self._looking_up = self._looked_up(latents.up.tail.of(tails))
        self._halves = [
            (self._before_reading(layer, held), [*self._behind_reading(layer), *self._feed_forward(layer)])
            for layer, held in zip(latents.layers, ring, strict=True)
        ]
        self._moves_on = partial(offset.add_, self._moving, alpha=steps)

    def __call__(self, codes: Tensor, moving: Tensor, rows: Rows) -> Tensor:
        """The latent steps [B, T, C] of codes [B, K]: memory that the next frame overwrites.

        moving: [B]. rows: the lanes of the ring.
        """
        if rows is not self._rows:
            self._place.lie(rows)
            self._rows, self._reading = rows, [self._read(held, rows) for held in self._ring]
        torch.clamp(codes, 0, self._latents.card - 1, out=self._codes)
        self._moving.copy_(moving)
        self._place()
        for operation in self._looking_up:
            operation()
        for (before, behind), reading in zip(self._halves, self._reading, strict=True):
            for operation in (*before, *reading, *behind):
                operation()
        self._moves_on()
        return self.latent

    def _looked_up(self, before: Tensor) -> list[Operation]:
        """From the codes to x. before: [B, 1, C], the last frame's projection, which this one's becomes."""
        latents, memory, lanes = self._latents, self._latents.memory, self._lanes
        books, width, room = self._codes.shape[1], latents.table.shape[1], max(ROWS_MIN, lanes)
        rows, both = memory("rows", lanes * books, width), memory("both", room, 2 * width)
        now = memory("projected", room, latents.project.width)
        by_book, own = rows.view(lanes, books, width), now[:lanes].unsqueeze(1)
        return [
            partial(self._codes.add_, latents.first),
            partial(torch.index_select, latents.table, 0, self._codes.view(-1), out=rows),
            partial(both[:lanes, :width].copy_, by_book[:, 0]),
            partial(torch.sum, by_book[:, 1:], 1, out=both[:lanes, width:]),
            latents.project.into(both, now),
            partial(torch.mul, own, latents.up.now, out=self.latent),
            partial(self.latent.addcmul_, before, latents.up.before),
            partial(torch.where, self._moving.view(-1, 1, 1), own, before, out=before),
        ]  # fmt: skip

    def _before_reading(self, layer: PlacedLayer, ring: Tensor) -> list[Operation]:
        """From x to queries, keys and values, and those into the ring [2, all B, H, N, D], this layer's."""
        memory, lanes, steps, heads = self._latents.memory, self._lanes, self._latents.steps, self._latents.heads
        width, qkv = ring.shape[4], memory("qkv", self._room, layer.qkv.width)
        pairs = torch.view_as_complex(qkv[: lanes * steps].view(lanes, steps, 3, heads, width // 2, 2))
        turned = torch.view_as_complex(self._turned.view(3, lanes, heads, steps, width // 2, 2))
        return [
            partial(_normalise, self._x, layer.norm1, self._normed), layer.qkv.into(self._normed, qkv),
            partial(torch.mul, pairs, self._place.turns, out=turned.permute(1, 3, 0, 2, 4)),
            # Lanes that do not move write too: to slots their next real step writes again before anything reads them.
            partial(ring.view(-1, width).index_copy_, 0, self._place.rows.view(-1), self._turned[1:].view(-1, width)),
        ]  # fmt: skip

    def _read(self, ring: Tensor, rows: Rows) -> list[Operation]:
        """Attention over the ring where the rows lie, one run of neighbours after the other."""
        heads, slots, width = ring.shape[2:]
        query, heard = (t.view(self._lanes * heads, -1, width) for t in (self._turned[0], self._heard))
        score, weight = self._score, self._weight
        scored: list[Operation] = []
        mixed: list[Operation] = []
        for start, stop, at in rows.runs:
            keys, values = (part[at : at + stop - start].view(-1, slots, width) for part in ring)
            own = slice(start * heads, stop * heads)
            queries, keys = query[own], keys.transpose(1, 2)
            product = partial(torch.baddbmm, self._place.mask[own], queries, keys, alpha=width**-0.5, out=score[own])
            scored.append(product)
            mixed.append(partial(torch.bmm, weight[own], values, out=heard[own]))
        return [*scored, partial(torch.softmax, score, -1, out=weight), *mixed]

    def _behind_reading(self, layer: PlacedLayer) -> list[Operation]:
        memory, lanes, steps, heads = self._latents.memory, self._lanes, self._latents.steps, self._latents.heads
        width = self._x.shape[1] // heads
        mixed = memory("mixed", self._room, heads * width)
        side_by_side = mixed[: lanes * steps].view(lanes, steps, heads, width)
        return [partial(side_by_side.copy_, self._heard.transpose(1, 2)), layer.out.onto(mixed, self._x)]

    def _feed_forward(self, layer: PlacedLayer) -> list[Operation]:
        memory, width = self._latents.memory, layer.up.width
        hidden, behind = memory("hidden", self._room, width), memory("behind", self._room, width + WHOLE_VECTORS)
        # The library takes another way for rows that do not touch, which costs a fifth as much for a few of them.
        apart = behind[:, :width]
        return [
            partial(_normalise, self._x, layer.norm2, self._normed), layer.up.into(self._normed, apart),
            partial(torch._C._nn.gelu, apart, out=hidden),  # type: ignore[call-arg]
            layer.down.onto(hidden, self._x),
        ]  # fmt: skip


def _normalise(x: Tensor, norm: tuple[Tensor, Tensor], out: Tensor) -> None:
    out.copy_(F.layer_norm(x, (x.shape[1],), *norm, LAYER_NORM_EPS))


class _Places:
    """mimi_transformer.Places of a state's lanes, in fixed memory: a call brings them up to date with its offset."""

    def __init__(self, latents: Latents, ring: Tensor, offset: Tensor) -> None:
        lanes, steps, heads, slots = len(offset), latents.steps, latents.heads, latents.slots
        width = ring.shape[5]
        self._latents, self._offset, self._steps = latents, offset.numpy(), np.arange(steps)
        self._at = np.zeros((lanes, steps), np.int64)
        self._slot = np.zeros_like(self._at)
        self._angle = np.zeros((lanes, steps, len(latents.frequencies)), np.float32)
        self._cos, self._sin = (torch.zeros(self._angle.shape) for _ in range(2))
        self.turns = torch.ones(lanes, steps, 3, 1, width // 2, dtype=torch.complex64)
        """Of queries, keys and values, of which the last stay as they are."""
        self._head, self._between = np.arange(heads), ring.stride(1) // width  # rows from keys to values
        self._begins = np.zeros((2, lanes, heads, 1), np.int64)
        self.rows = torch.zeros(2, lanes, heads, steps, dtype=torch.int64)
        """Of the ring in rows of D, where the new keys and values go."""
        self.mask = torch.zeros(lanes * heads, steps, slots)
        self._number = torch.zeros(lanes * heads, dtype=torch.int64)

    def lie(self, rows: Rows) -> None:
        """The ring's lanes from now on."""
        heads = rows.index.numpy()[:, None] * len(self._head) + self._head
        np.multiply(heads, self._latents.slots, out=self._begins[0, ..., 0])
        np.add(self._begins[0], self._between, out=self._begins[1])

    def __call__(self) -> None:
        latents, slots = self._latents, self._latents.slots
        np.add(self._offset[:, None], self._steps, out=self._at)
        np.remainder(self._at, slots, out=self._slot)
        np.add(self._begins, self._slot[:, None], out=self.rows.numpy())
        np.multiply(self._at.astype(np.float32)[..., None], latents.frequencies, out=self._angle)
        angle, half = torch.from_numpy(self._angle), self.turns.shape[-1]
        torch.cos(angle, out=self._cos)
        torch.sin(angle, out=self._sin)
        cos, sin = (part[:, :, None, None, :half].expand(-1, -1, 2, -1, -1) for part in (self._cos, self._sin))
        torch.complex(cos, sin, out=self.turns[:, :, :2])
        number = np.minimum(self._offset, slots + self._slot[:, 0])
        np.copyto(self._number.numpy().reshape(len(number), -1), number[:, None])
        torch.index_select(latents.masks, 0, self._number, out=self.mask.view(len(self._number), -1))
