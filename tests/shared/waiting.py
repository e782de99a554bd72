"""Waiting for what another process or thread brings about."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 240  # of a machine with much else to do


def wait_until(holds: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Fails if that takes too long."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it has not come about"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether the process has not ended, waited for or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def cpu_seconds(pid: int) -> float:
    """What the process has used so far: progress that a busy machine does not feign."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files(pid: int) -> set[str]:
    """Paths of what a process has open."""
    found = set()
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):
            with suppress(OSError):
                found.add(os.readlink(f"{folder}/{number}"))
    return found
