"""A voice from a clip: the codes of a sound that the model then continues. It owns the clip's bounds, not the codec.

Only a model without voice embeddings takes its voice this way; the encoder that made the published embeddings was never
published, so a model that attends to embeddings has the voices it came with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.audio import Samples
from runtime.errors import CheckpointInvalid, SpecInvalid
from runtime.model.codec import Codec, VoiceEncoder
from runtime.voices import Part, Voices

# Longer prompts push the text out of the model's window of 40 s, and every lane pays for the wait.
CLIP_S_MAX = 15.0
CLIP_S_MIN = 0.5
# The public package drops the last two frames of a prompt: they hear the silence after the clip.
DROPPED_FRAMES = 2
KEPT_MAX = 64


class ClipPrompts:
    """The prompt of each voice that is a sound file, encoded once and kept (KEPT_MAX of them), and each clone."""

    def __init__(self, encoder: VoiceEncoder, sample_rate: int, voices: Voices) -> None:
        self._encoder, self._rate, self._voices = encoder, sample_rate, voices
        self._kept: OrderedDict[str, NDArray[np.int64]] = OrderedDict()
        self._cloned: dict[str, NDArray[np.int64]] = {}

    def __call__(self, mix: Sequence[Part]) -> NDArray[np.int64] | None:
        """Codes [P, K] of the one voice in the mix, None for a model's only voice, which needs none.

        Raises SpecInvalid for more than one, CheckpointInvalid for a bad clip.
        """
        if len(mix) != 1:
            raise SpecInvalid("voice", "this model's voices are sounds, and sounds cannot be mixed")
        name = mix[0].name
        if name in self._cloned:
            return self._cloned[name]
        if self._voices.file(name) is None:
            return None
        if name not in self._kept:
            self._kept[name] = prompt_codes(self._encoder, self._clip(name), self._rate)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def add(self, name: str, clip: Samples) -> None:
        """A cloned voice. From any thread: encoding touches no lane, and the codes appear whole."""
        self._cloned[name] = prompt_codes(self._encoder, clip, self._rate)
        self._voices.admit(name)

    def drop(self, name: str) -> None:
        self._voices.dismiss(name)
        self._cloned.pop(name, None)

    def _clip(self, name: str) -> Samples:
        from runtime.audio_av import ClipUnreadable, read_clip

        path = self._voices.file(name)
        assert path is not None, name
        try:
            return read_clip(str(path), rate=self._rate, max_s=CLIP_S_MAX)
        except ClipUnreadable as why:
            raise CheckpointInvalid(path.name, str(why)) from why


def prompt_codes(encoder: VoiceEncoder, clip: Samples, rate: int) -> NDArray[np.int64]:
    """Codes [P, K] of a clip at the codec's rate. Raises SpecInvalid for one too short to carry a voice."""
    if len(clip) < CLIP_S_MIN * rate:
        raise SpecInvalid("voice", f"the clip lasts {len(clip) / rate:.2f} s; at least {CLIP_S_MIN} s are needed")
    codes = encoder.encode(torch.from_numpy(np.ascontiguousarray(clip))[None])
    return codes[0, :, :-DROPPED_FRAMES].t().contiguous().cpu().numpy()


def clip_prompts(codec: Codec, voices: Voices, *, by_embedding: bool) -> ClipPrompts | None:
    """The prompts of a model that continues sounds; None where voices are embeddings or the codec has no encoder."""
    if not by_embedding and isinstance(codec, VoiceEncoder):
        return ClipPrompts(codec, codec.sample_rate, voices)
    return None
