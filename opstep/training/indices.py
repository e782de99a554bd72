"""Labels and indices in data that name nothing, told before training: label 11 of 10 classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from opstep.api.inputs import conform
from opstep.api.program import Program
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.interfaces import outside_of
from opstep.runtime.plan.plan import Plan, Step
from opstep.training.data import Dataset

TRIED = 100  # negative values, of which some ops take one to leave a row out
LOOKED_AT = 1 << 23  # elements of a column, beyond which only the least and greatest are looked at


def check_indices(program: Program, graph: str, dataset: Dataset, size: int) -> None:
    """Complains of the first row with a label, or another index, that does not exist for an op that
    takes it as it is in the data. `size`: of a batch. Raises `InputError`.
    """
    found = program.graph(graph)
    if not any(b.type is not None and b.type.dtype.is_integer for b in found.inputs):
        return
    _, types = conform(found, dataset.rows(np.arange(size)), program.module.source)
    plan = program.plan(graph, types, device="null")
    names = [b.name.text for b in found.inputs]
    for name, step, k in index_inputs(plan, names):
        if name in dataset.columns:
            _check(dataset, name, plan, step, k)


def index_inputs(plan: Plan, names: list[str]) -> Iterator[tuple[str, Step, int]]:
    """Inputs of integers that an op takes indices from: the input, the op, which operand."""
    inputs = dict(zip(plan.inputs, names, strict=True))
    buffers = {plan.values[v].buffer: v for v in plan.inputs}
    for step in plan.steps:
        if outside_of(step.op) is None:
            continue
        for k, operand in enumerate(step.operands):
            if operand is None or not plan.values[operand].type.dtype.is_integer:
                continue
            source = buffers.get(plan.values[operand].buffer)  # a reshaped input is one, too
            if source is not None:
                yield inputs[source], step, k


def _check(dataset: Dataset, name: str, plan: Plan, step: Step, k: int) -> None:
    column, most = dataset.columns[name], _most(plan, step, k)
    values = _values(column)
    below = [v for v in values[values < 0][-TRIED:] if _is_outside(plan, step, k, v)]
    bad = [*values[values > most][:1], *below]
    if not bad:
        return
    rows = range(len(column)) if dataset.chosen is None else dataset.chosen.tolist()
    for row in rows:
        found = np.asarray(column[row : row + 1])
        wrong = found[np.isin(found, below) | (found > most)]
        if wrong.size:
            classes, label = dataset.classes.get(name), wrong[0]
            folder = f" ({classes[label]})" if classes else ""
            raise InputError(
                f"{dataset.sources[name]}: row {row} has {label}{folder}, and {step.op.name} takes "
                f"0 to {most}",
                hint=f"input {name} goes to it as it is",
            )


def _values(column: Any) -> np.ndarray:
    """What values it has; of a large one, the ends of their range."""
    if int(np.prod(column.shape)) <= LOOKED_AT:
        return np.unique(np.asarray(column[:])).astype(np.int64)
    ends = [end for part in _parts(column) for end in (part.min(), part.max())]
    return np.unique(np.array(ends, np.int64))


def _parts(column: Any) -> Iterator[np.ndarray]:
    at_once = max(1, LOOKED_AT // max(1, int(np.prod(column.shape[1:]))))
    for first in range(0, len(column), at_once):
        yield np.asarray(column[first : first + at_once])


def _is_outside(plan: Plan, step: Step, k: int, value: Any) -> bool:
    """Whether an index exists for no element of the op's result."""
    operands: list[Any] = []
    for j, t in enumerate(step.operand_types):
        shape: Any = None if t is None else t.shape
        fill = np.asarray(value if j == k else 0, np.int64)
        operands.append(None if t is None else np.broadcast_to(fill, shape))
    result = plan.values[step.results[0]].type.shape
    return bool(np.any(outside_of(step.op)(operands, result, **step.attrs)))


def _most(plan: Plan, step: Step, k: int) -> int:
    """The greatest index that exists."""
    low, high = 0, 1
    while high < 1 << 62 and not _is_outside(plan, step, k, high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_outside(plan, step, k, middle) else (middle, high)
    return low
