"""The tracks of one run in a timeline, and what its records become there.

    opstep run 1: main (1f2e3d4c)   the run; the viewer sorts them by name
      host                          steps, and in them launches, control flow, waits; between them
                                    planning, compiling, recording
      CPU                           the device
        stream 0 …                  calls, and in them ops, with their kernels' times, and
                                    statistics after them; waits for streams
        CPU memory                  bytes of temporary tensors
      recorder                      what the recording's own thread writes

What is known of a record before it comes is made into a template, once for all records alike
(`streams`, `hosts`). In times that are equal, the engine goes by the order of packets: in each
record that is the order in which things were done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from opstep.runtime.plan.plan import Plan
from opstep.runtime.recording import FILL, Activation, HostRecord, Overhead, StreamRecord
from opstep.trace.free import FreeRecord, slices_of
from opstep.trace.packets import STEP, Ops, Packets, PacketTemplate
from opstep.trace.perfetto import Interned, counter, encode, event, track
from opstep.trace.sink import Run, RunEnd, StepDone
from opstep.trace.streams import host_work, ops_and_waits
from opstep.trace.template import Double, digits

_MEMORY_RANK = 1000  # after the streams
_NO_TIMES = np.zeros((0, 2), np.int64)
_MOST_TEMPLATES = 64  # templates found by where records come from: each keeps a layout alive

Record = StreamRecord | HostRecord | FreeRecord | StepDone | Overhead


class RunTracks:
    """Makes a run's packets, as bytes. `uuids` are numbers for tracks; `number` counts the
    runs of a file, from 1.
    """

    def __init__(self, run: Run, number: int, interned: Interned, uuids: Iterator[int]):
        self.run = run
        self.slices = self.flows = 0
        self.described: list[Any] = []  # packets of tracks that the file has not got
        self.ops = Ops(run)
        self.interned = interned
        self._uuids = uuids
        self._streams: dict[int, int] = {}  # uuids of their tracks
        self._templates: dict[tuple, PacketTemplate] = {}
        self._near: dict[
            tuple, tuple[Any, PacketTemplate]
        ] = {}  # the same by identity, with what has it
        self._free: dict[tuple, PacketTemplate] = {}  # of what ran without a plan
        self._main: Plan | None = None  # of the steps' own activation
        self._describe(number)

    def _describe(self, number: int) -> None:
        info = self.run.info
        root, self.host, self._device, self.memory = (next(self._uuids) for _ in range(4))
        self._recorder, self._root = 0, root
        device, unit = info.title or info.device.upper(), counter(unit="UNIT_SIZE_BYTES")
        self.described += [
            track(root, f"opstep run {number}: {info.graph} ({self.run.key})", number),
            track(self.host, "host", 0, root),
            track(self._device, device, 1, root),
            track(self.memory, f"{device} memory", _MEMORY_RANK, self._device, counter=unit),
        ]

    def track(self, stream: int, what: str = "stream") -> int:
        if stream not in self._streams:
            uuid = self._streams[stream] = next(self._uuids)
            self.described.append(track(uuid, f"{what} {stream}", stream, self._device))
        return self._streams[stream]

    # --- records ---

    def packets(self, records: Sequence[Record]) -> list[Any]:
        """Packets of the records, in their order. Those that are alike are filled in together."""
        out: list[Any] = [None] * len(records)
        groups: dict[tuple, list[int]] = {}
        for k, record in enumerate(records):
            groups.setdefault(self._kind(record), []).append(k)
        for (kind, *_), indices in groups.items():
            filled = _FILLERS[kind](self, [records[k] for k in indices])
            for k, packet in zip(indices, filled, strict=True):
                out[k] = packet
        moved = [
            k for k, r in enumerate(records) if type(r) is StreamRecord and r.moves is not None
        ]
        for k in reversed(moved):  # a GPU reports them
            out[k + 1 : k + 1] = self._moves(records[k])
        return out

    def _moves(self, record: Any) -> list[bytes]:
        activation, stream = record.activation, record.stream
        return [self._moved(activation, stream, *move) for move in record.moves.tolist()]

    def _kind(self, record: Record) -> tuple:
        """A key of records that are alike; first, what they are."""
        match record:
            case StreamRecord():
                rest = (record.stream, record.stats_times is not None)
                return ("stream", *_origin(record.activation), *rest)
            case FreeRecord():
                return ("free", record.stream, record.ops.tobytes())
            case HostRecord():
                if record.activation.caller is None:
                    self._main = record.activation.plan
                return ("host", *_origin(record.activation), *_order_of(record))
            case StepDone():
                before = record.since_ns[0] > 0, record.step > 0
                return ("step", len(str(record.step)), record.failed, *before, *record.metrics)
            case _:
                return ("spent", record.name, record.category, record.thread)

    def _fill_streams(self, records: Sequence[StreamRecord]) -> np.ndarray:
        first = records[0]
        statistics = first.stats_times is not None
        what = ("stream", first.stream, statistics)
        make = partial(ops_and_waits, self, first.activation, first.stream, statistics)
        template = self._find(first.activation, what, make)
        times = np.array([r.times for r in records])
        others = [np.array([r.waits for r in records])]
        if statistics:
            others.append(np.array([_times(r.stats_times) for r in records]))
        rates = template.rates(times) if len(template.work) else None
        others = [part for part in others if part.shape[1]]
        every = np.concatenate([times, *others], axis=1) if others else times
        return self._fill(records, template, every, rates)

    def _fill_free(self, records: Sequence[FreeRecord]) -> Any:
        """Ops that ran without a plan, and marks among them."""
        key = self._kind(records[0])
        if key not in self._free:
            if len(self._free) >= _MOST_TEMPLATES:
                self._free.clear()
            self._free[key] = slices_of(records[0], self)
        filled = self._fill(records, self._free[key], np.array([r.times for r in records]))
        return [
            bytes(packets) + self._marked(record)
            for packets, record in zip(filled, records, strict=True)
        ]

    def _marked(self, record: FreeRecord) -> bytes:
        marks = []
        for name, at_ns in record.marks:
            mark = event(self.track(record.stream), "TYPE_INSTANT")
            mark.timestamp = at_ns
            about = {"run": self.run.key, "step": record.activation.step}
            self.interned.describe(mark.track_event, name, "mark", about)
            marks.append(mark)
        return encode(marks)

    def _fill_hosts(self, records: Sequence[HostRecord]) -> Any:
        """The host's work; around that of an activation that was called stands a slice."""
        parts = [[r.launches for r in records], [r.syncs for r in records]]
        parts.append([r.calls for r in records])
        nonempty = [np.array(part) for part in parts if len(part[0])]
        if not nonempty:
            return [b""] * len(records)
        all_times = np.concatenate(nonempty, axis=1)
        first, order = records[0].activation, _order_of(records[0])
        make = partial(host_work, self, first, order)
        template = self._find(first, ("host", order), make)
        total = np.stack([all_times[:, :, 0].min(axis=1), all_times[:, :, 1].max(axis=1)], axis=1)
        return self._fill(records, template, np.concatenate([all_times, total[:, None]], axis=1))

    def _moved(
        self, activation: Activation, stream: int, start: int, end: int, nbytes: int, kind: int
    ) -> bytes:
        """A copy or a fill."""
        make = partial(self._move, activation, stream, kind, nbytes)
        template = self._find(activation, ("move", stream, kind, nbytes), make)
        self.slices += 1
        numbers = np.array([[activation.step, activation.number, activation.turn]])
        rates = np.array([[nbytes / (end - start)]])
        filled = template.template.fill(np.array([[start, end]]), numbers, doubles=rates)
        return filled.tobytes()

    def _move(self, activation: Activation, stream: int, kind: int, nbytes: int) -> PacketTemplate:
        out = Packets()
        arguments = self.ops.ids(activation) | {"bytes": nbytes, "GB/s": Double(0)}
        name = "fill" if kind == FILL else "copy"
        out.add(self.interned.slice(self.track(stream), name, "move", arguments), 0)
        return out.template()

    def _find(
        self, activation: Activation, what: tuple, make: Callable[[], PacketTemplate]
    ) -> PacketTemplate:
        """The template of a record. Layouts are compared by what they hold: with fresh allocation
        each step has its own.
        """
        near = (*what, *_origin(activation))
        if near in self._near:
            return self._near[near][1]
        layout, caller = activation.layout, activation.caller
        called = None
        if caller is not None:
            called = self.run.op(caller.plan, activation.call)
        live = 0 if caller is None else self.ops.live(caller, activation.call)
        parts = (layout.launches, layout.waits, layout.syncs, layout.calls, *layout.rows)
        held = tuple(tuple(part) for part in (*parts, *layout.stats))
        key = (self.run.first_op(layout.plan), called, live, what, held)
        if key not in self._templates:
            self._templates[key] = make()
        if len(self._near) >= _MOST_TEMPLATES:
            self._near.clear()
        self._near[near] = activation, self._templates[key]
        return self._templates[key]

    def _fill(
        self, records: Sequence[Any], template: PacketTemplate, times: np.ndarray, rates=None
    ):
        self.slices += template.slices * len(records)
        self.flows += template.flows * len(records)
        activations = [r.activation for r in records]
        numbers = np.array([(a.step, a.number, a.turn) for a in activations], np.int64)
        flat = times.reshape(len(records), -1)
        return template.template.fill(flat, numbers, numbers[:, 1] + 1, rates)  # no flow is 0

    # --- steps, and what else the run's own thread did ---

    def _fill_steps(self, steps: Sequence[StepDone]) -> Any:
        """The slices around steps, and the end of what their temporary tensors held."""
        first = steps[0]
        if first.failed:  # its ops are there; the end of the run marks it
            return [b""] * len(steps)
        about = self._about_run()
        kind = self._kind(first)
        key = (*kind, *about)
        if key not in self._templates:
            self._templates[key] = self._step(first, about)
        self.slices += self._templates[key].slices * len(steps)
        times = [(s.began_ns, s.ended_ns, *s.since_ns, s.since_ns[1], s.began_ns) for s in steps]
        numbers = np.array([[s.step] for s in steps], np.int64)
        metrics = np.array([list(s.metrics.values()) for s in steps], np.float64)
        filled = np.array(times, np.int64)
        return self._templates[key].template.fill(filled, numbers, doubles=metrics)

    def _step(self, first: StepDone, about: dict[str, Any]) -> PacketTemplate:
        arguments, out = about | {"step": STEP}, Packets()
        ids = {"run": self.run.key, "step": STEP}
        if first.metrics:
            arguments["metrics"] = {name: Double(k) for k, name in enumerate(first.metrics)}
        slice = partial(self.interned.slice, self.host)
        if first.since_ns[0]:
            if first.step:
                out.add(slice("record", "record", ids), 1)
            what = "between steps" if first.step else "before the first step"
            out.add(slice(what, "between", ids), 2)
        name = f"step {digits(len(str(first.step)))}"
        out.add(slice(name, "step", arguments, once=True), 0)
        out.at(self._freed(), 1)
        return out.template()

    def _fill_spent(self, spent: Sequence[Overhead]) -> Any:
        """Time that went to the run, and not to its ops."""
        first = spent[0]
        key = ("spent", first.name, first.category, first.thread)
        if key not in self._templates:
            out = Packets()
            track = self.host if first.thread == "run" else self._writers()
            about = {"run": self.run.key}
            out.add(self.interned.slice(track, first.name, first.category, about), 0)
            self._templates[key] = out.template()
        self.slices += len(spent)
        times = np.array([(s.began_ns, s.ended_ns) for s in spent], np.int64)
        return self._templates[key].template.fill(times, np.zeros((len(spent), 0), np.int64))

    def _writers(self) -> int:
        """The track of the thread that writes."""
        if not self._recorder:
            self._recorder = next(self._uuids)
            self.described.append(track(self._recorder, "recorder", 2, self._root))
        return self._recorder

    # --- the end ---

    def end(self, end: RunEnd) -> bytes:
        """A mark where a run failed, with its error."""
        if end.error is None:
            return b""
        words = str(end.error) or type(end.error).__name__
        name = f"failed: {words.splitlines()[0]}"
        if end.interrupted:
            name = "interrupted"
        arguments = {"run": self.run.key, "error": words}
        failed, freed = event(self.host, "TYPE_INSTANT"), self._freed()
        failed.timestamp = freed.timestamp = end.ended_ns
        self.interned.describe(failed.track_event, name, "error", arguments)
        return encode([failed, freed])

    def forget(self) -> None:
        """No more records come."""
        self._templates.clear()
        self._near.clear()
        self._free.clear()

    def _about_run(self) -> dict[str, Any]:
        info, policy = self.run.info, self.run.info.policy
        found = {"run": self.run.key, "graph": info.graph, "device": info.device}
        found |= {"streams": policy.streams, "alloc": policy.alloc, "fill": policy.fill}
        found |= {"sync": policy.sync, "seed": info.seed}
        found |= {"arena_bytes": self._main.arena} if self._main else {}
        workspace = self.run.files.get("workspace")
        return found | ({"workspace": str(workspace)} if workspace else {})

    def _freed(self) -> Any:
        """No memory is held any more."""
        packet = event(self.memory, "TYPE_COUNTER")
        packet.track_event.counter_value = 0
        return packet


_FILLERS: dict[str, Callable[[RunTracks, Any], Any]] = {
    "stream": RunTracks._fill_streams,
    "free": RunTracks._fill_free,
    "host": RunTracks._fill_hosts,
    "step": RunTracks._fill_steps,
    "spent": RunTracks._fill_spent,
}


def _origin(activation: Activation) -> tuple[int, ...]:
    """The origin of an activation, by identity: its layout and those of its callers."""
    if activation.caller is None:
        return (id(activation.layout),)
    found = [id(activation.layout)]
    while activation.caller is not None:
        found += [activation.call, id(activation.caller.layout)]
        activation = activation.caller
    return tuple(found)


def _order_of(record: HostRecord) -> tuple[int, ...]:
    """In which order things began, and where they began at once, ended: indices of launches, then
    of waits, then of calls.
    """
    _, *parts = record
    count = sum(map(len, parts))
    if count < 2:
        return (0,) * count
    times = np.concatenate(parts)
    return tuple(np.lexsort((times[:, 1], times[:, 0])).tolist())


def _times(array: np.ndarray | None) -> np.ndarray:
    return _NO_TIMES if array is None else array
