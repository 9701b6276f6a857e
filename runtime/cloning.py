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
    """The prompt of each voice that is a sound file, encoded once and kept (the KEPT_MAX used last)."""

    def __init__(self, encoder: VoiceEncoder, sample_rate: int, voices: Voices) -> None:
        self._encoder, self._rate, self._voices = encoder, sample_rate, voices
        self._kept: OrderedDict[str, NDArray[np.int64]] = OrderedDict()

    def __call__(self, mix: Sequence[Part]) -> NDArray[np.int64]:
        """Codes [P, K] of the one voice in the mix. Raises SpecInvalid for more, CheckpointInvalid for a bad clip."""
        if len(mix) != 1:
            raise SpecInvalid("voice", "this model's voices are sounds, and sounds cannot be mixed")
        name = mix[0].name
        if name not in self._kept:
            self._kept[name] = prompt_codes(self._encoder, self._clip(name), self._rate)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

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


def clip_prompts(codec: Codec, voices: Voices) -> ClipPrompts | None:
    """The prompts of voices that are sound files; None where the voices are of another kind or there is none."""
    if voices.files_are_sounds and isinstance(codec, VoiceEncoder):
        return ClipPrompts(codec, codec.sample_rate, voices)
    return None
