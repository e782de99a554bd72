"""Packets under construction: what is alike in many records, and how their figures go into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from opstep.runtime.recording import Layout
from opstep.trace.perfetto import encode
from opstep.trace.template import Template

if TYPE_CHECKING:
    from opstep.trace.arguments import Ops
    from opstep.trace.perfetto import Interned
    from opstep.trace.sink import Run


class Tracks(Protocol):
    """What the packets of a run's streams and of its host are made with."""

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
    bytes, whose rate is told.
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
    """Flows from launches to ops are numbered by the ops' rows, stream after stream; behind them
    come those of waits.
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
