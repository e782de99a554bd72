"""Lines that stand twice in a text that saves memory: what they give was dropped in between.

They name the same line of a source (`at`): two branches that are alike are no such thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opstep.runtime.ir.graph import Apply, Provenance
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.plan import Frame, Step


def repeats(steps: Sequence[Step], frames: Sequence[Frame]) -> dict[int, int]:
    """Steps that compute what an earlier one of the same line has computed, and which one."""
    first_of: dict[int, int] = {}  # value -> the first one that is computed like it
    seen: dict[tuple, int] = {}
    found: dict[int, int] = {}
    for k, step in enumerate(steps):
        at = _at(frames, step)
        if at is None or step.op.traits.host or step.op.traits.collective:
            continue
        operands = tuple([None if v is None else first_of.get(v, v) for v in step.operands])
        first = seen.setdefault((step.op.name, operands, tuple(step.attrs.values()), at), k)
        if first != k:
            found[k] = first
            first_of.update(zip(step.results, steps[first].results, strict=True))
    return found


def _at(frames: Sequence[Frame], step: Step) -> Provenance | None:
    """The line of a source that a step names, or the call that it is part of."""
    frame, statement = frames[step.frame], step.statement
    while isinstance(statement, Apply):
        if statement.at is not None:
            return statement.at
        if frame.parent < 0:
            return None
        frame, statement = frames[frame.parent], frame.statement
    return None


def bytes_computed_again(flat: Flat) -> int:
    """Bytes of results that were not read any more when they were computed again."""
    found = repeats(flat.steps, flat.frames)
    if not found:
        return 0
    homes, last = flat.homes, [-1] * len(flat.kinds)
    for k, step in enumerate(flat.steps):
        for v in step.operands:
            if v is not None:
                last[homes[v]] = k
    for v in flat.outputs:
        last[homes[v]] = len(flat.steps)
    nbytes = 0
    for k, first in found.items():
        results = zip(flat.steps[k].results, flat.steps[first].results, strict=True)
        if not flat.steps[k].op.traits.reinterprets:
            nbytes += sum(flat.sizes[homes[v]] for v, w in results if last[homes[w]] < k)
    return nbytes


def computed_once(flat: Flat) -> Flat:
    """The steps without those that compute something again."""
    found = repeats(flat.steps, flat.frames)
    first_of: dict[int | None, int] = {}
    steps: list[Step] = []
    for k, step in enumerate(flat.steps):
        if k in found:
            same = zip(step.results, flat.steps[found[k]].results, strict=True)
            first_of.update((v, first_of.get(w, w)) for v, w in same)
        else:
            operands = tuple([first_of.get(v, v) for v in step.operands])
            steps.append(replace(step, operands=operands))
    costs = [c for k, c in enumerate(flat.costs) if k not in found]
    outputs = [first_of.get(v, v) for v in flat.outputs]
    return replace(flat, steps=steps, costs=costs, outputs=outputs)
