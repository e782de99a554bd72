"""Lifetimes of temp buffers, results that take over an operand's buffer, and edges for sharing.

Two buffers may share bytes where the last use of the first ends before the second is written:
either because the steps are ordered anyway, or because the schedule estimates that it ends long
before (`packing.is_long_dead`). In the second case the plan needs an edge, which `sharing_edges`
finds. As the estimate leaves time to spare, no stream waits there, as a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from opstep.runtime.ir.control import while_
from opstep.runtime.plan.flat import Flat, Schedule, in_one_stream
from opstep.runtime.plan.intervals import IntervalMap
from opstep.runtime.plan.packing import FOREVER, Blocks, rounded
from opstep.runtime.plan.plan import Step
from opstep.runtime.plan.schedule import Clocks

_NOBODY, _SEVERAL = -1, -2
_NEAR = 16  # steps before an op that are looked at


class LiveRanges(NamedTuple):
    """Lifetimes of temp buffers. `storage`, `first` and `last` are columns over buffer ids.

    ``storage[b]``: the buffer whose bytes b has (b itself, or one that an in-place op took over).
    ``first[b]``, ``last[b]``: the first and the last step in order of issue that touch it;
    `FOREVER` where it holds an output. `allocated`: buffers that have bytes of their own, in order
    of their first write.
    """

    storage: list[int]
    first: list[int]
    last: list[int]
    allocated: list[int]


class Overwriting:
    """Finds steps that may overwrite a part of a tensor that steps on other streams read."""

    def __init__(self, flat: Flat):
        self.flat = flat
        self.maker = {v: k for k, step in enumerate(flat.steps) for v in step.results}
        self.readers = flat.readers()

    def waits(self, i: int, whole: int) -> bool:
        """Whether step i depends on all other steps that read `whole`, by the part that it writes,
        so that they are done when it begins.
        """
        steps, found = self.flat.steps, {i}
        if not steps[i].op.traits.overwrites:
            return False
        wanted = [v for v in steps[i].operands if v is not None and v != whole]
        while wanted and len(found) < _NEAR:
            k = self.maker.get(wanted.pop())
            if k is not None and k not in found:
                found.add(k)
                wanted += [v for v in steps[k].operands if v is not None and v != whole]
        return found.issuperset(self.readers[self.flat.homes[whole]])


def live_ranges(flat: Flat, plan: Schedule, carried: bool = False) -> LiveRanges:
    """Lifetimes, with results in the buffers of operands that no later step reads.

    `carried`: an output may also have the buffer of its own input.
    """
    homes, kinds, steps = flat.homes, flat.kinds, flat.steps
    first, last = [-1] * len(kinds), [-1] * len(kinds)
    allocated: list[int] = []
    for i in plan.order:
        step = steps[i]
        for v in step.operands:
            if v is not None:
                last[homes[v]] = i
        for v in step.results:
            b = homes[v]
            last[b] = i
            if first[b] < 0 and kinds[b] == "temp":
                first[b] = i
                allocated.append(b)
        b = step.workspace
        if b >= 0:
            first[b] = last[b] = i
            allocated.append(b)
    for v in flat.outputs:
        last[homes[v]] = FOREVER
    found = LiveRanges(list(range(len(kinds))), first, last, allocated)
    readers = _readers(flat, plan) if plan.streams > 1 else None
    overwriting = (
        Overwriting(flat) if readers and any(s.op.traits.overwrites for s in steps) else None
    )
    reused = False
    inputs = dict(zip(flat.outputs, flat.inputs, strict=True)) if carried else {}
    own = {r: homes[v] for r, v in inputs.items() if flat.outputs.count(r) == 1}
    for i in plan.order:
        if steps[i].inplace:
            reused |= _reuse_operands(flat, i, found, readers, overwriting, plan.stream[i], own)
        elif steps[i].op is while_:
            reused |= _carry_operands(flat, i, found, readers, plan.stream[i])
    if reused:
        allocated[:] = [b for b in allocated if found.storage[b] == b]
    return found


def _readers(flat: Flat, plan: Schedule) -> list[int]:
    """For each buffer the one stream that reads it, or `_SEVERAL`, or `_NOBODY`."""
    readers = [_NOBODY] * len(flat.kinds)
    for s, step in zip(plan.stream, flat.steps, strict=True):
        for v in step.operands:
            if v is not None:
                b = flat.homes[v]
                readers[b] = s if readers[b] in (_NOBODY, s) else _SEVERAL
    return readers


def _reuse_operands(
    flat: Flat, i: int, found: LiveRanges, readers: list[int] | None,
    overwriting: Overwriting | None, stream: int, own: Mapping[int, int],
) -> bool:  # fmt: skip
    """Lets results of step i take over the buffers of operands that no later step reads: temp
    buffers, and those of inputs that are a result's `own`.

    Only if no other stream reads the operand, as the op would have to wait for that stream. An op
    that overwrites a part waits anyway for steps that its part depends on (`Overwriting`).
    """
    step, homes, storage, last = flat.steps[i], flat.homes, found.storage, found.last
    free = made = [v for v in step.results if flat.kinds[homes[v]] == "temp"]
    for k in step.inplace:
        v = step.operands[k] if k < len(step.operands) else None
        if v is None or not free:
            continue
        b = storage[homes[v]]
        if last[b] != i:
            continue
        if readers and readers[b] != stream and not (overwriting and overwriting.waits(i, v)):
            continue
        t, is_temp = flat.types[v], flat.kinds[b] == "temp"
        fits = (r for r in free if flat.types[r] == t and (is_temp or own.get(r) == b))
        result = next(fits, None)
        if (
            result is None
            or t != step.operand_types[k]
            or not _is_only_operand(flat, step, storage, b, t)
        ):
            continue
        _put_in(homes[result], b, found, readers, stream)
        free = [v for v in free if v != result]
    return len(free) < len(made)


def _carry_operands(
    flat: Flat, i: int, found: LiveRanges, readers: list[int] | None, stream: int
) -> bool:
    """Lets a loop have its results in the buffers of operands that no later step reads."""
    step, homes, storage, last = flat.steps[i], flat.homes, found.storage, found.last
    operands = [storage[homes[v]] for v in step.operands if v is not None]
    reused = False
    for b, r in zip(operands, step.results, strict=True):
        if last[b] != i or flat.kinds[b] != "temp" or (readers and readers[b] != stream):
            continue
        if operands.count(b) > 1:
            continue
        _put_in(homes[r], b, found, readers, stream)
        reused = True
    return reused


def _put_in(
    result: int, b: int, found: LiveRanges, readers: list[int] | None, stream: int
) -> None:  # fmt: skip
    """Gives a result the buffer b of an operand."""
    found.storage[result] = b
    found.last[b] = found.last[result]
    if readers:
        readers[b] = stream if readers[result] in (_NOBODY, stream) else _SEVERAL


def _is_only_operand(flat: Flat, step: Step, storage: list[int], b: int, t) -> bool:
    """Whether all operands in buffer b have its type and may be taken over. Another view would be
    read at other elements than those just written.
    """
    return all(
        k in step.inplace and flat.types[v] == t
        for k, v in enumerate(step.operands)
        if v is not None and storage[flat.homes[v]] == b
    )


def most_live(flat: Flat) -> int:
    """The most bytes that live at once on one stream."""
    count = len(flat.steps)
    found = live_ranges(flat, in_one_stream(count))
    change = [0] * (count + 1)
    for b in found.allocated:
        nbytes = rounded(flat.sizes[b])
        change[found.first[b]] += nbytes
        change[min(found.last[b] + 1, count)] -= nbytes
    return max(accumulate(change))


Users = dict[int, dict[int, int]]  # buffer -> stream -> the last step there that touches it


def users(flat: Flat, plan: Schedule, storage: Sequence[int]) -> Users:
    """The last step on each stream that touches each buffer."""
    homes, stream = flat.homes, plan.stream
    found: Users = {}
    for i in plan.order:
        step, s = flat.steps[i], stream[i]
        for v in (*step.operands, *step.results):
            if v is not None:
                b = storage[homes[v]]
                if b in found:
                    found[b][s] = i
                else:
                    found[b] = {s: i}
        if step.workspace >= 0:
            found[step.workspace] = {s: i}
    return found


def blocks(
    flat: Flat, plan: Schedule, found: LiveRanges, times: Clocks | None, last_users: Users | None
) -> Blocks:
    """The blocks to pack. With several streams `times` says which steps are ordered anyway."""
    allocated, first, last = found.allocated, found.first, found.last
    sizes = [rounded(flat.sizes[b]) for b in allocated]
    begin = [plan.start[first[b]] for b in allocated]
    if times is None or last_users is None:
        end = [FOREVER if last[b] == FOREVER else plan.end[last[b]] for b in allocated]
        return Blocks(sizes, begin, end)
    ends, number = plan.end, times.number
    end, users, clocks = [], [], []
    for b in allocated:
        i, touched = first[b], last_users[b]
        end.append(FOREVER if last[b] == FOREVER else max([ends[j] for j in touched.values()]))
        users.append({s: number[j] for s, j in touched.items()})
        clock = list(times.clocks[i])
        clock[plan.stream[i]] = number[i] - 1
        clocks.append(tuple(clock))
    return Blocks(sizes, begin, end, users, clocks)


def sharing_edges(
    flat: Flat, found: LiveRanges, last_users: Users, offsets: Mapping[int, int]
) -> dict[int, list[int]]:
    """For each step that first writes a buffer, the last steps that touched its bytes before: one
    for each stream and each buffer that had these bytes.
    """
    edges: dict[int, list[int]] = {}
    bytes_of: IntervalMap[int] = IntervalMap(-1)
    for b in found.allocated:
        if not flat.sizes[b]:
            continue
        low = offsets[b]
        for earlier in set(bytes_of.overlapping(low, low + flat.sizes[b])):
            if earlier >= 0:
                edges.setdefault(found.first[b], []).extend(last_users[earlier].values())
        bytes_of.assign(low, low + flat.sizes[b], b)
    return edges
