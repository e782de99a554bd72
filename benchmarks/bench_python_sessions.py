"""Sessions on a Python script: what opstep adds to debugpy's adapter, from a key to the line."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench_dap import Client
from harness import SCRATCH, Measured, at_most, bench

from opstep.dap.python.launching import adapter_command
from opstep.dap.wire import Wire

ROUNDS, STEPS = 5, 20
OURS = [sys.executable, "-m", "opstep", "dap", "--script"]
TRAIN = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
losses = []
for step in range(100):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
STOP = TRAIN.splitlines().index("    optimizer.zero_grad()") + 1


class Session:
    """Of an adapter, at its first stop in the training loop, after `first` seconds."""

    def __init__(self, adapter: list[str]):
        path = SCRATCH / "train.py"
        path.write_text(TRAIN, encoding="utf-8")
        start = time.perf_counter()
        self.process = subprocess.Popen(
            adapter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdin and self.process.stdout
        self.client = Client(Wire(self.process.stdout, self.process.stdin))
        filters = [] if adapter == adapter_command() else ["nan-origin"]
        self.thread = self._begin(path, filters)
        self.first = time.perf_counter() - start

    def _begin(self, path: Path, filters: list[str]) -> int:
        client = self.client
        client.request("initialize", adapterID="bench", linesStartAt1=True, pathFormat="path")
        client.send("launch", program=str(path), cwd=str(path.parent), console="internalConsole")
        client.event("initialized")
        client.request("setBreakpoints", source={"path": str(path)}, breakpoints=[{"line": STOP}])
        client.request("setExceptionBreakpoints", filters=["uncaught", *filters])
        client.request("configurationDone")
        return client.event("stopped")["threadId"]

    def step(self, command: str) -> float:
        """Seconds until the stop, and the line that is shown."""
        start = time.perf_counter()
        self.client.send(command, threadId=self.thread)
        self.client.event("stopped")
        self.client.request("stackTrace", threadId=self.thread, levels=1)
        return time.perf_counter() - start

    def close(self) -> None:
        self.client.send("disconnect", terminateDebuggee=True)
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


def over_debugpy(ours: Callable[[Session], float], peers: Callable[[Session], float]) -> Measured:
    """What ours takes longer, in ms: the median of sessions by turns."""
    found = []
    for _ in range(ROUNDS):
        each = []
        for adapter, asked in ((OURS, ours), (adapter_command(), peers)):
            session = Session(adapter)
            each.append(asked(session))
            session.close()
        found.append(each[0] - each[1])
    return Measured(statistics.median(found) * 1e3, None, "ms")


def steps(session: Session, *commands: str) -> float:
    """The last of these commands, the median of some."""
    taken = []
    for _ in range(STEPS):
        *_, last = [session.step(command) for command in commands]
        taken.append(last)
    return statistics.median(taken)


@bench("Python: F5 to the first stop, more than debugpy takes", bars=[at_most(1000, "ms")])
def first_stop():
    return over_debugpy(lambda s: s.first, lambda s: s.first)


@bench("Python: a step, more than debugpy takes", bars=[at_most(30, "ms")])
def a_step():
    return over_debugpy(lambda s: steps(s, "next"), lambda s: steps(s, "next"))


@bench("Python: a step back, more than a step of debugpy's", bars=[at_most(60, "ms")])
def a_step_back():
    return over_debugpy(lambda s: steps(s, "next", "next", "stepBack"), lambda s: steps(s, "next"))
