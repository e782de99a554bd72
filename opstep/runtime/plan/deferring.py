"""New values of named tensors, computed right before they take effect.

Updates take effect when a graph ends, so all new values would live until then: with Adam, three
times the params. But a step that does nothing but prepare updates, element by element, can be part
of the commit: then one tensor's new value is stored before the next one's is computed.
"""

from __future__ import annotations

from dataclasses import replace

from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.internal import snapshot, update
from opstep.runtime.plan.plan import Step
from opstep.runtime.plan.schedule import dependencies


def deferred(flat: Flat) -> Flat:
    """With such steps at the end, and each update as soon as nobody needs what was there."""
    if not flat.commits:
        return flat
    begin = len(flat.steps) - flat.commits
    moved = _preparing(flat, begin)
    if not moved:
        return flat
    order = [k for k in range(begin) if k not in moved] + sorted(moved)
    order += range(begin, len(flat.steps))
    late = len(moved) + flat.commits
    return _updated_soon(_ordered(flat, order, late), len(order) - late, len(moved))


def _updated_soon(flat: Flat, first: int, count: int) -> Flat:
    """The same where each update behind the `count` steps from `first` on is made between these, as
    soon as it can be.
    """
    preds, total = dependencies(flat), len(flat.steps)
    left = {u: {p for p in preds[u] if p >= first} for u in range(first + count, total)}
    behind: dict[int, list[int]] = {}
    for u, before in left.items():
        for p in before:
            behind.setdefault(p, []).append(u)
    order = list(range(first))
    todo = [*range(first, first + count)][::-1] + [u for u in left if not left[u]][::-1]
    while todo:
        k = todo.pop()
        order.append(k)
        for u in behind.get(k, ()):
            left[u].discard(k)
            if not left[u]:
                todo.append(u)
    return _ordered(flat, order, flat.commits)


def _ordered(flat: Flat, order: list[int], commits: int) -> Flat:
    steps, costs = flat.steps, flat.costs
    return replace(
        flat, steps=[steps[k] for k in order], costs=[costs[k] for k in order], commits=commits
    )


def _preparing(flat: Flat, begin: int) -> set[int]:
    """The steps before `begin` that only prepare updates, and can wait until then without holding
    more than they give.
    """
    readers: dict[int, list[int]] = {}
    for k, step in enumerate(flat.steps):
        for v in (*step.operands, *step.touched):
            if v is not None:
                readers.setdefault(v, []).append(k)
    outputs, homes = set(flat.outputs), flat.homes
    early = {homes[v] for s in flat.steps[:begin] for v in _written(s)}
    refused = {
        k
        for k, step in enumerate(flat.steps[:begin])
        if any(v is not None and flat.kinds[homes[v]] == "param" and homes[v] in early
               for v in step.operands)
    }  # fmt: skip
    while True:
        found: set[int] = set()
        for k in range(begin - 1, -1, -1):
            step = flat.steps[k]
            if k in refused or not _elementwise(step):
                continue
            read = [r for v in step.results for r in readers.get(v, ())]
            if (
                read
                and all(r in found or r >= begin for r in read)
                and outputs.isdisjoint(step.results)
            ):
                found.add(k)
        made = {v for k in found for v in flat.steps[k].results}
        holding = {k for k in found if _holds_more(flat, flat.steps[k], made)}
        if not holding:
            return found
        refused |= holding


def _written(step: Step) -> tuple[int, ...]:
    return () if step.op.traits.reinterprets else (*step.results, *step.changed)


def _elementwise(step: Step) -> bool:
    op = step.op
    other = (
        op.traits.host or op.traits.collective or op.traits.overwrites or op in (update, snapshot)
    )
    return bool(op.inplace) and not other


def _holds_more(flat: Flat, step: Step, made: set[int]) -> bool:
    """Whether it reads more that would have to be held for it than it gives."""
    homes, sizes = flat.homes, flat.sizes
    held = {homes[v] for v in step.operands if v is not None and v not in made}
    nbytes = sum(sizes[b] for b in held if flat.kinds[b] == "temp")
    return nbytes > sum(sizes[homes[v]] for v in step.results)
