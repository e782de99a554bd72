"""Chooses statements of a graph to execute again, so that it fits into a memory budget.

A value that is read early and late, such as an activation that its derivative needs, is dropped in
between and computed again, from what is there then: operands that are held anyway, that are held
longer for it, or that are computed again, too. Which ones is chosen greedily, by bytes times the
time for which they are too many, per nanosecond of computing, as in Kirisame et al., "Dynamic
tensor rematerialization", 2021, but before anything runs; what turns out not to be needed is taken
back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from opstep.runtime.plan.sequence import Rerun, Sequence

_MOST_TOGETHER = 64  # statements that one value is computed again from
_STEP = 0.8  # of the peak, which is the target of the next step
_MOST_COST = 3  # times the sequence's own: more is no way to compute it
_MOST_TAKEN_BACK = 200  # trials to do without some of it
_MOST_TRIED = 30  # moves that one turn looks at
_PATIENCE = 8  # turns without success
_MOST_TURNS = 300  # for one target
_SHARE = 0.5  # of what is too much, removed in one turn


class _Move(NamedTuple):
    """Nodes with the place after which they are read as a new instance; what that is worth."""

    cuts: tuple[tuple[int, int], ...]
    score: float
    freed: int


def choose(sequence: Sequence, target: int) -> Rerun:
    """The sequence with the least executed again that takes at most `target` bytes at once, as far
    as is known; if there is none, with the smallest peak that was found.
    """
    target = max(target, 0)
    best = _Choice(sequence, target).made([target])
    if best.peak > target:  # in steps: so it is caught later
        steps = [best.peak]
        while steps[-1] > target:
            steps.append(max(target, int(steps[-1] * _STEP)))
        best = min(best, _Choice(sequence, target).made(steps), key=lambda r: r.peak)
    return best


class _State(NamedTuple):
    """The choices so far, and the bytes over the target that are held with them."""

    cuts: dict[int, tuple[int, ...]]
    moves: tuple[_Move, ...]
    rerun: Rerun
    excess: int


class _Choice:
    def __init__(self, sequence: Sequence, target: int):
        self.sequence = sequence
        self.target = target
        self.sharers = sequence.sharers()
        self.most = _MOST_COST * sum(n.cost for n in sequence.nodes)
        self.refused: set[tuple] = set()
        self.now = self._state({}, ())
        self.best = self.now.rerun

    def made(self, targets: Iterable[int]) -> Rerun:
        """For one target after the other, each from the choice for the one before."""
        for self.target in targets:
            self.refused.clear()
            self._descend()
        if self.now.excess:
            return self.best
        self._take_back()
        return self.now.rerun

    def _descend(self) -> None:
        """Moves that improve it, and now and then one that does not, from which others may."""
        self.now = best = self._state(self.now.cuts, self.now.moves)
        stale = 0
        for _ in range(_MOST_TURNS):
            if not self.now.excess or stale == _PATIENCE or self.now.rerun.cost > self.most:
                break
            following = self._improved()
            if following is None:
                break
            self.now = following
            self.best = min(self.best, following.rerun, key=lambda r: r.peak)
            stale += 1
            if following.excess < best.excess:
                best, stale = following, 0
        self.now = best

    def _state(self, cuts: dict[int, tuple[int, ...]], moves: tuple[_Move, ...]) -> _State:
        import numpy as np

        rerun = Rerun(self.sequence, cuts)
        over = np.maximum(rerun.profile - self.target, 0)
        by_time = np.zeros(len(self.sequence.nodes), np.int64)
        np.maximum.at(by_time, rerun.time, over)  # over the time for which it is held
        return _State(cuts, moves, rerun, int(by_time.sum()))

    def _improved(self) -> _State | None:
        """After some moves, or the best one alone; of those that do not improve it, the best."""
        moves = _Moves(self).found()
        too_much, freed, together = self.now.rerun.peak - self.target, 0, []
        for move in moves:
            together.append(move)
            freed += move.freed
            if freed >= too_much * _SHARE:
                break
        for some in [together] if len(together) > 1 else []:
            state = self._after(some)
            if state.excess < self.now.excess:
                return state
        least: _State | None = None
        for move in moves[:_MOST_TRIED]:
            state = self._after([move])
            if state.excess < self.now.excess:
                return state
            self.refused.add(move.cuts)
            if least is None or state.excess < least.excess:
                least = state
        return least

    def _after(self, moves: list[_Move]) -> _State:
        cuts = dict(self.now.cuts)
        for node, place in (cut for m in moves for cut in m.cuts):
            cuts[node] = tuple(sorted({*cuts.get(node, ()), place}))
        return self._state(cuts, (*self.now.moves, *moves))

    def _take_back(self) -> None:
        """Moves that nothing needs any more, the dearest first."""
        nodes = self.sequence.nodes
        dearest = sorted(self.now.moves, key=lambda m: -sum(nodes[k].cost for k, _ in m.cuts))
        for move in dearest[:_MOST_TAKEN_BACK]:
            cuts = dict(self.now.cuts)
            for node, place in move.cuts:
                cuts[node] = tuple(p for p in cuts.get(node, ()) if p != place)
            state = self._state({k: v for k, v in cuts.items() if v}, self.now.moves)
            if not state.excess and state.rerun.cost < self.now.rerun.cost:
                self.now = state


class _Moves:
    """Moves that lower the memory at the moment when most is held."""

    def __init__(self, choice: _Choice):
        import numpy as np

        self.choice = choice
        self.sequence = choice.sequence
        self.rerun = choice.now.rerun
        self.peak = int(self.rerun.profile.argmax())
        over = self.rerun.profile > choice.target
        self.over = np.concatenate([[0], np.cumsum(over)])

    def found(self) -> list[_Move]:
        """The best first."""
        moves: list[_Move] = []
        rerun, peak = self.rerun, self.peak
        for storage, uses in enumerate(rerun.uses):
            if uses[0] < peak < rerun.last(storage) and self.sequence.size[rerun.value[storage]]:
                k = bisect_left(uses, peak)
                if k < len(uses) and uses[k] > peak:
                    moves += self._dropped(storage, uses[k - 1], uses[k])
        refused = self.choice.refused
        return sorted((m for m in moves if m.cuts not in refused), key=lambda m: -m.score)

    def _too_long(self, begin: int, end: int) -> int:
        """Positions between these where too much is held."""
        return int(self.over[end] - self.over[begin + 1])

    def _dropped(self, storage: int, begin: int, end: int) -> Iterable[_Move]:
        """Moves that drop a value after one use and compute it again before the next."""
        time = self.rerun.time
        size = self.sequence.size[self.rerun.value[storage]]
        if time[begin] == time[end]:
            return
        gain = size * self._too_long(begin, end)
        cut = dict.fromkeys(self.choice.sharers[self.rerun.value[storage]], time[begin])
        if not all(self.sequence.nodes[k].repeats for k in cut):
            return
        for again in (True, False):
            found = self._with_operands(dict(cut), end, again)
            if found is None:
                continue
            cuts, lost, held = found
            cost = sum(self.sequence.nodes[k].cost for k in cuts) + 1
            if gain > lost and size > held:
                moved = tuple(sorted(cut for cut in cuts.items() if cut[1] >= 0))
                yield _Move(moved, (gain - lost) / cost, size - held)

    def _with_operands(
        self, cuts: dict[int, int], end: int, again: bool
    ) -> tuple[dict[int, int], int, int] | None:
        """The nodes to compute again together with these, as their operands are gone by then; and
        of operands that are held longer instead, bytes times positions, and bytes at the peak.
        """
        sequence, rerun, lost, held = self.sequence, self.rerun, 0, 0
        todo, seen = list(cuts), set()
        while todo:
            node = sequence.nodes[todo.pop()]
            for v in node.reads:
                writer = sequence.writer[v]
                if v in seen or writer in cuts:
                    continue
                seen.add(v)
                storage = rerun.at.get((v, rerun.wanted(writer, rerun.time[end])))
                if storage is not None and rerun.last(storage) >= end:
                    continue
                group = self.choice.sharers[sequence.owner[v]]
                if not (again or storage is None) or not all(
                    sequence.nodes[k].repeats for k in group
                ):
                    if storage is None:
                        return None
                    size, last = sequence.size[rerun.value[storage]], rerun.last(storage)
                    lost += size * self._too_long(last, end)
                    held += size if last < self.peak else 0
                    continue
                # -1: it is to be computed again already, if only anybody reads it
                place = -1 if storage is None else rerun.time[rerun.last(storage)]
                cuts.update(dict.fromkeys(group, place))
                todo += group
                if len(cuts) > _MOST_TOGETHER:
                    return None
        return cuts, lost, held
