"""Packets under construction: what is alike in many records, and how their figures go into it; the
names of ops and the arguments of their slices, which are called like the workspace's columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from opstep.runtime.plan.plan import Plan
from opstep.runtime.recording import Activation, Kernel, Layout, live_bytes
from opstep.trace.describe import OpInfo, describe
from opstep.trace.perfetto import encode
from opstep.trace.sink import Run
from opstep.trace.template import Number, Template

if TYPE_CHECKING:
    from opstep.trace.perfetto import Interned


class Tracks(Protocol):
    """The tracks, names and arguments that packets of a run's streams and host are made with."""

    run: Run
    ops: Ops
    interned: Interned
    host: int
    memory: int

    def track(self, stream: int, what: str = "stream") -> int:
        """The number of a stream's track."""
        ...


class PacketTemplate(NamedTuple):
    """A template, and how many slices and flows it has. `work`: f64[n, 2], rows and their flops or
    bytes, whose rates are shown.
    """

    template: Template
    slices: int
    flows: int  # that begin
    work: np.ndarray

    def rates(self, times: np.ndarray) -> np.ndarray:
        """f64[n, rates], of n records' times i64[n, rows, 2]."""
        rows = self.work[:, 0].astype(np.int64)
        took = np.maximum(times[:, rows, 1] - times[:, rows, 0], 1)
        return self.work[:, 1] / took


class Packets:
    """Packets under construction, each with the index of its time in a record's."""

    def __init__(self) -> None:
        self.packets: list[Any] = []
        self.pick: list[int] = []

    def add(self, pair: tuple[Any, Any], index: int) -> None:
        """A slice whose times are the record's pair `index`."""
        self.packets += pair
        self.pick += [2 * index, 2 * index + 1]

    def at(self, packet: Any, index: int) -> None:
        """A packet at the record's time `index`."""
        self.packets.append(packet)
        self.pick.append(index)

    def around(self, pair: tuple[Any, Any], index: int) -> None:
        """A slice around all that is there."""
        self.packets = [pair[0], *self.packets, pair[1]]
        self.pick = [2 * index, *self.pick, 2 * index + 1]

    def template(self, work: Sequence[tuple[int, int]] = ()) -> PacketTemplate:
        figures = np.array(work, np.float64).reshape(-1, 2)
        events = [p.track_event for p in self.packets]
        begins = [e for e in events if e.type == e.TYPE_SLICE_BEGIN]
        flows = sum(len(event.flow_ids) for event in begins)
        return PacketTemplate(
            Template(encode(self.packets), self.pick), len(begins), flows, figures
        )


def first_flow(layout: Layout, stream: int) -> int:
    """Flows from launches to ops are numbered by the ops' rows, stream after stream; those of
    waits follow.
    """
    return sum(len(rows) for rows in layout.rows[:stream])


class Flows:
    """Flows that begin at the ops of a stream (`out`), and those that come to them, by row."""

    def __init__(self, layout: Layout, stream: int):
        first, waits = first_flow(layout, stream), first_flow(layout, len(layout.rows))
        self.out: list[list[int]] = [[] for _ in layout.rows[stream]]
        self.into = [[first + row] for row in range(len(layout.rows[stream]))]
        for k, wait in enumerate(layout.waits):
            if wait.source_row < 0 or wait.row >= len(layout.rows[wait.stream]):
                continue  # nothing came before, or nothing comes after
            if wait.source == stream:
                self.out[wait.source_row].append(waits + k)
            if wait.stream == stream:
                self.into[wait.row].append(waits + k)


# --- ops, and the arguments of their slices -------------------------------------------------------


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
        """An op's name among others: its first result, or its kind."""
        info = self.info(plan, step)
        return info.results[0][0] if info.results else info.name

    def name(self, plan: Plan, step: int) -> str:
        """``c = conv2d``; in calls ``block:up1/c = conv2d``."""
        info = self.info(plan, step)
        calls = info.frame.partition("/")[2]
        name = f"{info.results[0][0]} = {info.name}" if info.results else info.name
        return f"{calls}/{name}" if calls else name

    def ids(self, activation: Activation) -> dict[str, Any]:
        """The place in the run, by which rows of a workspace are found."""
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
    """Kernels that an op launched on a GPU: ``kernels.1.grid``, from 1 in order."""
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
