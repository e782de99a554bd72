"""Ranks that are debugged as one: commands move all of them in lockstep, a point at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.debugger.activation import Node
from opstep.runtime.debugger.checks import Problem, Stop
from opstep.runtime.debugger.debugger import Debugger
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.meeting import Waiting
from opstep.runtime.debugger.ranks.world import RankDoor, World
from opstep.runtime.debugger.reloading import Reloaded, replace_program, replayed
from opstep.runtime.debugger.runner import UNSEEN
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.mesh import Mesh

if TYPE_CHECKING:
    from opstep.runtime.debugger.goto import Target
    from opstep.runtime.debugger.host import Host
    from opstep.runtime.debugger.runner import Moves

PASSING = ("step", "end", "entry", "goto", "restart", "waiting")  # others go on, to their own stops


@dataclass
class Lockstep:
    """`members`: the ranks, in order; `streams`: of each; `alone`: whether commands move one rank,
    the others stay. `current`: the rank that stopped last, or that one looks at; `stops`: where the
    last command left each rank that it moved.
    """

    world: World
    streams: int
    members: list[RankDebugger] = field(default_factory=list)
    alone: bool = False
    current: int = 0
    stops: Mapping[int, Stop] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world.stack = lambda rank: Debugger.stack(self.members[rank])

    def thread(self, rank: int, stream: int = 0) -> int:
        """The number of a stream of a rank among the threads."""
        return rank * self.streams + stream

    def at(self, thread: int) -> tuple[RankDebugger, int | None]:
        """The rank of a thread, and its stream where there are several. Raises `InputError`."""
        rank, stream = divmod(thread, self.streams)
        if not 0 <= rank < len(self.members):
            raise InputError(f"there is no thread {thread}")
        return self.members[rank], stream if self.streams > 1 else None

    # --- going ---

    def drive(self, current: RankDebugger, moves: Callable[[Debugger], Moves], alone: bool) -> Stop:
        """Moves ranks in turn, each by a point, until all have stopped, or one for a reason that
        stops all.
        """
        mailbox, reason = current._mailbox, "step"
        mailbox.pausing.clear()
        taking = [current] if alone or self.alone else self.members
        running = {m.rank: moves(m) for m in taking}
        stops: dict[int, Stop] = {}
        waiting: dict[int, str] = {}
        unseen: set[int] = set()
        while running and not any(map(_stops_all, stops.values())):
            moved = False
            waiting = {}
            if (mailbox.calls or mailbox.pausing.is_set()) and mailbox.serve():
                reason = "pause"
                break
            for rank, one in list(running.items()):
                try:
                    found = next(one)
                except StopIteration as end:
                    stops[rank] = end.value
                    del running[rank]
                else:
                    unseen.discard(rank)
                    if found is UNSEEN:
                        unseen.add(rank)
                    elif isinstance(found, Waiting):
                        waiting[rank] = found.diagnostics[0].message
                        continue
                moved = True
            if not moved:
                break
        for rank, one in running.items():
            try:
                next(one) if rank in unseen else one.close()
            except StopIteration as end:
                stops[rank] = end.value
                continue
            one.close()
            stream = self.members[rank].stop_point.stream()
            told = ("waiting", waiting[rank]) if rank in waiting else (reason, "")
            stops[rank] = Stop(*told, stream)
        if waiting and not any(map(_stops_all, stops.values())):
            self._look_for_deadlock(current.rank, stops)
        return self.stopped(current.rank, stops)

    def _look_for_deadlock(self, current: int, stops: dict[int, Stop]) -> None:
        found = self.world.deadlock(current)
        if found is None:
            return
        member = self.members[found.rank]
        text, cursor = found.error.diagnostics[0].message, member.machine.history.cursor
        problem = Problem("deadlock", text, None, cursor, found.error)
        stream = member.stop_point.stream()
        stops[found.rank] = Stop("exception", "deadlock", stream, (), problem)

    def stopped(self, current: int, stops: Mapping[int, Stop]) -> Stop:
        """All stand: gives the stop that is told, with the number of its thread."""
        for rank, stop in stops.items():
            member = self.members[rank]
            member.machine.executor.settle()
            member.stands(stop._replace(thread=self.thread(rank, stop.thread)))
        self.stops = stops
        chosen = self._chosen(current, stops)
        hits = dict.fromkeys(n for r in (chosen, *stops) for n in stops[r].hits)
        self.current = chosen
        told = stops[chosen]._replace(
            hits=tuple(hits), thread=self.thread(chosen, stops[chosen].thread)
        )
        return self.members[chosen].stands(told)

    def _chosen(self, current: int, stops: Mapping[int, Stop]) -> int:
        """The rank whose stop is told: one that stopped all, else one that has not ended."""
        order = [r for r in (current, *stops) if r in stops]
        urgent = [r for r in order if _stops_all(stops[r])]
        going = [r for r in order if stops[r].reason != "end"]
        return (urgent or going or order)[0]

    def return_to(self, places: Mapping[int, tuple[Any, int, bool]]) -> None:
        """After a change of the past: each rank back to where it stood, as far as the others come:
        a location, its position, and whether behind the op there.
        """
        moved = True
        while moved:
            before = [m.machine.history.cursor for m in self.members]
            for rank, (location, position, _) in places.items():
                self.members[rank].machine.run_to(location, position)
            moved = before != [m.machine.history.cursor for m in self.members]
        for rank, (location, _, after_op) in places.items():
            member = self.members[rank]
            same = member.machine.history.location() == location
            member.stop_point.after_op = after_op and same

    def places(self) -> dict[int, tuple[Any, int, bool]]:
        """Where each rank stands."""
        found = {}
        for member in self.members:
            history = member.machine.history
            found[member.rank] = history.location(), history.cursor, member.stop_point.after_op
        return found


def _stops_all(stop: Stop) -> bool:
    return stop.reason not in PASSING or stop.exception is not None


class RankDebugger(Debugger):
    """One rank's, of several that share breakpoints. What moves it moves all, in lockstep, unless
    `group.alone`. Threads are numbered over all ranks.
    """

    def __init__(
        self, group: Lockstep, rank: int, host: Host, graph: str, arrays: Sequence[np.ndarray],
        types: Sequence[Any], names: Sequence[str], **options: Any,
    ):  # fmt: skip
        self.group = group
        self.rank = rank
        self.label = f"rank {rank}: "
        first = group.members[0] if group.members else None
        super().__init__(
            host, graph, arrays, types, names, door=RankDoor(group.world, rank), beside=first,
            **options,
        )  # fmt: skip
        group.members.append(self)
        group.world.machines.append(self.machine)

    def _output(self, text: str, frame: Frame | None) -> None:
        """To who listens to rank 0."""
        self.group.members[0].on_output(f"{self.label}{text}", frame)

    # --- where it stands ---

    def stands(self, stop: Stop) -> Stop:
        return self._stopped(stop)

    def threads(self) -> list[tuple[int, str]]:
        """All streams of all ranks."""
        group = self.group
        if group.streams == 1:
            return [(m.rank, f"rank {m.rank}") for m in group.members]
        pairs = [(m.rank, s) for m in group.members for s in range(group.streams)]
        return [(group.thread(r, s), f"rank {r} stream {s}") for r, s in pairs]

    def at(self, thread: int) -> Debugger:
        """The debugger of a thread's rank."""
        return self.group.at(thread)[0]

    def of(self, frame: Frame) -> RankDebugger:
        """The debugger of a frame's rank."""
        door = frame.machine.door
        return self if door is None else self.group.members[door.rank]

    def results(self) -> dict[str, np.ndarray]:
        """Of the first rank that has ended, and of others where they have other bits."""
        members = [m for m in self.group.members if m.machine.history.finished]
        found: dict[str, np.ndarray] = {}
        for member in members:
            for name, array in member.result().items():
                if member is members[0]:
                    found[name] = array
                elif name not in found or array.tobytes() != found[name].tobytes():
                    found[f"{name} (rank {member.rank})"] = array
        return found

    @property
    def view(self) -> str:
        return self._view

    @view.setter
    def view(self, view: str) -> None:
        for member in self.group.members:
            member.show(view)

    def stack(self, thread: int | None = None) -> list[Frame]:
        """Of a thread of any rank; of this rank without one."""
        if thread is None:
            return super().stack()
        member, stream = self.group.at(thread)
        return Debugger.stack(member, stream)

    # --- commands ---

    def go(
        self, command: str, thread: int | None = None, granularity: str = "statement",
        alone: bool = False,
    ) -> Stop:  # fmt: skip
        """Of all ranks, but for `alone`. `thread`: the rank that one looks at, and its stream."""
        member, stream = (self, None) if thread is None else self.group.at(thread)
        moves = lambda one: one.moves(command, stream, granularity)  # noqa: E731
        return self.group.drive(member, moves, alone)

    def _driven(self, moves: Callable[[Debugger], Moves], alone: bool = False) -> Stop:
        return self.group.drive(self, moves, alone)

    def restart(self) -> Stop:
        self.group.world.begin_anew()
        for member in self.group.members:
            member._begin_anew()
        return self.start()

    def set(
        self, frame: Frame, name: str, array: np.ndarray, part: np.ndarray | None = None
    ) -> Node:
        """On the rank of the frame; the whole of what ranks have parts of, on those. What other
        ranks had of that is computed again, too.
        """
        places, rank = self.group.places(), self.of(frame).rank
        shard = frame.machine.host.shards.get(name) if frame.value(name) is None else None
        shares: dict[int, Any] = {rank: (...,)}
        if shard is not None and array.shape == shard.whole.shape:
            shares = {member: shard.part(member) for member in shard.group.members(rank)}
        for member, index in shares.items():
            its = None if part is None else part[index]
            if its is None or its.any():
                there = frame if member == rank else self.group.world.frame_of(member, frame)
                Debugger.set(self.group.members[member], there, name, array[index], its)
        self.group.return_to(places)
        return frame.lookup(name) or Node(frame.machine.types[0], name)

    def reload(self) -> Reloaded:
        """All ranks go on with the file as it is now."""
        members = self.group.members
        stood = {m: (m.stop_point.stack(), m.machine.history.cursor) for m in members}
        hosts = {m: m.host.reload() for m in members}
        for member, host in hosts.items():
            machine = member.machine
            host.plan_for(machine.graph, machine.types, machine.policy)
        dropped: dict[str, None] = {}
        for member in sorted(members, key=lambda m: m.turn):  # who is behind takes others back
            member.stop_point.after_op = False
            dropped |= dict.fromkeys(replace_program(member.machine, hosts[member]))
        self._replay({m: replayed(m.machine, stood[m][1], stood[m][0]) for m in members})
        moved = [b for m in members for b in m._read_lines()]
        machines = [m.machine for m in members]
        hits, lookups = (sum(counts) for counts in zip(
            *((o.memo_hits, o.memo_lookups) for o in machines), strict=True))  # fmt: skip
        text = f"kept {hits} of {lookups} values"
        stops = {m.rank: Stop("restart", text, m.stop_point.stream()) for m in members}
        self.group.stopped(self.rank, stops)
        return Reloaded(hits, lookups, moved, list(dropped))

    def _replay(self, running: dict[RankDebugger, Generator[bool, None, None]]) -> None:
        """In turn, as long as one of them goes on."""
        moved = True
        while moved:
            moved = False
            for member, one in list(running.items()):
                found = next(one, None)
                if found is None:
                    del running[member]
                moved = moved or found is not False
        for one in running.values():
            one.close()

    @property
    def turn(self) -> int:
        """The step that it is in."""
        here = self.stop_point.point_or_last()
        activation = here[0] if here else None
        while activation is not None and activation.parent is not None:
            activation = activation.parent
        return activation.turn if activation is not None else 0

    # --- going elsewhere ---

    def goto_targets(self, path: str, line: int) -> list[Target]:
        for member in self._others():
            Debugger.goto_targets(member, path, line)
        return super().goto_targets(path, line)

    def goto(self, number: int) -> Stop:
        """All ranks go there that can."""
        stops = {self.rank: super().goto(number)}
        for member in self._others():
            if member.can_go(number):
                stops[member.rank] = Debugger.goto(member, number)
        return self.group.stopped(self.rank, stops)

    def stand_at(self, problem: Problem) -> Stop:
        """On this rank; the others stay."""
        return self.group.stopped(self.rank, {self.rank: super().stand_at(problem)})

    def stand_behind(self, node: Node, problem: Callable[[int], Problem]) -> Stop:
        """On the rank that has computed it; the others stay."""
        activation = node.home[0] if node.home else None
        owner = next(
            (m for m in self.group.members if activation and m.host is activation.host), self
        )
        stop = Debugger.stand_behind(owner, node, problem)
        return self.group.stopped(owner.rank, {owner.rank: stop})

    def restart_frame(self, frame: Frame) -> Stop:
        """Of all ranks that are in the same call."""
        stops = {}
        for member in [self, *self._others()]:
            own = self.group.world.frame_of(member.rank, frame)
            if own.depth == frame.depth and own.graph is frame.graph:
                stops[member.rank] = Debugger.restart_frame(member, own)
        return self.group.stopped(self.rank, stops)

    def _others(self) -> list[RankDebugger]:
        return [] if self.group.alone else [m for m in self.group.members if m is not self]


def lockstep(mesh: Mesh, streams: int) -> Lockstep:
    """For ranks that are added."""
    return Lockstep(World(mesh), max(streams, 1))
