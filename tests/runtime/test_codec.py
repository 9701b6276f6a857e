"""Which codec a checkpoint asks for."""

from __future__ import annotations

import pytest

from runtime.errors import NameUnknown
from runtime.model.codec import load_codec


def test_an_unknown_codec_type_names_the_known_ones() -> None:
    with pytest.raises(NameUnknown, match=r"unknown codec type 'wavenet'; there are: mimi, spectral"):
        load_codec({}, {"type": "wavenet"}, n_q=8)
