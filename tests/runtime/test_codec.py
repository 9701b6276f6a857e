"""Which codec a checkpoint asks for."""

from __future__ import annotations

import pytest

from runtime.errors import CheckpointInvalid
from runtime.model.codec import load_codec


def test_an_unknown_codec_type_names_the_known_ones() -> None:
    with pytest.raises(CheckpointInvalid, match=r"config\.json: codec\.type: .* mimi, spectral, is 'wavenet'"):
        load_codec({}, {"type": "wavenet"}, n_q=8)
