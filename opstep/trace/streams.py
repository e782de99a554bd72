"""Slices of a stream (calls, in them ops, statistics of their results, waits) and of the host
(launches, waits, control flow and its turns).
"""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.op import Ref
from opstep.runtime.recording import Activation, GraphLaunch, Launch
from opstep.trace.describe import call_name, frame_path
from opstep.trace.packets import Flows, Packets, PacketTemplate, Tracks, first_flow, launched
from opstep.trace.template import Double


def ops_and_waits(
    tracks: Tracks, activation: Activation, stream: int, statistics: bool
) -> PacketTemplate:
    """`statistics`: whether they were taken. A record's times are those of its ops, of its waits,
    and then of its statistics.
    """
    return _Stream(tracks, activation, stream, statistics).template()


class _Stream:
    """The packets of one stream's records."""

    def __init__(self, tracks: Tracks, activation: Activation, stream: int, statistics: bool):
        layout = activation.layout
        self.tracks = tracks
        self.activation = activation
        self.plan = activation.plan
        self.stream = stream
        self.rows = layout.rows[stream]
        self.waits = [w for w in layout.waits if w.stream == stream]
        offset = len(self.rows) + len(self.waits)
        groups = dict.fromkeys(step for step, _ in layout.stats[stream]) if statistics else {}
        self.statistics_rows = {step: offset + k for k, step in enumerate(groups)}
        self.flows = Flows(layout, stream)
        self.out = Packets()
        self.work: list[tuple[int, int]] = []
        self.calls: list[tuple[int, Any]] = []  # that are open: frame, the packet of its end
        self.last = 0  # index of the latest end

    def template(self) -> PacketTemplate:
        following = 0  # the first wait that is still to come
        for row, step in enumerate(self.rows):
            frames = self._frames(step)
            self._leave(frames)
            while following < len(self.waits) and self.waits[following].row <= row:
                self._wait(following)
                following += 1
            self._enter(frames, 2 * row)
            self.out.add(self._op(row, step), row)
            self.last = 2 * row + 1
            if step in self.statistics_rows:
                self._statistics(step)
        self._leave([])
        for k in range(following, len(self.waits)):
            self._wait(k)
        for step in list(self.statistics_rows):  # of results that no kernel wrote
            self._statistics(step)
        return self.out.template(self.work)

    # --- calls ---

    def _frames(self, step: int) -> list[int]:
        """The calls that lead to an op, the outermost first."""
        found, frame = [], self.plan.steps[step].frame
        while self.plan.frames[frame].parent >= 0:
            found.append(frame)
            frame = self.plan.frames[frame].parent
        return found[::-1]

    def _leave(self, frames: list[int]) -> None:
        """Ends the calls that none of these is in."""
        while self.calls and [f for f, _ in self.calls] != frames[: len(self.calls)]:
            self.out.at(self.calls.pop()[1], self.last)

    def _enter(self, frames: list[int], index: int) -> None:
        for frame in frames[len(self.calls) :]:
            begin, end = self._call(frame)
            self.out.at(begin, index)
            self.calls.append((frame, end))

    def _call(self, frame: int) -> tuple[Any, Any]:
        plan, path = self.plan, frame_path(self.plan, frame)
        callee, parent = plan.frames[frame], plan.frames[plan.frames[frame].parent]
        source = parent.source
        arguments = self.tracks.ops.ids(self.activation) | {
            "frame": path,
            "graph": callee.graph.name.text,
            "file": str(source.path) if source else "",
            "line": source.locate(callee.statement.span.start)[0]
            if source and callee.statement
            else 0,
        }
        track, name = self.tracks.track(self.stream), call_name(plan, frame)
        return self.tracks.interned.slice(track, name, "call", arguments)

    # --- what is in them ---

    def _wait(self, k: int) -> None:
        source = self.waits[k].source
        arguments = self.tracks.ops.ids(self.activation) | {"source": source}
        track, name = self.tracks.track(self.stream), f"wait for stream {source}"
        pair = self.tracks.interned.slice(track, name, "wait", arguments)
        self.out.add(pair, len(self.rows) + k)

    def _statistics(self, step: int) -> None:
        ops, index = self.tracks.ops, self.statistics_rows.pop(step)
        about = {"op": self.tracks.run.op(self.plan, step)}
        about |= {"site": ops.info(self.plan, step).site}
        arguments, track = ops.ids(self.activation) | about, self.tracks.track(self.stream)
        pair = self.tracks.interned.slice(track, "statistics", "statistics", arguments)
        self.out.add(pair, index)
        self.last = 2 * index + 1

    def _op(self, row: int, step: int) -> tuple[Any, Any]:
        """An op's slice; adds the work whose rates it shows."""
        ops, plan = self.tracks.ops, self.plan
        info = ops.info(plan, step)
        kernels = self.activation.layout.kernels.get((self.stream, row), ())
        rates = {}
        if info.flops:
            rates["GFLOP/s"] = Double(len(self.work))
            self.work.append((row, info.flops))
        if kernels or not info.flops:
            rates["GB/s"] = Double(len(self.work))
            self.work.append((row, info.nbytes))
        return self.tracks.interned.slice(
            self.tracks.track(self.stream),
            ops.name(plan, step),
            "op",
            ops.arguments(self.activation, step) | rates | launched(kernels),
            flows=self.flows.out[row],
            ends=self.flows.into[row],
            counter=(self.tracks.memory, ops.live(self.activation, step)),
        )


# --- what the host did in an activation: launches, waits, control flow ----------------------------


def host_work(tracks: Tracks, activation: Activation, order: tuple[int, ...]) -> PacketTemplate:
    """`order`: of what was done; a record's times are those of its launches, syncs and calls, and
    then of all of it.
    """
    layout, out = activation.layout, Packets()
    pairs = [_launch(tracks, activation, launch) for launch in layout.launches]
    pairs += [_sync(tracks, activation, stream) for stream in layout.syncs]
    pairs += [_call(tracks, activation, step) for step in layout.calls]
    for index in order:
        out.add(pairs[index], index)
    if activation.caller is not None:
        out.around(_turn(tracks, activation), len(pairs))
    return out.template()


def _launch(
    tracks: Tracks, activation: Activation, launch: Launch | GraphLaunch
) -> tuple[Any, Any]:
    layout, plan, ops = activation.layout, activation.plan, tracks.ops
    parts = launch.parts if isinstance(launch, GraphLaunch) else (launch,)
    steps = [step for s, lo, hi in parts for step in layout.rows[s][lo:hi]]
    names = [ops.value(plan, step) for step in sorted(steps)]
    what = "launch graph" if isinstance(launch, GraphLaunch) else "launch"
    name = f"{what} {names[0]}" if names else what
    if len(names) > 1:
        name = f"{what} {names[0]} … {names[-1]} ({len(names)} ops)"
    streams = [stream for stream, lo, hi in parts if hi > lo]
    about = {"stream": streams[0]} if len(streams) == 1 else {"streams": len(streams)}
    arguments = ops.ids(activation) | about | {"ops": len(steps)}
    flows = [first_flow(layout, s) + row for s, lo, hi in parts for row in range(lo, hi)]
    return tracks.interned.slice(tracks.host, name, "launch", arguments, flows=flows)


def _sync(tracks: Tracks, activation: Activation, stream: int) -> tuple[Any, Any]:
    arguments = tracks.ops.ids(activation) | {"stream": stream}
    return tracks.interned.slice(tracks.host, f"wait for stream {stream}", "sync", arguments)


def _call(tracks: Tracks, activation: Activation, step: int) -> tuple[Any, Any]:
    name = tracks.ops.name(activation.plan, step)
    arguments = tracks.ops.arguments(activation, step)
    return tracks.interned.slice(tracks.host, name, "control", arguments)


def _turn(tracks: Tracks, activation: Activation) -> tuple[Any, Any]:
    """One run of a graph that control flow called: ``body improve``."""
    caller = activation.caller
    assert caller is not None
    called, graph = caller.plan.steps[activation.call], activation.plan.graph
    roles = [k for k, v in called.attrs.items() if isinstance(v, Ref) and v.name == graph]
    name = f"{roles[0] if len(roles) == 1 else called.op.name} {graph}"
    arguments = tracks.ops.ids(activation) | {
        "op": tracks.run.op(caller.plan, activation.call),
        "site": tracks.ops.info(caller.plan, activation.call).site,
        "graph": graph,
    }
    return tracks.interned.slice(tracks.host, name, "turn", arguments)
