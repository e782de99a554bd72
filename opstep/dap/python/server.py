"""A server for sessions on Python scripts alone."""

from __future__ import annotations

import threading
from contextlib import suppress

from opstep.dap.python.proxy import Proxy
from opstep.dap.wire import Wire
from opstep.editors.server import standard_streams
from opstep.editors.wire import BadMessage, BrokenStream


def serve(client: Wire) -> None:
    """One session, until the client is gone or the adapter has ended."""
    proxy = Proxy(client)

    def read() -> None:
        with suppress(BrokenStream):
            while True:
                try:
                    message = client.read()
                except BadMessage as error:
                    proxy.output(f"opstep cannot read a message: {error}")
                    continue
                if message is None:
                    break
                proxy.forward(message)
        proxy.is_over.set()

    threading.Thread(target=read, name="opstep client", daemon=True).start()
    proxy.is_over.wait()
    proxy.close()


def serve_stdio() -> None:
    """A session on this process's standard input and output."""
    serve(Wire(*standard_streams()))
