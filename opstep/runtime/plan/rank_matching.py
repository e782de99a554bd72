"""Whether all ranks say the same to each other: collectives matched in order, group, type and
attributes, each send with its recv, and no ranks that wait for each other in a circle.

Nothing is run. A send waits for its recv here, as it may in a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from opstep.runtime.ir.diagnostics import Diagnostic, Note
from opstep.runtime.ir.mesh import WORLD, Mesh
from opstep.runtime.plan.rank_traces import Fork, Place, Talk, Trace, talks_in

_MOST = 20  # messages


def mismatches(
    found: Mapping[Trace, Sequence[int]], mesh: Mesh, checked: bool = False
) -> list[Diagnostic]:
    """Errors for collectives that do not match between ranks with these traces, with both lines.
    `checked`: they are also checked in the run, so branches that ranks may take differently are no
    error.
    """
    axes = frozenset(mesh.names)
    if checked:
        certain: dict[Trace, list[int]] = {}
        for trace, ranks in found.items():
            own = tuple(one for one in trace if not any(_torn((one,), axes)))
            certain.setdefault(own, []).extend(ranks)
        found = certain
    faults = [fault for trace in found for fault in _torn(trace, axes)]
    if faults:
        return list(dict.fromkeys(faults))[:_MOST]
    if len(found) == 1 and not any(t.is_pair for trace in found for t in talks_in(trace)):
        return []  # ranks that do the same cannot miss each other
    run = _Matching({rank: trace for trace, ranks in found.items() for rank in ranks})
    return list(dict.fromkeys(run.faults()))[:_MOST]


def _torn(trace: Trace, axes: frozenset[str]) -> Iterator[Diagnostic]:
    """Collectives in branches and loops that not all ranks of their groups may enter."""
    for one in trace:
        if isinstance(one, Talk):
            continue
        inner = axes & one.axes
        for talk in (t for way in one.ways for t in talks_in(way)):
            torn = [a for a in talk.group.axes if a not in inner]
            if torn:
                what = "turn" if one.word == "loop" else "way"
                hint = "let them decide together: all_reduce what the condition is made of"
                along = "" if torn == [WORLD] else f" along {' and '.join(torn)}"
                yield _message(
                    f"ranks{along} may each take another {what} here, and {talk} in it wants all "
                    "of them",
                    one.place,
                    [(f"{talk.op} stands here", talk.place)],
                    hint,
                )
                break


class _Matching:
    """Ranks that go through their traces, each as far as the others let it."""

    def __init__(self, traces: Mapping[int, Trace]):
        self.traces = traces
        self.at = dict.fromkeys(traces, 0)
        self.found: list[Diagnostic] = []
        self.members: dict[tuple, tuple[int, ...]] = {}  # of groups, by their axes and a rank
        # by the ranks of a group what some are at, and one that is not, with what that is at
        self.awaited: dict[tuple[int, ...], tuple] = {}

    def faults(self) -> list[Diagnostic]:
        ready = dict.fromkeys(self.traces)
        while ready and len(self.found) < _MOST:
            while ready:
                rank, _ = ready.popitem()
                ready |= dict.fromkeys(self._advance(rank))
            ready = dict.fromkeys(self._stuck())
        return self.found

    def _now(self, rank: int) -> Talk | Fork | None:
        trace, at = self.traces.get(rank, ()), self.at.get(rank, 0)
        return trace[at] if at < len(trace) else None

    def _partners(self, rank: int, one: Talk | Fork) -> tuple[int, ...]:
        if isinstance(one, Fork):
            return tuple(r for r in self.traces if self._same_along(rank, r, one.axes))
        key = one.group.axes, rank
        members = self.members.get(key)
        if members is None:
            members = one.group.members(rank)
            self.members.update(dict.fromkeys(((key[0], m) for m in members), members))
        return (rank, members[one.peer]) if one.is_pair else members

    def _same_along(self, rank: int, other: int, axes: frozenset[str]) -> bool:
        mesh = self._mesh
        a, b = mesh.coordinates(rank), mesh.coordinates(other)
        return all(a[axis] == b[axis] for axis in mesh.names if axis not in axes)

    @property
    def _mesh(self) -> Mesh:
        return next(t for trace in self.traces.values() for t in talks_in(trace)).group.mesh

    def _advance(self, rank: int) -> Sequence[int]:
        """The ranks that could go on, as all partners of this one are where it is."""
        one = self._now(rank)
        if one is None:
            return ()
        partners = self._partners(rank, one)
        awaited = None if isinstance(one, Fork) or one.is_pair else self.awaited.get(partners)
        if awaited is not None:  # of all that are at this one, the first has asked whom they miss
            at, other, its = awaited
            if at == one and self._now(other) is its:
                return ()
        alike = self._alike(rank, partners)
        for other, *_ in alike:
            if other not in self.traces or not self._meets(rank, one, other, self._now(other)):
                self.awaited[partners] = one, other, self._now(other)
                return ()
        if isinstance(one, Fork):
            self._ways(partners, one)
        else:
            first, *others = alike
            for some in others:
                self._compare(first[0], self._now(first[0]), some)
        for other in partners:
            self.at[other] += 1
        return partners

    def _alike(self, rank: int, partners: Sequence[int]) -> list[list[int]]:
        """Those of the partners together that are at one place of one trace: they are checked once.
        What a pair says depends on who says it.
        """
        one = self._now(rank)
        if isinstance(one, Talk) and one.is_pair:
            return [[r] for r in partners]
        found: dict[tuple, list[int]] = {}
        for r in partners:
            found.setdefault((id(self.traces.get(r)), self.at.get(r)), []).append(r)
        return list(found.values())

    def _meets(self, rank: int, one: Talk | Fork, other: int, its: Talk | Fork | None) -> bool:
        """Whether another rank is at what belongs to this one's."""
        if other == rank:
            return not (isinstance(one, Talk) and one.is_pair and one.group.index(rank) == one.peer)
        if isinstance(one, Fork):
            return isinstance(its, Fork) and (its.word, its.axes) == (one.word, one.axes)
        if not isinstance(its, Talk) or its.group != one.group or its.is_pair != one.is_pair:
            return False
        if one.is_pair:
            return its.op != one.op and its.group.members(other)[its.peer] == rank
        return True

    def _compare(self, rank: int, one, others: Sequence[int]) -> None:
        its = self._now(others[0])
        assert isinstance(its, Talk)
        if one.what != its.what or (one.op != its.op and not one.is_pair):
            self._report(rank, one, others, its)

    def _ways(self, ranks: Sequence[int], fork: Fork) -> None:
        """Each way of an open branch or loop, if all of these ranks take it."""
        forks = {r: self._now(r) for r in ranks}
        for k in range(len(fork.ways)):
            ways = {
                r: f.ways[k] for r, f in forks.items() if isinstance(f, Fork) and k < len(f.ways)
            }
            if any(ways.values()):
                self.found += _Matching(ways).faults()

    def _report(
        self, rank: int, one: Talk | Fork, others: Sequence[int], its: Talk | Fork | None
    ) -> None:
        other = others[0]
        if its is None:
            note = (f"rank {other} is done; this is the last it says", self._last(other))
            self.found.append(
                _message(
                    f"rank {rank} is at {one}, but rank {other} says no more", one.place, [note]
                )
            )
            return
        self.found.append(
            _message(
                f"rank {rank} is at {one}, but {_listed(others)} at {its}",
                one.place,
                [(f"rank {other} is here", its.place)],
            )
        )

    def _last(self, rank: int) -> Place | None:
        trace = self.traces[rank]
        return trace[-1].place if trace else None

    # --- nobody goes on ---------------------------------------------------------------------------

    def _stuck(self) -> list[int]:
        """Says why nobody goes on; the ranks that may then, as if that were right."""
        waiting = {r: one for r in self.traces if (one := self._now(r)) is not None}
        if not waiting:
            return []
        circle = self._circle(waiting)
        if circle:
            first, *others = circle
            steps = [f"rank {r} is at {waiting[r]}" for r in circle]
            notes = [(f"rank {r} waits here", waiting[r].place) for r in others]
            hint = "let one of them receive first" if others else "a rank cannot send to itself"
            message = "ranks wait for each other: " if others else "a rank waits for itself: "
            self.found.append(
                _message(message + ", ".join(steps), waiting[first].place, notes, hint)
            )
        else:
            rank = next(r for r in waiting if self._absent(r, waiting[r]) is not None)
            other = self._absent(rank, waiting[rank])
            assert other is not None
            its = self._now(other)
            self._report(rank, waiting[rank], [other], its)
            alone = isinstance(one := waiting[rank], Talk) and one.is_pair
            circle = [rank] if alone else [rank, other, *self._partners(rank, one)]
        for r in waiting.keys() & set(circle):
            self.at[r] += 1
        return list(self.traces)

    def _absent(self, rank: int, one: Talk | Fork) -> int | None:
        """The first rank that this one waits for and that is not there."""
        for other in self._partners(rank, one):
            if other not in self.traces or not self._meets(rank, one, other, self._now(other)):
                return other
        return None

    def _circle(self, waiting: Mapping[int, Talk | Fork]) -> list[int]:
        """Ranks in pairs of send and recv that wait for each other in a circle, if any do."""
        for start in waiting:
            path: list[int] = []
            rank: int | None = start
            while rank is not None and rank in waiting and rank not in path:
                one = waiting[rank]
                if not (isinstance(one, Talk) and one.is_pair):
                    break
                path.append(rank)
                rank = one.group.members(rank)[one.peer]
            else:
                if rank is not None and rank in path:
                    return path[path.index(rank) :]
        return []


def _listed(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 3 and 5``, ``rank 3 and 1,020 others``"""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    return f"rank {ranks[0]} and {len(ranks) - 1:,} others"


def _message(
    text: str, place: Place, notes: Sequence[tuple[str, Place | None]], hint: str = ""
) -> Diagnostic:
    shown = tuple(Note(what, p.span, p.source) for what, p in notes if p is not None)
    return Diagnostic("error", text, place.span, place.source, hint, shown, "ranks")
