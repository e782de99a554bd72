"""Tests that need a GPU: `make test-gpu`. Where there is none, nothing here is collected."""

from __future__ import annotations

import sys
from pathlib import Path

from opstep.runtime.device.cuda.driver import driver
from opstep.runtime.ir.errors import DeviceError

sys.path.append(str(Path(__file__).parents[1] / "plan"))


def has_gpu() -> bool:
    try:
        return driver().cuDeviceGetCount() > 0
    except DeviceError:
        return False


collect_ignore_glob = [] if has_gpu() else ["test_*.py"]
