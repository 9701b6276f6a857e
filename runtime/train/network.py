"""The training twin of the served model: the same function, with tables that are easier to learn.

Every table that the published layout stores as rows (text, codes, heads) is here a sum of something known (the phonemes
of a piece, the codec's own latent of a code) and a free residual; `tables()` flattens them, and `export.py` writes the
result under the published names. Auxiliary heads (which phoneme is sounding, which latent) exist only in training.
Shapes: B streams, S steps, N frames chosen for the depth loss, K codebooks, D temporal width, E depth width.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.train.codec_fit import ENTRIES, LATENT, SLOTS

PIECE_SOUNDS = 8  # sounds of one text piece that the composed table can tell apart
EPSILON = 1e-8
PERIOD = 10000.0


@dataclass(frozen=True)
class Shape:
    text_card: int = 1200
    dim: int = 256
    heads: int = 4
    layers: int = 4
    hidden: int = 512
    depth_dim: int = 128
    depth_heads: int = 4
    depth_layers: int = 1
    depth_hidden: int = 256
    books: int = 2 * SLOTS
    context: int = 125
    delay: int = 8
    sounds: int = 80

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), gain, EPSILON)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on interleaved pairs; x [B, H, S, 2P], cos and sin [S, P]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def weight(*shape: int, scale: float | None = None) -> nn.Parameter:
    """A random matrix; the default scale keeps the variance of its input."""
    return nn.Parameter(torch.randn(*shape) * (shape[-1] ** -0.5 if scale is None else scale))


class TemporalLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, m, out = shape.dim, shape.hidden, (2 * shape.layers) ** -0.5
        self.heads = shape.heads
        self.gain1, self.gain2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.q, self.k, self.v = weight(d, d), weight(d, d), weight(d, d)
        self.o = weight(d, d, scale=out * d**-0.5)
        self.gate, self.up = weight(m, d), weight(m, d)
        self.down = weight(d, m, scale=out * m**-0.5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, s, d = x.shape
        y = rms(x, self.gain1)
        q, k, v = (F.linear(y, w).view(b, s, self.heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=mask)
        x = x + F.linear(y.transpose(1, 2).reshape(b, s, d), self.o)
        y = rms(x, self.gain2)
        return x + F.linear(F.silu(F.linear(y, self.gate)) * F.linear(y, self.up), self.down)


class DepthLayer(nn.Module):
    """One layer over the K codes of a frame, with its own weights for each code. x: [K, N, E]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        k, e, m, out = shape.books, shape.depth_dim, shape.depth_hidden, (2 * shape.depth_layers) ** -0.5
        self.heads = shape.depth_heads
        self.gain1, self.gain2 = nn.Parameter(torch.ones(e)), nn.Parameter(torch.ones(e))
        self.q, self.k, self.v = weight(k, e, e), weight(k, e, e), weight(k, e, e)
        self.o = weight(k, e, e, scale=out * e**-0.5)
        self.gate, self.up = weight(k, m, e), weight(k, m, e)
        self.down = weight(k, e, m, scale=out * m**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        k, n, e = x.shape
        y = rms(x, self.gain1)
        q, key, v = (
            torch.bmm(y, w.mT).view(k, n, self.heads, -1).permute(1, 2, 0, 3) for w in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, key, v, is_causal=True).permute(2, 0, 1, 3).reshape(k, n, e)
        x = x + torch.bmm(y, self.o.mT)
        y = rms(x, self.gain2)
        return x + torch.bmm(F.silu(torch.bmm(y, self.gate.mT)) * torch.bmm(y, self.up.mT), self.down.mT)


class TextTable(nn.Module):
    """Row of a piece = sum over its sounds of a vector for the sound and one for (sound, place), and a residual."""

    sounds: Tensor

    def __init__(self, shape: Shape, dim: int, sounds: Tensor) -> None:
        """sounds: [text_card + 1, PIECE_SOUNDS], 0 after the end of a piece."""
        super().__init__()
        kinds = int(sounds.max()) + 1
        placed = sounds + kinds * (1 + torch.arange(PIECE_SOUNDS))
        both = torch.cat([sounds, torch.where(sounds > 0, placed, 0)], 1)
        self.register_buffer("sounds", both, persistent=False)
        self.parts = weight(kinds * (1 + PIECE_SOUNDS), dim, scale=0.35)
        self.rest = weight(shape.text_card + 1, dim, scale=0.1)

    def forward(self) -> Tensor:
        return self.rest + F.embedding_bag(self.sounds, self.parts, mode="sum", padding_idx=0)


class CodeTable(nn.Module):
    """Row of a code = affine map of its latent in the codec, and a residual."""

    latents: Tensor

    def __init__(self, latents: Tensor, dim: int, size: float, centred: bool = True) -> None:
        super().__init__()
        white = (latents - latents.mean(0)) / (latents.std(0) + 1e-3)
        self.register_buffer("latents", white, persistent=False)
        self.map = weight(dim, latents.shape[1], scale=size * latents.shape[1] ** -0.5)
        self.shift = nn.Parameter(torch.zeros(dim))
        self.rest = weight(latents.shape[0], dim, scale=0.1 * size)

    def forward(self) -> Tensor:
        return F.linear(self.latents, self.map, self.shift) + self.rest


class Voice(nn.Module):
    pace: Tensor

    def __init__(self, shape: Shape, books: Tensor, sounds: Tensor) -> None:
        """books: [2, ENTRIES, LATENT] of the codec; sounds: [text_card + 1, PIECE_SOUNDS] of each text piece."""
        super().__init__()
        self.shape = shape
        k, d, e = shape.books, shape.dim, shape.depth_dim
        latent = [books[q // SLOTS] for q in range(k)]
        self.text, self.depth_text = TextTable(shape, d, sounds), TextTable(shape, e, sounds)
        self.codes = nn.ModuleList(CodeTable(latent[q], d, 0.35) for q in range(k))
        self.start = weight(k, d, scale=0.1)
        self.layers = nn.ModuleList(TemporalLayer(shape) for _ in range(shape.layers))
        self.out_gain = nn.Parameter(torch.ones(d))
        self.asks = weight(4, d, scale=0.02)
        self.depth_in = weight(k, e, d)
        self.depth_codes = nn.ModuleList(CodeTable(latent[q], e, 1.0) for q in range(k - 1))
        self.depth = nn.ModuleList(DepthLayer(shape) for _ in range(shape.depth_layers))
        self.heads = nn.ModuleList(CodeTable(latent[q], e, 0.3 * e**-0.5) for q in range(k))
        self.says, self.means = weight(SLOTS * shape.sounds, d, scale=0.02), weight(SLOTS * LATENT, d, scale=0.02)
        pair = torch.arange(0, d // shape.heads, 2) / (d // shape.heads)
        self.register_buffer("pace", PERIOD**-pair, persistent=False)

    def tables(self) -> dict[str, Any]:
        """The flat tables of the published layout."""
        return {
            "text": self.text(),
            "codes": [torch.cat([t(), self.start[q : q + 1]]) for q, t in enumerate(self.codes)],
            "depth_text": self.depth_text(),
            "depth_codes": [t() for t in self.depth_codes],
            "heads": torch.stack([t() for t in self.heads]),
        }

    def temporal(self, tables: dict[str, Any], text: Tensor, codes: Tensor) -> Tensor:
        """What each step hears: previous text [B, S] and codes [B, S, K] (-1 = nothing in both) -> [B, S, D]."""
        x = F.embedding(text % (self.shape.text_card + 2), F.pad(tables["text"], (0, 0, 0, 1)))
        for q, table in enumerate(tables["codes"]):
            # A last row of zeros stands for "nothing", which the served model gives as id -1.
            x = x + F.embedding(codes[..., q] % (ENTRIES + 2), F.pad(table, (0, 0, 0, 1)))
        steps = torch.arange(x.shape[1], device=x.device)
        apart = steps[:, None] - steps[None]
        angle = steps[:, None] * self.pace
        mask = (apart >= 0) & (apart < self.shape.context)
        for layer in self.layers:
            x = layer(x, angle.cos(), angle.sin(), mask)
        return rms(x, self.out_gain)

    def depth_logits(self, tables: dict[str, Any], heard: Tensor, text: Tensor, codes: Tensor) -> Tensor:
        """[N, D], [N], [N, K] -> logits [K, N, ENTRIES] of each code given those before it."""
        known = [F.embedding(text, tables["depth_text"])]
        known += [F.embedding(codes[:, q], table) for q, table in enumerate(tables["depth_codes"])]
        n, k = len(heard), self.shape.books
        x = F.linear(heard, self.depth_in.flatten(0, 1)).view(n, k, -1).transpose(0, 1) + torch.stack(known)
        for layer in self.depth:
            x = layer(x)
        return torch.bmm(x, tables["heads"].mT)
