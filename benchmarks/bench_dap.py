"""The debugger over the wire, as an editor drives it: time from a request to the event or response
that an editor waits for.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_runtime import chain
from harness import SCRATCH, Measured, at_most, bench, times_peer

from opstep.dap.server import wire_of
from opstep.dap.wire import Wire

STEPS = 300
SMALL, LARGE = 1000, 100_000  # ops
LINES = "\n".join(["def work():", *(f"    x{k} = {k} + 1" for k in range(2 * STEPS)), "work()\n"])


class Client:
    """Requests and what comes back; nothing is checked, as it would be in the time."""

    def __init__(self, wire: Wire):
        self.wire = wire
        self.passed: list[dict[str, Any]] = []  # events that came while something else was awaited

    def send(self, command: str, **arguments: Any) -> int:
        return self.wire.write({"type": "request", "command": command, "arguments": arguments})

    def _take(self) -> dict[str, Any]:
        message = self.wire.read()
        assert message is not None, "the server has closed the connection"
        return message

    def response(self, seq: int) -> Any:
        while True:
            message = self._take()
            if message.get("request_seq") == seq:
                assert message["success"], message
                return message.get("body")
            self.passed.append(message)

    def request(self, command: str, **arguments: Any) -> Any:
        return self.response(self.send(command, **arguments))

    def event(self, name: str) -> Any:
        while self.passed:
            message = self.passed.pop(0)
            if message.get("event") == name:
                return message.get("body")
        while True:
            message = self._take()
            if message.get("event") == name:
                return message.get("body")

    def begin(self, how: str, path: Path, lines: list[int], **arguments: Any) -> int:
        """initialize, launch or attach, breakpoints; the number of the thread that stops."""
        self.request("initialize", adapterID="bench", linesStartAt1=True, pathFormat="path")
        begun = self.send(how, **arguments)
        self.event("initialized")
        wanted = [{"line": line} for line in lines]
        self.request("setBreakpoints", source={"path": str(path)}, breakpoints=wanted)
        self.request("setExceptionBreakpoints", filters=[])
        self.request("configurationDone")
        stop = self.event("stopped")
        del begun
        return stop["threadId"]

    def step(self, thread: int) -> float:
        """Seconds from ``next`` to the stop behind it."""
        start = time.perf_counter()
        self.send("next", threadId=thread)
        self.event("stopped")
        return time.perf_counter() - start


@contextmanager
def served(length: int, breakpoints: int = 0) -> Iterator[tuple[Client, int]]:
    """``opstep dap`` in a process of its own, stopped at the first op of a chain of adds."""
    path = SCRATCH / f"chain{length}.opg"
    path.write_text(chain(length, 16), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "dap"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin and process.stdout
    client = Client(Wire(process.stdout, process.stdin))
    lines = [length - k for k in range(breakpoints)]  # far from where it steps
    try:
        yield (
            client,
            client.begin(
                "launch", path, lines, program=str(path), inputs="random", stopOnEntry=True
            ),
        )
        client.send("disconnect", terminateDebuggee=True)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


@contextmanager
def debugpy() -> Iterator[tuple[Client, int]]:
    """Python under debugpy, stopped at the first of many lines."""
    path = SCRATCH / "lines.py"
    path.write_text(LINES, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--wait-for-client",
         str(path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        connection = connected(port)
        with connection:
            client = Client(wire_of(connection))
            yield client, client.begin("attach", path, [2], justMyCode=False)
    finally:
        process.kill()
        process.wait()


def connected(port: int) -> socket.socket:
    """A connection, once somebody listens."""
    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def median(client: Client, thread: int, count: int = STEPS) -> float:
    """Of the seconds that steps take, once warm."""
    for _ in range(20):
        client.step(thread)
    return statistics.median(client.step(thread) for _ in range(count))


@bench(
    "debugger: a step over the wire, 1,000 ops", peer="debugpy, a line of Python",
    bars=[at_most(2, "ms"), times_peer(1.0)],
)  # fmt: skip
def step_over_the_wire():
    with served(SMALL) as ours, debugpy() as peers:
        return Measured(median(*ours) * 1e3, median(*peers) * 1e3, "ms")


@bench(
    "debugger: a step over the wire, 100,000 ops, 100 breakpoints", peer="1,000 ops, none",
    bars=[times_peer(1.3)],
)  # fmt: skip
def step_in_a_large_graph():
    with served(LARGE, 100) as large, served(SMALL) as small:
        return Measured(median(*large) * 1e3, median(*small) * 1e3, "ms")


@bench(
    "debugger: stack, scopes and variables at 10,000 live tensors, over the wire",
    bars=[at_most(20, "ms")],
)  # fmt: skip
def looking_around():
    """What an editor asks for at each stop: the stack, its scopes, a page of the values."""
    with served(LARGE) as (client, thread):
        path = SCRATCH / f"chain{LARGE}.opg"
        client.request("opstep/runTo", source={"path": str(path)}, line=10_010)
        client.event("stopped")
        taken = []
        for _ in range(20):
            client.step(thread)
            start = time.perf_counter()
            frame = client.request("stackTrace", threadId=thread, levels=20)["stackFrames"][0]
            scopes = client.request("scopes", frameId=frame["id"])["scopes"]
            for scope in scopes[:2]:
                reference = scope["variablesReference"]
                client.request("variables", variablesReference=reference, start=0, count=100)
            taken.append(time.perf_counter() - start)
        return Measured(statistics.median(taken) * 1e3, None, "ms")


def seconds_to_values(folder: str) -> float:
    """From the start of ``opstep dap`` to a stop at the entry with values, as F5 asks for it.
    Kernels are kept in `folder`.
    """
    path = Path(__file__).parent.parent / "examples" / "entropy.opg"
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "dap"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"OPSTEP_CACHE": folder},
    )  # fmt: skip
    assert process.stdin and process.stdout
    client = Client(Wire(process.stdout, process.stdin))
    try:
        sizes = {"N": 4, "K": 5}
        thread = client.begin(
            "launch", path, [], program=str(path), inputs="random", symbols=sizes, stopOnEntry=True
        )
        frame = client.request("stackTrace", threadId=thread, levels=20)["stackFrames"][0]
        for scope in client.request("scopes", frameId=frame["id"])["scopes"]:
            client.request("variables", variablesReference=scope["variablesReference"])
        taken = time.perf_counter() - start
        for _ in range(4):  # so that the kernels are there the next time
            client.step(thread)
        return taken
    finally:
        client.send("disconnect", terminateDebuggee=True)
        process.wait(60)


@bench("debugger: F5 to the entry with values, no kernel compiled", bars=[at_most(4, "s")])
def cold_start():
    with tempfile.TemporaryDirectory() as folder:
        return Measured(seconds_to_values(folder), None, "s")


@bench("debugger: F5 to the entry with values", bars=[at_most(1, "s")])
def warm_start():
    with tempfile.TemporaryDirectory() as folder:
        seconds_to_values(folder)
        return Measured(min(seconds_to_values(folder) for _ in range(5)), None, "s")
