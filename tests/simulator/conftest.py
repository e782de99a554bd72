"""Tests in numba's CUDA simulator, in a run of their own: numba reads at import whether it is to
simulate, and what it simulates it does not compile.

    NUMBA_ENABLE_CUDASIM=1 pytest tests/simulator

In every other run nothing of this folder is collected.
"""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else ["test_*.py"]
