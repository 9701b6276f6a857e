"""What several tests of the speech runtime start from."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint in the published layout; tests must not write into it."""
    from runtime.make_checkpoint import make

    directory = tmp_path_factory.mktemp("small-checkpoint")
    make(directory, "small", seed=5)
    return directory
