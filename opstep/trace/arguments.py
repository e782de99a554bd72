"""What a timeline tells of an op: its name, and the arguments of its slices.

Arguments are called like the workspace's columns, and hold the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from opstep.runtime.plan.plan import Plan
from opstep.runtime.recording import Activation, Kernel, live_bytes
from opstep.trace.describe import OpInfo, describe
from opstep.trace.sink import Run
from opstep.trace.template import Number

# Arguments that differ from record to record, as numbers of a template.
STEP, ACTIVATION, TURN = Number(0), Number(1), Number(2)


class Ops:
    """The ops of one run."""

    def __init__(self, run: Run):
        self.run = run
        self._infos: dict[int, OpInfo] = {}
        self._live: dict[int, dict[int, int]] = {}

    def info(self, plan: Plan, step: int) -> OpInfo:
        number = self.run.op(plan, step)
        if number not in self._infos:
            self._infos[number] = describe(plan, plan.steps[step])
        return self._infos[number]

    def value(self, plan: Plan, step: int) -> str:
        """What an op is called among others: its first result, or what it does."""
        info = self.info(plan, step)
        return info.results[0][0] if info.results else info.name

    def name(self, plan: Plan, step: int) -> str:
        """``c = conv2d``; in calls ``block:up1/c = conv2d``."""
        info = self.info(plan, step)
        calls = info.frame.partition("/")[2]
        name = f"{info.results[0][0]} = {info.name}" if info.results else info.name
        return f"{calls}/{name}" if calls else name

    def ids(self, activation: Activation) -> dict[str, Any]:
        """Where in the run: what the rows of a workspace are found by."""
        found: dict[str, Any] = {"run": self.run.key, "step": STEP}
        if activation.caller is not None:
            found |= {"activation": ACTIVATION, "turn": TURN}
        return found

    def arguments(self, activation: Activation, step: int) -> dict[str, Any]:
        """Of one of the activation's ops."""
        info = self.info(activation.plan, step)
        types = {
            "operands": json.dumps(info.operands, ensure_ascii=False) if info.operands else "",
            "results": ", ".join(f"{name}: {t}" for name, t in info.results),
            "attrs": json.dumps(info.attrs) if info.attrs else "",
        }
        return {
            **self.ids(activation),
            "op": self.run.op(activation.plan, step),
            "name": info.name,
            "site": info.site,
            "frame": info.frame,
            "graph": info.graph,
            "file": info.file,
            "line": info.line,
            "statement": info.statement,
            **{k: text for k, text in types.items() if text},
            "bytes": info.nbytes,
            "flops": info.flops,
        }

    def live(self, activation: Activation, step: int) -> int:
        """Bytes of temporary tensors while an op runs, those of its callers with it."""
        plan, caller = activation.plan, activation.caller
        if id(plan) not in self._live:
            self._live[id(plan)] = live_bytes(plan)
        own = self._live[id(plan)].get(step, 0)
        return own + (self.live(caller, activation.call) if caller else 0)


def launched(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """What an op launched on a GPU: ``kernels.1.grid``, from 1 in order."""
    if not kernels:
        return {}
    launches = {
        str(k): {
            "name": kernel.name,
            "grid": _sizes(kernel.grid),
            "block": _sizes(kernel.block),
            "registers": kernel.registers,
            "static_shared": kernel.static_shared,
            "dynamic_shared": kernel.dynamic_shared,
        }
        for k, kernel in enumerate(kernels, 1)
    }
    return {"kernels": launches}


def _sizes(sizes: tuple[int, int, int]) -> str:
    """``64 x 8``"""
    shown = list(sizes)
    while len(shown) > 1 and shown[-1] == 1:
        shown.pop()
    return " x ".join(map(str, shown))
