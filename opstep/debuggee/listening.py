"""``python -m opstep.debuggee.listening --listen PORT [--wait] [-m] SCRIPT [ARGUMENTS]``: runs a
script that clients attach to, as ``python -m debugpy --listen`` does, with what opstep adds.

The first line on standard error ends with the port.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from opstep.dap.python.environment import environment


def main(words: list[str]) -> None:
    """Becomes debugpy."""
    port = words[1] if words[1] != "0" else str(_free_port())
    waits = words[2] == "--wait"
    script = words[2 + waits :]
    _announce(int(port))
    folders = [os.getcwd()]
    if script[0] != "-m":
        folders.append(str(Path(script[0]).absolute().parent))
    own = ["--listen", f"127.0.0.1:{port}", *["--wait-for-client"] * waits]
    added = environment(os.environ.get("PYTHONPATH"), folders, {})
    command = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", *own, *script]
    os.execve(sys.executable, command, {**os.environ, **added})


def _announce(port: int) -> None:
    """In a process that is nobody's child, once debugpy listens, which this process becomes."""
    becomes = os.getpid()
    if os.fork():
        os.wait()
        return
    if os.fork() == 0:
        while _exists(becomes) and not _listens(port):
            time.sleep(0.02)
        if _listens(port):
            print(f"listening on 127.0.0.1:{port}", file=sys.stderr, flush=True)
    os._exit(0)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _listens(port: int) -> bool:
    """Whether somebody does. To connect would be to attach."""
    table = Path("/proc/net/tcp")
    return not table.exists() or f":{port:04X} 00000000:0000 0A" in table.read_text()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


if __name__ == "__main__":
    main(sys.argv[1:])
