"""``python -m opstep.cli.launched DOOR debug train.py …``: a script that a debug adapter has
launched, maybe in a terminal. It connects to the adapter's socket first, and tells its exit code
last.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opstep.dap.wire import Wire

adapter: Wire | None = None  # what `opstep debug` is told by, in place of a terminal


def entry() -> int:
    """One command line of ``opstep``; gives its exit code."""
    global adapter
    connection = _connection(sys.argv[1])
    if connection is None:
        print("the debugger that launched this is gone", file=sys.stderr)
        return 1
    from opstep.cli.main import main
    from opstep.dap.wire import wire_of
    from opstep.editors.wire import Gone

    adapter = wire_of(connection)
    code = main(sys.argv[2:])
    with suppress(Gone):
        adapter.write({"type": "event", "event": "exited", "body": {"exitCode": code}})
    return code


def _connection(door: str) -> socket.socket | None:
    """To the adapter, if it is this user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{door}")
    except OSError:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return connection if struct.unpack("iII", credentials)[1] == os.getuid() else None


if __name__ == "__main__":
    from opstep.cli import launched  # that others import

    sys.exit(launched.entry())
