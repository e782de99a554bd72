"""Steps of a Python session into functions that were compiled to graphs: the client opens a session
of its own for the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opstep.dap.python.channel import Refused, Unreachable

if TYPE_CHECKING:
    from opstep.dap.python.proxy import Proxy

NOT_OPENED = (
    "The line calls a function of jax.jit. To debug it as a graph, attach to port {port} of this "
    "machine, and step in again."
)


class Graphs:
    def __init__(self, proxy: Proxy):
        self._proxy = proxy
        self._is_entering = False

    def step_in(self, then: Callable[[], None]) -> None:
        """`then` steps, after the client has a session on the graph that the line calls, if one."""
        try:
            port = self._proxy.helper("graphs", name="enter")
        except (Refused, Unreachable):
            port = 0
        self._is_entering = True
        if port and self._proxy.greeting.get("supportsStartDebuggingRequest"):
            configuration = {"type": "opstep", "name": "Graphs of jax.jit", "port": port}
            asked = {"request": "attach", "configuration": configuration | {"stopOnEntry": True}}
            self._proxy.ask_client("startDebugging", asked, lambda answer: self._wait(answer, then))
            return
        if port:
            self._proxy.output(NOT_OPENED.format(port=port))
        then()

    def _wait(self, answer: dict[str, Any], then: Callable[[], None]) -> None:
        def wait() -> None:
            with suppress(Refused, Unreachable):
                if answer.get("success"):
                    self._proxy.helper("graphs", name="wait")
            then()

        threading.Thread(target=wait, name="opstep graphs", daemon=True).start()

    def stopped(self) -> None:
        """In Python: nothing is entered any more."""
        if self._is_entering:
            self._is_entering = False
            with suppress(Refused, Unreachable):
                self._proxy.helper("graphs", name="leave")
