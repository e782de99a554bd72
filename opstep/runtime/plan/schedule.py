"""The stream of each step, the order in which the host issues them, and waits between streams.

Steps are placed in program order, each where it is estimated to begin first (list scheduling in the
manner of HEFT; Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", 2002), with rules against plans that synchronise more than they gain:

- a step leaves the streams of those it depends on only if the work that follows from it alone (its
  *tail*) is worth it, `cost.WORTH_NS`;
- collectives have a stream of their own: computing goes on while they wait for other ranks;
- a stream counts as taken for as long as the tail of its last step, unless that step is continued;
- where all of it, issuing events included, gains less than `cost.LEAST_GAIN` over one stream, one
  stream it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from opstep.runtime.plan.cost import EVENT_NS, LEAST_GAIN, SYNC_NS, WORTH_NS
from opstep.runtime.plan.flat import Flat, Schedule, in_one_stream

Preds = list[tuple[int, ...]]  # for each step, the earlier ones that it must come after


def dependencies(flat: Flat) -> Preds:
    """Read after write, write after read and write after write, over the buffers of the flat graph.

    Temps have one writer; only named tensors and the status are written again.
    """
    homes, kinds = flat.homes, flat.kinds
    writer = [-1] * len(kinds)
    readers: dict[int, list[int]] = {b: [] for b, k in enumerate(kinds) if k in ("param", "status")}
    preds: Preds = []
    for i, step in enumerate(flat.steps):
        found: list[int] = []
        for v in step.values_read:
            b = homes[v]
            w = writer[b]
            if w >= 0 and w not in found:
                found.append(w)
            if b in readers:
                readers[b].append(i)
        for v in step.values_written:
            b = homes[v]
            if b in readers:
                earlier = [r for r in (writer[b], *readers[b]) if r >= 0 and r != i]
                found += [r for r in earlier if r not in found]
                readers[b] = []
            writer[b] = i
        preds.append(tuple(found))
    return preds


class Room(Protocol):
    """Memory, by estimated time (`room.Room`): when there is enough for a step."""

    def begin(self, i: int, stream: int, begin: int) -> int: ...

    def take(self, i: int, stream: int, begin: int, end: int) -> None: ...


def schedule(
    costs: Sequence[int], preds: Preds, limit: int, commits: int = 0, room: Room | None = None,
    talks: Collection[int] = (),
) -> tuple[Schedule, Clocks | None]:  # fmt: skip
    """Places steps on at most `limit` streams; uses fewer where more would not help. The last
    `commits` steps are issued when all others are. Steps begin when there is `room` for them. In
    `talks` other ranks take part.

    With the clocks of the steps, where there are several streams.
    """
    worth = (1 - LEAST_GAIN) * sum(costs)
    if limit > 1 and costs:
        placed = _spread(_Placement(costs, preds, limit, commits, room, talks))
        if placed.streams > 1 and max(placed.end) <= worth:
            times = clocks(placed, preds)
            if max(placed.end) + EVENT_NS * sum(map(len, times.waits.values())) <= worth:
                return placed, times
    return in_one_stream(len(costs)), None


def _spread(placed: _Placement) -> Schedule:
    placed.run()
    order = sorted(range(len(placed.costs)), key=placed.start.__getitem__)
    return Schedule(max(placed.stream) + 1, placed.stream, order, placed.start, placed.end)


def tails(costs: Sequence[int], preds: Preds) -> list[int]:
    """For each step its cost and that of all that depends on it alone, directly or not."""
    tail = list(costs)
    for i in range(len(costs) - 1, -1, -1):
        if len(preds[i]) == 1:
            tail[preds[i][0]] += tail[i]
    return tail


class _Placement:
    def __init__(
        self, costs: Sequence[int], preds: Preds, limit: int, commits: int, room: Room | None,
        talks: Collection[int],
    ):  # fmt: skip
        self.costs = costs
        self.room = room
        self.talks = frozenset(talks)
        self.apart = 1 if talks else -1  # the stream of these
        self.others = len(costs) - commits
        self.preds = preds
        self.tail = tails(costs, preds)
        self.stream: list[int] = []
        self.start: list[int] = []
        self.end: list[int] = []
        self.free = [0] * limit  # when each stream is done with what it has
        self.last = [-1] * limit  # its last step
        self.opened = 1  # streams worth a look: those in use and one more

    def run(self) -> None:
        stream, end, last = self.stream, self.end, self.last
        done = 0  # when all is that comes before the commits
        large = -1  # the stream of large new values of named tensors: they take turns, for memory
        for i, (cost, preds) in enumerate(zip(self.costs, self.preds, strict=True)):
            if i == self.others:
                done = max(end, default=0)
            if i in self.talks or (large >= 0 and cost >= WORTH_NS):
                s = self.apart if i in self.talks else large
                begin = max([self.free[s], *(end[p] + SYNC_NS * (stream[p] != s) for p in preds)])
            elif len(preds) == 1 and last[s := stream[preds[0]]] == preds[0] and s != self.apart:
                begin = self.free[s]  # a chain goes on where it is
            else:
                s, begin = self._choose(i, preds)
            begin = max(begin, done)
            if self.room:
                begin = self.room.begin(i, s, begin) if i < self.others else begin
                self.room.take(i, s, begin, begin + cost)
            stream.append(s)
            self.start.append(begin)
            end.append(begin + cost)
            self.free[s] = begin + cost
            last[s] = i
            if i >= self.others and cost >= WORTH_NS:
                large = s
            if s + 1 == self.opened and s != self.apart:
                self.opened = min(self.opened + 1 + (self.opened == self.apart), len(self.free))

    def _choose(self, i: int, preds: tuple[int, ...]) -> tuple[int, int]:
        """The stream where step i begins first, and when.

        Where it makes no difference, the stream of the predecessor that ends last.
        """
        stream, end, free, tail = self.stream, self.end, self.free, self.tail
        latest: dict[int, int] = {}  # stream -> when the last predecessor there ends
        home, ready = (stream[-1] if stream else 0), -1
        for p in preds:
            s, e = stream[p], end[p]
            if e > ready:
                home, ready = s, e
            if e > latest.get(s, -1):
                latest[s] = e
        if home == self.apart:
            home = 0
        elif len(latest) <= 1 and tail[i] < WORTH_NS:
            return home, max(free[home], ready)
        elsewhere = tail[i] >= WORTH_NS
        best, best_score, best_begin = home, -1, 0
        for s in (home, *range(self.opened)):
            if s == self.apart or not (elsewhere or s in latest or s == home):
                continue
            begin = max(free[s], latest.get(s, 0))
            for t, e in latest.items():
                if t != s and e + SYNC_NS > begin:
                    begin = e + SYNC_NS
            last = self.last[s]
            score = begin
            if last >= 0 and last not in preds:
                score = max(score, free[s] + tail[last] - self.costs[last])
            if best_score < 0 or score < best_score:
                best, best_score, best_begin = s, score, begin
        return best, best_begin


class Clocks(NamedTuple):
    """The order of each step with regard to those of other streams.

    ``number[i]``: the step's place in its stream, from 1. ``clocks[i][s]``: it comes after the
    first that many steps of stream s. ``waits[i]``: the steps whose events it waits for.
    """

    number: list[int]
    clocks: list[tuple[int, ...]]
    waits: dict[int, tuple[int, ...]]


def clocks(plan: Schedule, preds: Preds, more: Mapping[int, Sequence[int]] | None = None) -> Clocks:
    """Vector clocks, and the fewest waits that order each step after its `preds` and `more`.

    A step waits for another stream only for what is not known yet, and not for what another of its
    waits brings along.
    """
    stream, count = plan.stream, len(plan.stream)
    number = [0] * count
    vectors: list[tuple[int, ...]] = [()] * count
    waits: dict[int, tuple[int, ...]] = {}
    length = [0] * plan.streams
    current = [(0,) * plan.streams for _ in length]
    for i in plan.order:
        s = stream[i]
        length[s] += 1
        number[i] = length[s]
        now = current[s]
        latest: dict[int, int] = {}  # stream -> the latest step of it to wait for
        after = preds[i] if not more or i not in more else (*preds[i], *more[i])
        for p in after:
            t = stream[p]
            if t != s and now[t] < number[p] and (t not in latest or number[latest[t]] < number[p]):
                latest[t] = p
        if latest:
            waits[i] = tuple(
                p
                for t, p in latest.items()
                if not any(vectors[q][t] >= number[p] for q in latest.values() if q != p)
            )
            for p in waits[i]:
                now = _joined(now, vectors[p], stream[p], number[p])
            current[s] = now
        vectors[i] = now
    return Clocks(number, vectors, waits)


def _joined(a: tuple[int, ...], b: tuple[int, ...], stream: int, number: int) -> tuple[int, ...]:
    both = list(map(max, a, b))
    both[stream] = max(both[stream], number)
    return tuple(both)
