"""The streaming codec port, and which codec a checkpoint asks for. It owns no arithmetic: mimi.py and spectral.py do.

Shapes: B lanes, K codebooks in use, S samples per frame (1920 at 24 kHz: 80 ms).

The rules every codec keeps, so that one engine can compile or capture any of them:
- all state lies in tensors that `initial_state` makes once and `decode_step` updates in place: fixed addresses;
- no shape, no branch and no host read depends on tensor contents;
- a lane's sound depends on its own codes only, never on its neighbours or on the moment it joined.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from runtime.errors import CheckpointInvalid
from runtime.model.rows import Rows

# The checkpoint's codec config names its type; the published Mimi config has no such key.
CODECS = {"mimi": "runtime.model.mimi", "spectral": "runtime.model.spectral"}
SLOTS = {"spectral": 4}  # parts of a frame that have as many codes each


class CodecState(Protocol):
    """What a codec carries from frame to frame for all lanes. Its owner is whoever called `initial_state`."""

    def reset(self, lanes: Tensor) -> None:
        """Starts the lanes where the mask [B] (bool) is true anew, in place; may be called inside a captured step."""

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the state, always in the same order and at the same address."""

    def span(self, start: int, stop: int) -> CodecState:
        """The state of lanes start .. stop - 1 alone, sharing memory with this one."""

    def room(self, lanes: int) -> CodecState:
        """Memory for a gathering of so many lanes; what it holds means nothing."""

    def gathered(self, lanes: Rows, source: CodecState) -> CodecState:
        """Some lanes of `source`, in that order: copied into this state's memory, but for what is large."""

    def put(self, lanes: Tensor, taken: CodecState) -> None:
        """Writes back what was copied so."""


@runtime_checkable
class Codec(Protocol):
    """Codes to sound, one frame at a time."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def frame_samples(self) -> int: ...

    @property
    def n_q(self) -> int:
        """K: how many codebooks `decode_step` takes, coarse first."""

    @property
    def card(self) -> int:
        """Codes are 0 .. card - 1."""

    def initial_state(self, lanes: int) -> CodecState:
        """Fresh state for B = `lanes` lanes, on the codec's device."""

    def make_ready(self, state: CodecState) -> None:
        """Does what the first `decode_step` of this state would do once; nothing is decoded."""

    def decode_step(self, codes: Tensor, state: CodecState, exec_mask: Tensor) -> Tensor:
        """One frame of sound [B, S], float32, about -1 .. 1, not clipped.

        codes: [B, K] int64. exec_mask: [B] bool; a lane where it is false keeps its state and its row of the result
        means nothing, so its codes may hold anything (-1 included). The result is the caller's until the next step.
        """


@runtime_checkable
class VoiceEncoder(Protocol):
    """Sound to codes, for voice prompts; a codec has it where the checkpoint carries the encoder."""

    def encode(self, pcm: Tensor) -> Tensor:
        """Codes [B, K, T] of pcm [B, samples] at the codec's rate; a last partial frame is filled up with silence."""


def _kind(config: Mapping[str, Any] | None) -> str:
    kind = str((config or {}).get("type", "mimi"))
    if kind not in CODECS:
        raise CheckpointInvalid("config.json: codec.type", f"must be one of {', '.join(sorted(CODECS))}, is {kind!r}")
    return kind


def codebook_counts(config: Mapping[str, Any] | None, n_q: int) -> list[int]:
    """How many codes a frame may be spoken with, of the `n_q` there are. Raises CheckpointInvalid for no codec."""
    slots = SLOTS.get(_kind(config), 1)
    return [count for count in range(max(2, slots), n_q + 1) if count % slots == 0]


def load_codec(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any] | None,
    *,
    n_q: int,
    device: torch.device | str = "cpu",
    is_steady: bool = False,
) -> Codec:
    """The codec a checkpoint's `config` (None: the published Mimi) describes, with `n_q` codebooks.

    `is_steady`: hold the matrices in the forms of eager steps on a processor, see matrices.py. The module of each type
    has the same function `load(tensors, config, *, n_q, device, is_steady) -> Codec`; it is imported only when
    asked for. Raises CheckpointInvalid for a type we do not have and for a tensor that does not fit.
    """
    kind = _kind(config)
    module = importlib.import_module(CODECS[kind])
    return cast(Codec, module.load(tensors, config, n_q=n_q, device=torch.device(device), is_steady=is_steady))
