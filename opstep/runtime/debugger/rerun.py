"""Runs an op again, over other operands or other memory: what that changes, the op depends on.

Kernels carry NaNs as the arithmetic does, so they say by themselves which elements come from which;
no op need declare it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.meeting import MetProducer
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.types import TensorType, u8
from opstep.runtime.plan.plan import Step

Rerun = Callable[[Mapping[int, np.ndarray]], Sequence[np.ndarray]]
"""The results of an op with some operands, by their index, replaced: same shape, same dtype."""

SUBSTITUTES = (0.5, 2.0)  # what is put in place of bad elements: most functions are defined at one
LOWEST = (0.4, 1.1)  # where values that are made up begin: likewise
SPREAD = 0.5
PERIOD = 8191  # after which they come again: no size of an axis is a multiple of it


def on_device(executor: Executor, producer: Producer) -> Rerun:
    """Of an op that a machine has run, on its device."""

    def rerun(changes: Mapping[int, np.ndarray]) -> Sequence[np.ndarray]:
        operands = tuple(
            executor.new_node(o.type, changes[j], o.name) if o is not None and j in changes else o
            for j, o in enumerate(producer.operands)
        )
        try:
            return run_over(executor, producer, operands, lambda node: 0)
        except OpstepError:
            if not producer.op.traits.foreign:
                raise
            # it is not defined for these, which says nothing of where its results come from
            shapes: list[Any] = [n.type.shape for n in producer.results]
            dtypes = [n.type.dtype.numpy for n in producer.results]
            return [np.zeros(s, t) for s, t in zip(shapes, dtypes, strict=True)]

    return rerun


def on_cpu(step: Step, operands: Sequence[np.ndarray | None]) -> Rerun:
    """Of an op outside of any run."""
    from opstep.runtime.device.cpu.device import execute

    def rerun(changes: Mapping[int, np.ndarray]) -> Sequence[np.ndarray]:
        arrays = [changes.get(j, a) if a is not None else None for j, a in enumerate(operands)]
        return execute(step.op, arrays, step.attrs)

    return rerun


def run_over(
    executor: Executor, producer: Producer, operands: Sequence[Node | None],
    before: Callable[[Node], Any], scratch: int | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The results of an op on these operands, in memory that holds `before` of each result. With
    `scratch` each byte of its working memory is that.
    """
    executor.settle()
    device, step = executor.device, producer.step
    for operand in operands:
        if operand is not None:
            executor.ensure(operand)
    if isinstance(producer, MetProducer):
        given = [executor.array(o) for o in operands if o is not None]
        return [producer.meeting.again(producer.index, *given)]
    results = []
    for node in producer.results:
        other = Node(node.type, node.name, device.alloc(node.type.nbytes, "a second run of an op"))
        device.write(other.memory, 0, node.type, before(node))
        results.append(other)
    nbytes = producer.plan.buffers[step.workspace].nbytes if step.workspace >= 0 else 0
    working = device.alloc(nbytes, "a second run of an op")
    if scratch is not None and nbytes:
        device.write(working, 0, TensorType(u8, (nbytes,)), scratch)
    repeated = Producer(producer.plan, step, tuple(operands))
    device.run_now(executor.bound(repeated, results, working.address))
    if scratch is not None and nbytes:  # or the next op would find the same there
        device.write(working, 0, TensorType(u8, (nbytes,)), 0)
    return [device.read(n.memory, 0, n.type) for n in results]


def is_float(a: Any) -> bool:
    return a is not None and a.dtype.kind not in "iub"


def replaced(a: Any, mask: np.ndarray, value: float) -> np.ndarray:
    """A copy with another value where the mask is."""
    changed = np.array(a)
    changed[mask] = value
    return changed


def distinct_values(a: np.ndarray, low: float) -> np.ndarray:
    """Positive values, no two neighbours the same, from `low` on."""
    steps = np.arange(min(a.size, PERIOD), dtype=np.float64) * 0.6180339887498949
    values = (low + SPREAD * (steps % 1.0)).astype(a.dtype)
    return np.resize(values, a.shape) if a.size else a
