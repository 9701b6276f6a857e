"""The models in these tests are small: a second thread only spins (measured: 30x the CPU time on a busy machine)."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
