"""Where the ranks of a run stand, where they have met, and who waits for whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from opstep.runtime.debugger.activation import OP, Node
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.meeting import Meeting, MetProducer, Waiting
from opstep.runtime.expressions import ExpressionError
from opstep.runtime.ir.diagnostics import Diagnostic, Note, OpstepError, did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.plan.plan import Plan, Step
from opstep.runtime.plan.rank_traces import Talk, talk_of


class Deadlock(NamedTuple):
    """`rank` waits for ever, and `ranks` with it."""

    rank: int
    ranks: tuple[int, ...]
    error: OpstepError


class World:
    """All ranks of a mesh. `machines`: of each; `stack`: where one stands."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.machines: list[Machine] = []
        self.stack: Callable[[int], list[Frame]] = lambda rank: []
        self._met: list[deque[Meeting]] = [deque() for _ in range(mesh.ranks)]
        self._talks: dict[int, tuple[Step, Talk]] = {}  # by ids of steps
        self._cutting = False

    def begin_anew(self) -> None:
        for met in self._met:
            met.clear()
        self._talks.clear()

    # --- meeting ---

    def meet(
        self, rank: int, plan: Plan, step: Step, operands: tuple[Node | None, ...]
    ) -> MetProducer:
        """See `Door`."""
        if not step.op.traits.collective:  # the number of the rank
            meeting = Meeting(step, {rank: 0}, (), ())
            return MetProducer(plan, step, operands, meeting, step.attrs["over"].index(rank))
        meeting = self._open(rank) or self._formed(rank, plan, step)
        return MetProducer(plan, step, operands, meeting, list(meeting.positions).index(rank))

    def _open(self, rank: int) -> Meeting | None:
        """The meeting that a rank is at, from which others may have gone on."""
        met, position = self._met[rank], self.machines[rank].history.frontier
        return met[-1] if met and met[-1].positions[rank] == position else None

    def _formed(self, rank: int, plan: Plan, step: Step) -> Meeting:
        """The collective that a rank is at, if all are there. Raises `Waiting`."""
        talk = self._talk(plan, step)
        partners = self._partners(rank, talk)
        missing = self._missing(rank, talk)
        if missing:
            raise Waiting(rank, talk, missing)
        operands, positions = [], {}
        for one in partners:
            machine = self.machines[one]
            here = machine.history.next_point()
            assert here is not None
            activation, point = here
            its = activation.plan.steps[point.step]
            operands += [o for o in machine.operands(activation, its) if o is not None]
            positions[one] = machine.history.frontier
        sends = -1
        if talk.is_pair:
            sends = partners.index(rank) if talk.op == "send" else 1 - partners.index(rank)
        read = [self.machines[one].executor.array for one in partners]
        meeting = Meeting(step, positions, tuple(operands), read, sends)
        for one in partners:
            met, base = self._met[one], self.machines[one].history.base
            while met and met[0].positions[one] < base:
                met.popleft()
            met.append(meeting)
        return meeting

    def _partners(self, rank: int, talk: Talk) -> list[int]:
        members = talk.group.members(rank)
        return sorted({rank, members[talk.peer]}) if talk.is_pair else list(members)

    def _missing(self, rank: int, talk: Talk) -> list[int]:
        """The ranks that one waits for, and that are not where it is."""
        partners = self._partners(rank, talk)
        if partners == [rank]:  # it sends to itself
            return partners
        return [r for r in partners if r != rank and not self._is_with(rank, talk, r)]

    def _is_with(self, rank: int, talk: Talk, other: int) -> bool:
        its = self.talk_at(other)
        if self._open(other) is not None:  # it is at one that this rank has behind it
            return False
        if its is None or not talk.is_pair:
            return its == talk
        same = its.is_pair and its.group == talk.group and its.what == talk.what
        return same and its.op != talk.op and its.group.members(other)[its.peer] == rank

    def talk_at(self, rank: int) -> Talk | None:
        """The collective that is next on a rank; None where it is at none, or has gone back."""
        history = self.machines[rank].history
        here = history.next_point()
        if here is None or history.cursor < history.frontier or here[1].kind != OP:
            return None
        plan = here[0].plan
        step = plan.steps[here[1].step]
        return self._talk(plan, step) if step.op.is_shared(step.attrs) else None

    def _talk(self, plan: Plan, step: Step) -> Talk:
        if id(step) not in self._talks:
            self._talks[id(step)] = step, talk_of(plan, step)
        return self._talks[id(step)][1]

    # --- forgetting ---

    def cut(self, rank: int, position: int) -> None:
        """See `Door`: others are cut where they met this one, and those whom they met since."""
        if self._cutting:
            return
        cuts = self._cuts(rank, position)
        for other, at in cuts.items():
            if other != rank and at < self.machines[other].history.base:
                hint = "set something newer, or begin anew"
                raise InputError(f"rank {other} does not remember that time any more", hint=hint)
        self._cutting = True
        try:
            for other, at in cuts.items():
                met = self._met[other]
                while met and met[-1].positions[other] >= at:
                    met.pop()
                machine = self.machines[other]
                cursor = machine.history.cursor
                if other != rank and at < machine.history.frontier:
                    machine.history.cut(at)
                    machine.history.cursor = min(cursor, at)
        finally:
            self._cutting = False

    def _cuts(self, rank: int, position: int) -> dict[int, int]:
        """From where on each rank is to be forgotten, where one is from a position on."""
        cuts, todo = {rank: position}, [rank]
        while todo:
            one = todo.pop()
            for meeting in reversed(self._met[one]):
                if meeting.positions[one] < cuts[one]:
                    break
                for other, at in meeting.positions.items():
                    if other not in cuts or at < cuts[other]:
                        cuts[other] = at
                        todo.append(other)
        return cuts

    # --- who waits for ever ---

    def has_ended(self, rank: int) -> bool:
        return self.machines[rank].history.next_point() is None

    def deadlock(self, preferred: int) -> Deadlock | None:
        """Ranks that nobody can free any more; `preferred` is told first, if it is among them."""
        waits = {}
        for rank in range(self.mesh.ranks):
            talk = self.talk_at(rank) if self._open(rank) is None else None
            missing = self._missing(rank, talk) if talk is not None else []
            if talk is not None and missing:
                waits[rank] = talk, missing
        stuck = set(waits)
        while True:
            free = {
                r for r in stuck if not any(m in stuck or self.has_ended(m) for m in waits[r][1])
            }
            if not free:
                break
            stuck -= free
        if not stuck:
            return None
        first = preferred if preferred in stuck else min(stuck)
        ranks = tuple(sorted(stuck))
        return Deadlock(first, ranks, self._told(first, waits[first], stuck))

    def _told(self, rank: int, waits: tuple[Talk, list[int]], stuck: set[int]) -> OpstepError:
        talk, missing = waits
        other = next(m for m in missing if m in stuck or self.has_ended(m))
        its, notes = self.talk_at(other), []
        where = "has ended"
        if its is not None:
            where = f"waits at {its}"
            notes.append(Note(f"rank {other} waits here", its.place.span, its.place.source))
        hint = "go back to where they part: they must come to the same collectives in one order"
        message = f"rank {rank} waits for ever at {talk}: rank {other} {where}"
        if other == rank:
            message, notes = f"rank {rank} waits for ever at {talk}: it is for itself", []
        place = talk.place
        return OpstepError(
            [Diagnostic("error", message, place.span, place.source, hint, tuple(notes), "ranks")]
        )

    # --- what one rank sees of others ---

    def frame_of(self, rank: int, frame: Frame) -> Frame:
        """See `Door`."""
        if not 0 <= rank < self.mesh.ranks:
            raise ExpressionError(f"there is no rank {rank}", hint=self.which)
        frames = self.stack(rank)
        if not frames:
            raise ExpressionError(f"rank {rank} has not begun")
        same = [f for f in frames if f.depth == frame.depth and f.graph is frame.graph]
        return same[0] if same else frames[0]

    def members(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """See `Door`."""
        return self.group(axes).members(rank)

    def group(self, axes: Sequence[str]) -> Group:
        """Raises `ExpressionError`."""
        names = self.mesh.names
        for axis in axes:
            if axis not in names:
                hint = did_you_mean(axis, names) or f"it has {', '.join(names)}"
                raise ExpressionError(f"the mesh has no axis {axis[:40]}", hint=hint)
        return Group(self.mesh, tuple(n for n in names if n in axes) if axes else names)

    @property
    def which(self) -> str:
        """For hints."""
        last = self.mesh.ranks - 1
        return f"there are 0 to {last}" if last else "there is only rank 0"


class RankDoor:
    """One rank's `Door`."""

    def __init__(self, world: World, rank: int):
        self.world = world
        self.rank = rank

    def meet(self, plan: Plan, step: Step, operands: tuple[Node | None, ...]) -> MetProducer:
        return self.world.meet(self.rank, plan, step, operands)

    def executors(self) -> Iterator[Executor]:
        return (machine.executor for machine in self.world.machines)

    def cut(self, position: int) -> None:
        self.world.cut(self.rank, position)

    def frame_of(self, rank: int, frame: Frame) -> Frame:
        return self.world.frame_of(rank, frame)

    def members(self, axes: Sequence[str]) -> tuple[int, ...]:
        return self.world.members(self.rank, axes)
