"""debugpy in a Python program that listens, from the first client on that debugs it as Python."""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.dap.python.environment import CONFIGURATION, EXTENSION
from opstep.dap.registry import DapError
from opstep.dap.relay import Relay, connection_to
from opstep.editors.server import LOOPBACK

if TYPE_CHECKING:
    from opstep.dap.session import Session


class PythonRelay(Relay):
    """To debugpy's adapter, for the proxy that is this session's client."""

    def forward(self, message: dict[str, Any]) -> None:
        super().forward(message)
        if message.get("command") == "configurationDone" and self._session.attached is not None:
            self._session.attached.configured()


def debug_python(session: Session, message: dict[str, Any]) -> None:
    """From now on the client of `session` talks to debugpy. Raises `DapError`."""
    session.current = message
    relay = PythonRelay(session, connection_to(LOOPBACK[0], _port()))
    session.relay(relay)
    relay.start(message)


@cache
def _port() -> int:
    """At which debugpy's adapter takes clients of this process."""
    threading.current_thread().pydev_do_not_trace = True  # pyright: ignore
    os.environ[CONFIGURATION] = json.dumps({"folders": _folders()})
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else it warns of frozen modules
    sys.path.insert(0, str(EXTENSION))
    try:
        import debugpy

        return debugpy.listen((LOOPBACK[0], 0))[1]
    except Exception as error:  # another debugger has the process
        raise DapError(f"debugpy cannot begin in the program: {error}", show=True) from None
    finally:
        os.environ.pop(CONFIGURATION, None)
        if str(EXTENSION) in sys.path:
            sys.path.remove(str(EXTENSION))


def _folders() -> list[str]:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return [os.getcwd(), *([str(Path(path).absolute().parent)] if path else [])]
