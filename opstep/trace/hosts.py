"""What the host did in an activation, as slices: launches, waits, control flow and its turns."""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.op import Ref
from opstep.runtime.recording import Activation, GraphLaunch, Launch
from opstep.trace.packets import Packets, PacketTemplate, Tracks, first_flow


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
