"""Owns under which names this node's models were pulled, kept beside their state so that a restart forgets none.

One small file a model: it goes when the model does. A name means one model, the one pulled last under it.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from bdn.digest import Digest
from bdn.nvme_model import write_whole

FILE = "names.json"
NAMES_MAX = 64  # A model pulled under ever new tags must not grow a file for ever; the oldest names go first.


class Names:
    """Blocking calls; one caller at a time."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._names: dict[Digest, tuple[str, ...]] = {}

    def load(self, model: Digest) -> None:
        """A file that is absent, torn or foreign only costs the names in it."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            value = json.loads((self._state / model.hex / FILE).read_bytes())
            if isinstance(value, list) and all(isinstance(n, str) for n in value):
                self._names[model] = tuple(value[-NAMES_MAX:])

    def of(self, model: Digest) -> tuple[str, ...]:
        """The latest last."""
        return self._names.get(model, ())

    def note(self, model: Digest, name: str) -> None:
        """From now on it is this model's and no other's. A disk that takes no name does not fail a pull."""
        had = {digest: names for digest, names in self._names.items() if name in names}
        if self.of(model)[-1:] == (name,) and len(had) == 1:
            return
        for other, names in had.items():
            if other != model:
                self._put(other, tuple(n for n in names if n != name))
        self._put(model, (*(n for n in self.of(model) if n != name), name)[-NAMES_MAX:])

    def forget(self, model: Digest) -> None:
        self._names.pop(model, None)

    def _put(self, model: Digest, names: tuple[str, ...]) -> None:
        self._names[model] = names
        with contextlib.suppress(OSError):
            write_whole(self._state / model.hex / FILE, json.dumps(names, ensure_ascii=False).encode())
