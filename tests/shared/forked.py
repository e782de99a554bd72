"""Command lines in children forked from this process, with bounds of time and of memory."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MOST_CPU_S = 10
MOST_BYTES = 1 << 30  # of resident memory, beyond the parent's
PATIENCE_S = 120.0  # for one that waits, and takes no time of a processor
_LOOK_S = 0.002
_PAGE = resource.getpagesize()


class Ended(NamedTuple):
    """`code`: the exit code, negative for a signal; `bytes`: of resident memory, at most, beyond
    the parent's; `told`: what it wrote.
    """

    code: int
    seconds: float
    bytes: int
    told: str

    @property
    def fault(self) -> str:
        """What is wrong with how it ended; "" for an error that was reported."""
        if self.bytes > MOST_BYTES:
            return f"took {self.bytes / 1e6:,.0f} MB"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name} after {self.seconds:.1f} s"
        if "Traceback" in self.told or "internal error" in self.told or self.code == 70:
            return "an internal error"
        return ""


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def run(lines: Sequence[Sequence[str]], output: Path) -> Ended:
    """Runs ``opstep …`` for each of these lines in a fork of this process, until one fails."""
    own = _resident(os.getpid())
    pid = os.fork()
    if not pid:
        _child(lines, output)
    began, most = time.monotonic(), 0
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        most = max(most, _resident(pid) - own)
        if most > MOST_BYTES or time.monotonic() - began > PATIENCE_S:
            os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)
    most = max(most, usage.ru_maxrss * 1024 - own)
    seconds = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, seconds, most, output.read_text("utf-8", "replace"))


def _child(lines: Sequence[Sequence[str]], output: Path) -> None:
    code = 70
    try:
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(to, 1)
        os.dup2(to, 2)
        os.chdir(output.parent)
        import sys

        sys.stdout = os.fdopen(1, "w", errors="replace")
        sys.stderr = os.fdopen(2, "w", errors="replace")
        from opstep.cli.main import main

        for line in lines:
            code = main(list(line))
            if code:
                break
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
