"""What a stream did, as slices: calls, in them ops, statistics of their results, waits."""

from __future__ import annotations

from typing import Any

from opstep.runtime.recording import Activation
from opstep.trace.arguments import launched
from opstep.trace.describe import call_name, frame_path
from opstep.trace.packets import Flows, Packets, PacketTemplate, Tracks
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
        """An op's slice; adds the work whose rates it tells."""
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
