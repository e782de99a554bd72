"""Servers for this machine alone, and the browser that looks at them."""

from __future__ import annotations

import errno
import socket
import webbrowser
from contextlib import suppress

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Wording

HOST = "127.0.0.1"
ANOTHER = Wording("give another ", Argument("port"), "; without, a free one is found")


def listening(port: int, first: int = 0) -> socket.socket:
    """A socket that listens on loopback: on `port`, or where that is 0 on `first` or a free one.

    Raises `InputError` where the port asked for cannot be had.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((HOST, port or first))
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                raise
            listener.bind((HOST, 0))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        message = f"port {port} is in use" if taken else f"port {port}: {reason}"
        raise InputError(message, hint=ANOTHER) from None
    return listener


def open_browser(address: str) -> bool:
    """Opens a browser with windows, where there is one: those of a terminal would take it."""
    with suppress(webbrowser.Error):
        if type(webbrowser.get()) is webbrowser.GenericBrowser:
            return False
    return webbrowser.open(address)
