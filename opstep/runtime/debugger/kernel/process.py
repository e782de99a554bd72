"""The process in which a kernel is debugged, seen from the one that wants it."""

from __future__ import annotations

import importlib.util
import json
import selectors
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opstep.runtime.debugger.kernel.job import Job
from opstep.runtime.ir.errors import DeviceError

PATIENCE = 180.0  # seconds until the child must listen
CHILD = Path(__file__).with_name("child.py")

# Steps pass through what lies between kernels: the simulator, and what runs a block in it.
RUNTIME = Path(__file__).parents[2]
RULES = [
    {"path": f"{RUNTIME}/**", "include": False},
    *({"module": name, "include": False} for name in ("numba", "threading")),
]


class KernelProcess:
    """A child that listens on ``host:port`` for a debugger of Python (DAP, by debugpy), and runs
    one block once it has come. `close` ends it; so does the end of this process.

    Raises `InputError` where the job cannot be run, `DeviceError` where the child cannot.
    `cancelled` is asked now and then while it starts, and may raise.
    """

    host = "127.0.0.1"

    def __init__(self, job: Job, cancelled: Callable[[], Any] = lambda: None):
        _need_extra()
        job.check()
        self.label = job.label
        self._folder = tempfile.TemporaryDirectory(prefix="opstep-kernel-")
        folder = Path(self._folder.name)
        try:
            job.write(folder / "job.npz")
            (folder / "folders.json").write_text(json.dumps(sys.path), encoding="utf-8")
            self._stderr = (folder / "stderr").open("w+b")
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "frozen_modules=off", str(CHILD), str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, cwd=folder,
            )  # fmt: skip
        except BaseException:
            self._folder.cleanup()
            raise
        self._end = weakref.finalize(self, _end, self._process, self._stderr, self._folder)
        try:
            self.port = self._handshake(cancelled)
        except BaseException:
            self.close()
            raise

    @property
    def configuration(self) -> dict[str, Any]:
        """What a client attaches with: of debugpy, but for the type."""
        return {
            "type": "opstep-kernel",
            "request": "attach",
            "name": self.label,
            "connect": {"host": self.host, "port": self.port},
            "justMyCode": False,
            "redirectOutput": True,
            "subProcess": False,
            "rules": RULES,
        }

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended, after so many seconds at most."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Ends it, if it has not ended."""
        self._end()

    def __enter__(self) -> KernelProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handshake(self, cancelled: Callable[[], Any]) -> int:
        """The port."""
        line = self._first_line(cancelled)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"error": self._last_words() or "the child said nothing"}
        if "port" not in answer:
            hint = "pip install 'opstep[cuda,debug]'" if "No module" in answer["error"] else ""
            raise DeviceError(f"{self.label} cannot be run: {answer['error']}", hint=hint)
        self.label = answer["label"]
        return int(answer["port"])

    def _first_line(self, cancelled: Callable[[], Any]) -> bytes:
        output = self._process.stdout
        assert output is not None
        until = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not selector.select(0.1):
                cancelled()
                if time.monotonic() > until:
                    raise DeviceError(f"{self.label}: the child is not ready in {PATIENCE:.0f} s")
        return output.readline()

    def _last_words(self) -> str:
        self._process.wait(5)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _end(process: subprocess.Popen, stderr: Any, folder: tempfile.TemporaryDirectory) -> None:
    """Its standard input ends, so it goes; if it does not, it is killed."""
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    stderr.close()
    folder.cleanup()


def _need_extra() -> None:
    """The packages of the extra `debug`."""
    missing = [name for name in ("debugpy", "greenlet") if importlib.util.find_spec(name) is None]
    if missing:
        raise DeviceError(
            f"kernels are debugged with {' and '.join(missing)}, not installed here",
            hint="pip install 'opstep[debug]'",
        )
