"""Sound to Mimi's codes, for voice prompts: streaming by whole frames, or all at once.

Unlike the decoder it keeps one ring slot per step that may still be seen, so a clip gives the same codes in pieces of
any number of frames as at once, which is what the public package gives at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.model.mimi_config import MimiConfig
from runtime.model.mimi_transformer import Transformer
from runtime.model.mimi_weights import code_tables, encoder_names, on_device
from runtime.model.rows import Rows
from runtime.model.seanet import encoder_layers, run_layers
from runtime.model.streamconv import StreamConv, TailList

# Frames a call at most: enough rows for the products to run at the machine's speed, little enough memory.
FRAMES_MAX = 8


@dataclass(frozen=True)
class EncoderState:
    """Rows of every convolution, the ring of keys and values, each lane's position."""

    tails: Tensor  # [B, floats]
    ring: Tensor
    offset: Tensor
    rows: Rows


class MimiEncoder:
    """pcm [B, frames * S] to codes [B, K, frames]."""

    def __init__(self, weights: Mapping[str, Tensor], config: MimiConfig, n_q: int, device: torch.device) -> None:
        w = on_device(weights, encoder_names(config, n_q), device)
        self._tables = code_tables(w, config, n_q)
        self._half_norms = self._tables.square().sum(-1) / 2  # [K, card]
        projections = [w[f"quantizer.{b}.input_proj.weight"][..., 0] for b in ("rvq_first", "rvq_rest")]
        self._first, self._rest = projections
        self._frame_samples, self._device = config.frame_samples, device
        self._tails = TailList()
        self._layers = encoder_layers(w, config, self._tails)
        slots = config.context + FRAMES_MAX * config.resample_stride - 1
        self._transformer = Transformer(w, "encoder", config, slots=slots, device=device)
        self._down = StreamConv(
            w["downsample.conv.conv.conv.weight"], None, self._tails, stride=config.resample_stride
        )

    def initial_state(self, lanes: int) -> EncoderState:
        zero = torch.zeros((), device=self._device)
        offset = torch.zeros(lanes, dtype=torch.int64, device=self._device)
        rows = Rows.of(range(lanes), self._device)
        return EncoderState(self._tails.zeros(lanes, zero), self._transformer.ring(lanes, zero), offset, rows)

    @torch.no_grad()
    def encode_step(self, pcm: Tensor, state: EncoderState, exec_mask: Tensor) -> Tensor:
        """Codes [B, K, frames] of 1 .. FRAMES_MAX further frames; lanes outside the mask keep their state."""
        keep = exec_mask[:, None, None]
        begins = (keep & (state.offset == 0)[:, None, None]).expand(-1, 1, 1)
        tails = self._tails.split(state.tails)
        latent = run_layers(self._layers, pcm[..., None], tails, keep)
        latent = self._transformer(latent, state.ring, state.offset, exec_mask, state.rows)
        # Before its first step a lane has, to the last convolution, always been what that step is.
        before = tails[self._down.tail.slot]
        before.copy_(torch.where(begins, latent[:, :1], before))
        return self._codes(self._down(latent, tails, keep))

    def encode(self, pcm: Tensor) -> Tensor:
        """Codes [B, K, T] of whole clips [B, samples]; the last frame is filled up with silence."""
        samples = pcm.to(self._device, torch.float32)
        samples = F.pad(samples, (0, -samples.shape[1] % self._frame_samples))
        state = self.initial_state(samples.shape[0])
        moving = torch.ones(samples.shape[0], dtype=torch.bool, device=self._device)
        pieces = torch.split(samples, FRAMES_MAX * self._frame_samples, dim=1)
        return torch.cat([self.encode_step(piece, state, moving) for piece in pieces], -1)

    def _codes(self, latent: Tensor) -> Tensor:
        """Nearest code, then nearest to what is left, and so on; the first codebook stands alone. [B, K, frames]"""
        chosen = [self._nearest(0, F.linear(latent, self._first))]
        residual = F.linear(latent, self._rest)
        for q in range(1, self._tables.shape[0]):
            chosen.append(self._nearest(q, residual))
            residual = residual - F.embedding(chosen[-1], self._tables[q])
        return torch.stack(chosen, 1)

    def _nearest(self, q: int, latent: Tensor) -> Tensor:
        """argmin |x - e|^2 = argmax x.e - |e|^2 / 2 over the codes, [B, frames]."""
        return (F.linear(latent, self._tables[q]) - self._half_norms[q]).argmax(-1)
