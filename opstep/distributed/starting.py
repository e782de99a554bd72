"""Ranks on this machine: as many processes of one command line, which end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf

from opstep.distributed.place import STORE

MOST = 256  # processes, each of which imports PyTorch
MISSED = 3  # the exit code of a rank that waited for one which is gone
TOLD_S = 5.0  # for the others to tell what they were at, once a rank has ended with an error
_ENDED_S = 2.0  # between SIGTERM and SIGKILL
_LOOK_S = 0.05


class Ended(Exception):
    """A rank that ended before its time. `code`: its exit code, negative for a signal; `told`: what
    each rank wrote to standard error, by its number.
    """

    def __init__(self, rank: int, code: int, told: Mapping[int, str]):
        super().__init__(rank, code)
        self.rank = rank
        self.code = code
        self.told = told

    @property
    def how(self) -> str:
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"was killed by signal {-self.code}"


def start(command: Sequence[str], ranks: int) -> None:
    """Runs a command line as so many ranks, and waits for them. Rank 0 has the standard output of
    this process. Raises `Ended`.
    """
    with tempfile.TemporaryDirectory(prefix="opstep-ranks-") as folder:
        store = os.path.join(folder, "meeting")
        processes: list[subprocess.Popen[str]] = []
        told: dict[int, list[str]] = {}
        readers = []
        try:
            for rank in range(ranks):
                process = _process(command, rank, ranks, store)
                processes.append(process)
                told[rank] = []
                reader = threading.Thread(target=_read, args=(process, rank, told[rank]))
                reader.start()
                readers.append(reader)
            failed = None
            try:
                ended_well = _all_end_well(processes)
            except KeyboardInterrupt:  # once: they end in their own order; twice: at once
                ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # they inherit that
                for process in processes:
                    process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
                _wait(processes)
                raise
            if not ended_well:
                _wait(processes, TOLD_S)
                failed = _to_blame(processes)
        finally:
            _end(processes)
            for reader in readers:
                reader.join()
        if failed is not None:
            code = processes[failed].returncode
            raise Ended(failed, code, {r: "".join(lines) for r, lines in told.items()})


def _process(command: Sequence[str], rank: int, ranks: int, store: str) -> subprocess.Popen[str]:
    own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    environment = {**os.environ, **{k: str(v) for k, v in own.items()}, STORE: store}
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        process_group=0,  # a Ctrl-C reaches this process, which tells each once
        stdout=None if rank == 0 else subprocess.DEVNULL, errors="replace",
    )  # fmt: skip


def _read(process: subprocess.Popen[str], rank: int, lines: list[str]) -> None:
    """Keeps what a rank writes to standard error; of rank 0 it is shown at once."""
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if rank == 0:
            sys.stderr.write(line)
            sys.stderr.flush()


def _all_end_well(processes: Sequence[subprocess.Popen[str]]) -> bool:
    """Returns once that is known: all have ended, or one of them with an error."""
    while True:
        codes = [p.poll() for p in processes]
        if any(codes):
            return False
        if None not in codes:
            return True
        time.sleep(_LOOK_S)


def _to_blame(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Of the ranks that have ended with an error the first that did not only miss another: one that
    was killed, or one with another error.
    """
    codes = {r: p.returncode for r, p in enumerate(processes) if p.returncode}
    return min(codes, key=lambda r: (codes[r] > 0, codes[r] == MISSED, r))


def _wait(processes: Sequence[subprocess.Popen[str]], seconds: float = inf) -> None:
    end = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(None if end == inf else max(0.0, end - time.monotonic()))


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Ends those that still run."""
    for stop in (subprocess.Popen.terminate, subprocess.Popen.kill):
        left = [p for p in processes if p.poll() is None]
        for process in left:
            stop(process)
        _wait(left, _ENDED_S)
