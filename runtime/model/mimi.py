"""The Mimi codec from our own code: streaming decoder, and the encoder for voice prompts (arXiv:2410.00037).

It owns the order of the parts and strict loading. One frame (80 ms) is two latent steps; the decoder does one frame a
call and never sees more, so decoding a whole is decoding its frames. Float32 throughout, as the public package runs it.

Rejected: multiplying the code tables by the output projections at load. It would save 0.26 of 215 million
multiplications a frame and cost 67 MB and a third of a second of a cold start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.errors import CheckpointInvalid
from runtime.model.codec import CodecState
from runtime.model.mimi_config import MimiConfig, parse_mimi_config
from runtime.model.mimi_encoder import MimiEncoder
from runtime.model.mimi_placed import FrameCalls, Latents
from runtime.model.mimi_transformer import Transformer
from runtime.model.mimi_weights import checked, code_tables, decoder_names, on_device
from runtime.model.rows import Rows
from runtime.model.seanet import decoder_layers, run_layers
from runtime.model.seanet_pieces import Pieces
from runtime.model.streamconv import StreamUpsampleDepthwise, TailList


@dataclass(frozen=True)
class MimiState:
    """All that the decoder carries: rows of every convolution, the ring of keys and values, each lane's position."""

    tails: Tensor  # [B, floats]
    ring: Tensor  # [L, 2, all B, H, N, D]: every lane's, whichever these are
    offset: Tensor  # [B]
    rows: Rows  # which lanes of the ring these are
    calls: list[FrameCalls] = field(default_factory=list, compare=False)  # an eager step's, from its first frame on

    def reset(self, lanes: Tensor) -> None:
        """Starts the masked lanes anew. The ring is left as it is: no slot is seen before it is written again."""
        self.offset.masked_fill_(lanes, 0)
        self.tails.masked_fill_(lanes[:, None], 0.0)

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.offset, self.ring, self.tails)

    def span(self, start: int, stop: int) -> MimiState:
        """Lanes start .. stop - 1, sharing memory with this state."""
        return MimiState(self.tails[start:stop], self.ring, self.offset[start:stop], self.rows.span(start, stop))

    def room(self, lanes: int) -> MimiState:
        """Memory for a gathering of so many lanes; what it holds means nothing."""
        tails, offset = (t.new_empty(lanes, *t.shape[1:]) for t in (self.tails, self.offset))
        return MimiState(tails, self.ring, offset, Rows.of(range(lanes), offset.device))

    def gathered(self, lanes: Rows, source: CodecState) -> MimiState:
        """Some lanes of `source`: the ring is its own, the rest a copy in this one's memory."""
        assert isinstance(source, MimiState)
        torch.index_select(source.tails, 0, lanes.index, out=self.tails)
        torch.index_select(source.offset, 0, lanes.index, out=self.offset)
        assert source.ring is self.ring, "room is made for the lanes of one ring"
        return replace(self, rows=lanes)

    def put(self, lanes: Tensor, taken: CodecState) -> None:
        """Writes such a copy back after a frame."""
        assert isinstance(taken, MimiState)
        self.tails.index_copy_(0, lanes, taken.tails)
        self.offset.index_copy_(0, lanes, taken.offset)


class Mimi:
    """Codes [B, K] to sound [B, S], a frame a call; sound to codes through `encode`."""

    def __init__(
        self, weights: Mapping[str, Tensor], config: MimiConfig, n_q: int, device: torch.device, is_steady: bool
    ) -> None:
        self._weights, self._config, self._device = weights, config, device
        self.n_q, self.card = n_q, config.card
        self.sample_rate, self.frame_samples = config.sample_rate, config.frame_samples
        w = on_device(weights, decoder_names(config, n_q), device)
        self._tables = code_tables(w, config, n_q).flatten(0, 1)  # [K * card, codebook_dim]
        self._first = torch.arange(n_q, device=device) * config.card
        projections = [w[f"quantizer.{b}.output_proj.weight"][..., 0] for b in ("rvq_first", "rvq_rest")]
        self._project = torch.cat(projections, 1)
        tails = TailList(is_steady=is_steady)
        self._up = StreamUpsampleDepthwise(
            w["upsample.convtr.convtr.convtr.weight"], tails, stride=config.resample_stride
        )
        # As many slots as the context, as in the public package: where a frame brings two steps, the first of them
        # sees one step less than the context once the ring is full. Its sound is what we have to match.
        self._transformer = Transformer(w, "decoder", config, slots=config.context, device=device)
        self._layers = decoder_layers(w, config, tails)
        self._steps = config.resample_stride
        self._latents, self._pieces = None, None
        if is_steady:
            self._pieces = Pieces(self._layers, self._steps)
            self._latents = Latents(
                w, config, self._transformer.rotation, slots=config.context, table=self._tables, first=self._first,
                project=self._project, up=self._up,
            )  # fmt: skip
        self._tails = tails
        self._encoder: MimiEncoder | None = None

    def initial_state(self, lanes: int) -> MimiState:
        zero = torch.zeros((), device=self._device)
        offset = torch.zeros(lanes, dtype=torch.int64, device=self._device)
        ring = self._transformer.ring(lanes, zero)
        return MimiState(self._tails.zeros(lanes, zero), ring, offset, Rows.of(range(lanes), self._device))

    def make_ready(self, state: CodecState) -> None:
        assert isinstance(state, MimiState)
        if self._latents is not None and self._pieces is not None and not state.calls:
            state.calls.append(FrameCalls(self._latents, state.tails, state.ring, state.offset))
            self._pieces.make_ready(len(state.offset))

    @torch.no_grad()
    def decode_step(self, codes: Tensor, state: MimiState, exec_mask: Tensor) -> Tensor:
        """One frame, see the port. Codes out of range are clamped: lanes that wait may hold -1."""
        self.make_ready(state)
        if self._pieces is not None:
            return self._pieces(state.calls[0](codes, exec_mask, state.rows), state.tails, exec_mask[:, None])
        keep = exec_mask[:, None, None]
        rows = F.embedding(codes.clamp(0, self.card - 1) + self._first, self._tables)  # [B, K, codebook_dim]
        both = torch.cat([rows[:, 0], rows[:, 1:].sum(1)], -1)
        latent = self._up(F.linear(both, self._project)[:, None], state.tails, keep)
        latent = self._transformer(latent, state.ring, state.offset, exec_mask, state.rows)
        tails = self._tails.split(state.tails)
        return run_layers(self._layers, latent, tails, keep)[..., 0]

    def encode(self, pcm: Tensor) -> Tensor:
        """Codes [B, K, T] of pcm [B, samples]; the encoder's weights are read at the first call."""
        return self.encoder().encode(pcm)

    def encoder(self) -> MimiEncoder:
        """The streaming encoder over the same checkpoint, made once."""
        if self._encoder is None:
            self._encoder = MimiEncoder(self._weights, self._config, self.n_q, self._device)
        return self._encoder


def load(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None, *, n_q: int, device: torch.device,
    is_steady: bool = False,
) -> Mimi:  # fmt: skip
    """A Mimi of the published layout that uses the first `n_q` codebooks; the others are never read."""
    parsed = parse_mimi_config(config)
    if not 2 <= n_q <= parsed.codebooks:
        raise CheckpointInvalid("n_q", f"{n_q} codebooks asked for, the codec has 2 .. {parsed.codebooks}")
    return Mimi(checked(tensors, parsed), parsed, n_q, device, is_steady)
