"""What a plan holds in memory, and from which op to which: rows of `buffers`."""

from __future__ import annotations

from opstep.runtime.plan.plan import Alloc, Call, Free, Plan, Run
from opstep.trace.describe import frame_path
from opstep.trace.sink import Numbering
from opstep.trace.workspace.rows import plain

NAMED = ("param", "state")


def buffer_rows(
    run: int, first: int, plan: Plan, numbering: Numbering, kinds: dict[str, str],
    caller: int | None,
) -> list[tuple]:  # fmt: skip
    """Of a plan whose ops are numbered from `first`. `kinds`: of named tensors; `caller`: the op
    that runs the plan, whose operands its inputs are; None for the run's own.
    """
    from_op, until = _lifetimes(plan)
    names, types = _names(plan)
    last = first + max(len(numbering) - 1, 0)
    rows = []
    for number, buffer in enumerate(plan.buffers):
        kind = kinds.get(buffer.name, "param") if buffer.kind == "param" else buffer.kind
        if kind == "status" or (kind == "input" and caller is not None) or not buffer.nbytes:
            continue
        begin, end = first, last
        if kind == "temp":
            if number not in from_op:
                continue
            begin = first + numbering.first[from_op[number]]
            end = first + numbering.last[until[number]]
            kind = "temporary" if number in names else "workspace"
        name = buffer.name if kind in NAMED else names.get(number)
        row = (run, first, number, caller, kind, plain(name) if name else None)
        rows.append((*row, types.get(number), buffer.nbytes, begin, end))
    return rows


def _lifetimes(plan: Plan) -> tuple[dict[int, int], dict[int, int]]:
    """For each temporary buffer the first and the last step that runs while it is allocated."""
    from_op: dict[int, int] = {}
    until: dict[int, int] = {}
    live: set[int] = set()
    fresh: set[int] = set()
    latest = 0
    for instruction in plan.instructions:
        match instruction:
            case Alloc(buffer):
                fresh.add(buffer)
            case Free(buffer):
                live.discard(buffer)
                fresh.discard(buffer)
                until[buffer] = latest
            case Run(step) | Call(step):
                latest = step
                from_op |= dict.fromkeys(fresh - live, step)
                live |= fresh
                fresh = set()
    return from_op, {buffer: until.get(buffer, latest) for buffer in from_op}


def _names(plan: Plan) -> tuple[dict[int, str], dict[int, str]]:
    """Of each buffer the first tensor that lives in it: its path and its type."""
    frames = {v: step.frame for step in plan.steps for v in step.results}
    names: dict[int, str] = {}
    types: dict[int, str] = {}
    for number, value in enumerate(plan.values):
        path = f"{frame_path(plan, frames[number])}/" if number in frames else ""
        names.setdefault(value.buffer, f"{path}{value.name}")
        types.setdefault(value.buffer, str(value.type))
    return names, types
