"""The tracks of one run in a timeline, and what its records become there.

    opstep run 1: main (1f2e3d4c)   the run; the viewer sorts them by name
      host                          steps, and in them launches, control flow, waits
      CPU                           the device
        stream 0 …                  ops, with their kernels' times, and waits for streams
        CPU memory                  bytes of temporary tensors

What is known of a record before it comes is made into a template, once for all records alike. In
times that are equal, the engine goes by the order of packets: in each record that is the order in
which things were done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.op import Ref
from opstep.runtime.plan.plan import Plan
from opstep.runtime.recording import (
    FILL,
    Activation,
    GraphLaunch,
    HostRecord,
    Launch,
    Layout,
    StreamRecord,
)
from opstep.trace.arguments import Ops, launched
from opstep.trace.perfetto import (
    Double,
    Interned,
    Template,
    counter,
    encode,
    event,
    track,
)
from opstep.trace.sink import Run, RunEnd, StepDone

_MEMORY_RANK = 1000  # behind the streams


class _Made(NamedTuple):
    """A template; `pick` has for each packet which of the record's times it gets. `work`: f64[n,
    2], rows and their flops or bytes, whose rate is told.
    """

    template: Template
    pick: np.ndarray
    slices: int
    flows: int  # that begin
    work: np.ndarray | None = None


class _Packets:
    """Packets under construction, each with the index of its time."""

    def __init__(self) -> None:
        self.packets: list[Any] = []
        self.pick: list[int] = []

    def add(self, pair: tuple[Any, Any], index: int) -> None:
        """A slice whose times are the record's pair `index`."""
        self.packets += pair
        self.pick += [2 * index, 2 * index + 1]

    def around(self, pair: tuple[Any, Any], index: int) -> None:
        """A slice around all that is there."""
        self.packets = [pair[0], *self.packets, pair[1]]
        self.pick = [2 * index, *self.pick, 2 * index + 1]

    def made(self, work: Sequence[tuple[int, int]] | None = None) -> _Made:
        figures = None if work is None else np.array(work, np.float64).reshape(-1, 2)
        flows = sum(len(p.track_event.flow_ids) for p in self.packets)
        pick = np.array(self.pick, np.int64)
        return _Made(Template(self.packets), pick, len(self.packets) // 2, flows, figures)


class RunTracks:
    """Makes a run's packets, as bytes. `uuids` are numbers for tracks; `number` tells the runs of a
    file apart, from 1.
    """

    def __init__(self, run: Run, number: int, interned: Interned, uuids: Iterator[int]):
        self.run = run
        self.slices = self.flows = 0
        self.described: list[Any] = []  # packets of tracks that the file has not got
        self._ops = Ops(run)
        self._interned = interned
        self._uuids = uuids
        self._streams: dict[int, int] = {}  # uuids of their tracks
        self._made: dict[tuple, _Made] = {}
        self._main: Plan | None = None  # of the steps' own activation
        self._describe(number)

    def _describe(self, number: int) -> None:
        info = self.run.info
        root, self._host, self._device, self._memory = (next(self._uuids) for _ in range(4))
        device, unit = info.title or info.device.upper(), counter(unit="UNIT_SIZE_BYTES")
        self.described += [
            track(root, f"opstep run {number}: {info.graph} ({self.run.key})", number),
            track(self._host, "host", 0, root),
            track(self._device, device, 1, root),
            track(self._memory, f"{device} memory", _MEMORY_RANK, self._device, counter=unit),
        ]

    def _track(self, stream: int) -> int:
        if stream not in self._streams:
            uuid = self._streams[stream] = next(self._uuids)
            self.described.append(track(uuid, f"stream {stream}", stream, self._device))
        return self._streams[stream]

    # --- records ---

    def stream(self, record: StreamRecord) -> bytes:
        """Ops and waits of one stream in an activation."""
        activation = record.activation
        made = self._find(activation, ("stream", record.stream), self._ops_and_waits)
        assert made.work is not None
        took = np.maximum(record.times[:, 1] - record.times[:, 0], 1)
        rates = made.work[:, 1] / took[made.work[:, 0].astype(np.int64)]
        filled = self._fill(activation, made, [record.times, record.waits], rates)
        moves = [] if record.moves is None else record.moves.tolist()
        return filled + b"".join(self._moved(activation, record.stream, *move) for move in moves)

    def _moved(
        self, activation: Activation, stream: int, start: int, end: int, nbytes: int, kind: int
    ) -> bytes:
        """A copy or a fill."""
        made = self._find(activation, ("move", stream, kind, nbytes), self._move)
        return self._fill(activation, made, [np.array([[start, end]])], [nbytes / (end - start)])

    def _move(self, activation: Activation, stream: int, kind: int, nbytes: int) -> _Made:
        out = _Packets()
        arguments = self._ops.ids(activation) | {"bytes": nbytes, "GB/s": Double(0)}
        name = "fill" if kind == FILL else "copy"
        out.add(self._interned.slice(self._track(stream), name, "move", arguments), 0)
        return out.made()

    def host(self, record: HostRecord) -> bytes:
        """What the host did in an activation; where that was called, a slice around all of it."""
        activation = record.activation
        times = np.concatenate([record.launches, record.syncs, record.calls])
        if activation.caller is None:
            self._main = activation.plan
        if not len(times):
            return b""
        order = np.lexsort((times[:, 1], times[:, 0]))
        made = self._find(activation, ("host", *order.tolist()), self._host_work)
        whole = np.array([[times[:, 0].min(), times[:, 1].max()]])
        return self._fill(activation, made, [times, whole])

    def _find(self, activation: Activation, what: tuple, make: Callable[..., _Made]) -> _Made:
        """The template of a record. Layouts are compared by what they hold: with fresh allocation
        each step has its own.
        """
        layout, caller = activation.layout, activation.caller
        called = None
        if caller is not None:
            called = self.run.first_op(caller.plan) + activation.call
        live = 0 if caller is None else self._ops.live(caller, activation.call)
        parts = (layout.launches, layout.waits, layout.syncs, layout.calls, *layout.rows)
        held = tuple(tuple(part) for part in parts)
        key = (self.run.first_op(layout.plan), called, live, what, held)
        if key not in self._made:
            self._made[key] = make(activation, *what[1:])
        return self._made[key]

    def _fill(self, activation: Activation, made: _Made, times, rates=()) -> bytes:
        self.slices += made.slices
        self.flows += made.flows
        return made.template.fill(
            np.concatenate(times).ravel()[made.pick],
            numbers=(activation.step, activation.number, activation.turn),
            flow=activation.number + 1,  # no flow is 0
            doubles=rates,
        )

    # --- templates of streams ---

    def _ops_and_waits(self, activation: Activation, stream: int) -> _Made:
        layout, out = activation.layout, _Packets()
        waits = [w for w in layout.waits if w.stream == stream]
        rows = layout.rows[stream]
        flows = _Flows(layout, stream)
        work: list[tuple[int, int]] = []
        following = 0  # the first wait that is still to come
        for row in range(len(rows) + 1):
            while following < len(waits) and waits[following].row <= row:
                source = waits[following].source
                out.add(self._wait(activation, stream, source), len(rows) + following)
                following += 1
            if row < len(rows):
                out.add(self._op(activation, stream, row, flows, work), row)
        return out.made(work)

    def _wait(self, activation: Activation, stream: int, source: int) -> tuple[Any, Any]:
        arguments = self._ops.ids(activation) | {"source": source}
        name = f"wait for stream {source}"
        return self._interned.slice(self._track(stream), name, "wait", arguments)

    def _op(
        self,
        activation: Activation,
        stream: int,
        row: int,
        flows: _Flows,
        work: list[tuple[int, int]],
    ) -> tuple[Any, Any]:
        """An op's slice; adds the work whose rates it tells."""
        plan = activation.plan
        step = activation.layout.rows[stream][row]
        info = self._ops.info(plan, step)
        kernels = activation.layout.kernels.get((stream, row), ())
        rates = {}
        if info.flops:
            rates["GFLOP/s"] = Double(len(work))
            work.append((row, info.flops))
        if kernels or not info.flops:
            rates["GB/s"] = Double(len(work))
            work.append((row, info.nbytes))
        return self._interned.slice(
            self._track(stream),
            self._ops.name(plan, step),
            "op",
            self._ops.arguments(activation, step) | rates | launched(kernels),
            flows=flows.out[row],
            ends=flows.into[row],
            counter=(self._memory, self._ops.live(activation, step)),
        )

    # --- templates of the host ---

    def _host_work(self, activation: Activation, *order: int) -> _Made:
        layout, out = activation.layout, _Packets()
        pairs = [self._launch(activation, launch) for launch in layout.launches]
        pairs += [self._sync(activation, stream) for stream in layout.syncs]
        pairs += [self._call(activation, step) for step in layout.calls]
        for index in order:
            out.add(pairs[index], index)
        if activation.caller is not None:
            out.around(self._turn(activation), len(pairs))
        return out.made()

    def _launch(self, activation: Activation, launch: Launch | GraphLaunch) -> tuple[Any, Any]:
        layout, plan = activation.layout, activation.plan
        parts = launch.parts if isinstance(launch, GraphLaunch) else (launch,)
        steps = [step for s, lo, hi in parts for step in layout.rows[s][lo:hi]]
        names = [self._ops.value(plan, step) for step in sorted(steps)]
        what = "launch graph" if isinstance(launch, GraphLaunch) else "launch"
        name = f"{what} {names[0]}" if names else what
        if len(names) > 1:
            name = f"{what} {names[0]} … {names[-1]} ({len(names)} ops)"
        streams = [stream for stream, lo, hi in parts if hi > lo]
        about = {"stream": streams[0]} if len(streams) == 1 else {"streams": len(streams)}
        arguments = self._ops.ids(activation) | about | {"ops": len(steps)}
        flows = [_first_flow(layout, s) + row for s, lo, hi in parts for row in range(lo, hi)]
        return self._interned.slice(self._host, name, "launch", arguments, flows=flows)

    def _sync(self, activation: Activation, stream: int) -> tuple[Any, Any]:
        arguments = self._ops.ids(activation) | {"stream": stream}
        name = f"wait for stream {stream}"
        return self._interned.slice(self._host, name, "sync", arguments)

    def _call(self, activation: Activation, step: int) -> tuple[Any, Any]:
        name = self._ops.name(activation.plan, step)
        arguments = self._ops.arguments(activation, step)
        return self._interned.slice(self._host, name, "control", arguments)

    def _turn(self, activation: Activation) -> tuple[Any, Any]:
        """One run of a graph that control flow called: ``body improve``."""
        caller = activation.caller
        assert caller is not None
        called, graph = caller.plan.steps[activation.call], activation.plan.graph
        roles = [k for k, v in called.attrs.items() if isinstance(v, Ref) and v.name == graph]
        name = f"{roles[0] if len(roles) == 1 else called.op.name} {graph}"
        arguments = self._ops.ids(activation) | {
            "op": self.run.first_op(caller.plan) + activation.call,
            "site": self._ops.info(caller.plan, activation.call).site,
            "graph": graph,
        }
        return self._interned.slice(self._host, name, "turn", arguments)

    # --- steps ---

    def step(self, done: StepDone) -> bytes:
        """The slice around a step, and the end of what its temporary tensors held."""
        arguments = self._about_run() | {"step": done.step}
        if done.metrics:
            arguments["metrics"] = dict(done.metrics)
        begin, end = self._interned.slice(
            self._host, f"step {done.step}", "step", arguments, once=True
        )
        begin.timestamp, end.timestamp = done.began_ns, done.ended_ns
        self.slices += 1
        return encode([begin, end, self._freed(done.ended_ns)])

    def end(self, end: RunEnd) -> bytes:
        """Where a run failed: with what."""
        if end.error is None:
            return b""
        words = str(end.error) or type(end.error).__name__
        name = f"failed: {words.splitlines()[0]}"
        if isinstance(end.error, KeyboardInterrupt):
            name = "interrupted"
        arguments = {"run": self.run.key, "error": words}
        failed = event(self._host, "TYPE_INSTANT")
        failed.timestamp = end.ended_ns
        self._interned.describe(failed.track_event, name, "error", arguments)
        return encode([failed, self._freed(end.ended_ns)])

    def forget(self) -> None:
        """No more records come."""
        self._made.clear()

    def _about_run(self) -> dict[str, Any]:
        info, policy = self.run.info, self.run.info.policy
        found = {"run": self.run.key, "graph": info.graph, "device": info.device}
        found |= {"streams": policy.streams, "alloc": policy.alloc, "fill": policy.fill}
        found |= {"sync": policy.sync, "seed": info.seed}
        found |= {"note": info.note} if info.note else {}
        found |= {"arena_bytes": self._main.arena} if self._main else {}
        workspace = self.run.files.get("workspace")
        return found | ({"workspace": str(workspace)} if workspace else {})

    def _freed(self, time: int) -> Any:
        """No memory is held any more."""
        packet = event(self._memory, "TYPE_COUNTER")
        packet.timestamp = time
        packet.track_event.counter_value = 0
        return packet


def _first_flow(layout: Layout, stream: int) -> int:
    """Flows from launches to ops are numbered by the ops' rows, stream after stream; behind them
    come those of waits.
    """
    return sum(len(rows) for rows in layout.rows[:stream])


class _Flows:
    """Flows that begin at the ops of a stream (`out`), and those that come to them, by row."""

    def __init__(self, layout: Layout, stream: int):
        first, waits = _first_flow(layout, stream), _first_flow(layout, len(layout.rows))
        self.out: list[list[int]] = [[] for _ in layout.rows[stream]]
        self.into = [[first + row] for row in range(len(layout.rows[stream]))]
        for k, wait in enumerate(layout.waits):
            if wait.source_row < 0 or wait.row >= len(layout.rows[wait.stream]):
                continue  # nothing came before, or nothing comes after
            if wait.source == stream:
                self.out[wait.source_row].append(waits + k)
            if wait.stream == stream:
                self.into[wait.row].append(waits + k)
