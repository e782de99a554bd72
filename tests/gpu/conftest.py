"""Tests that need a GPU: `make test-gpu`. Where there is none, nothing here is collected."""

from __future__ import annotations

from opstep.runtime.device.cuda.driver.driver import driver
from opstep.runtime.ir.errors import DeviceError


def has_gpu() -> bool:
    try:
        return driver().cuDeviceGetCount() > 0
    except DeviceError:
        return False


collect_ignore_glob = [] if has_gpu() else ["test_*.py"]
