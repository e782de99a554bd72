"""``opstep debug`` at a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import re
import select
import subprocess
import sys
import termios
import time

from waiting import PATIENCE_S


class Terminal:
    """A session at a pseudo-terminal."""

    def __init__(self, folder, *arguments):
        self.master, slave = os.openpty()
        environment = os.environ | {
            "XDG_STATE_HOME": str(folder / "state"), "TERM": "xterm", "COLUMNS": "100",
            "LINES": "40", "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "opstep", "debug", *map(str, arguments)], cwd=folder,
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=control,
        )  # fmt: skip
        os.close(slave)
        self.seen = self.raw = ""

    def expect(self, pattern: str, seconds: float = PATIENCE_S) -> str:
        """What is printed until a pattern comes; it and what is before it are taken."""
        until = time.monotonic() + seconds
        while True:
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]", "", self.seen)
            found = re.search(pattern, text)
            if found:
                self.seen = text[found.end() :]
                return text[: found.end()]
            ready, _, _ = select.select([self.master], [], [], max(until - time.monotonic(), 0))
            assert ready, f"no {pattern!r} in {text!r}"
            data = os.read(self.master, 65536).decode("utf-8", "replace")
            if "\x1b[6n" in data:  # where is the cursor?
                os.write(self.master, b"\x1b[1;1R")
            self.seen += data
            self.raw += data

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            os.close(self.master)


def control() -> None:
    """The slave is the controlling terminal, so that Ctrl-C becomes a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
