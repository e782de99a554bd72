"""Runs an op again, over other operands or other memory: what that changes, the op depends on.

Kernels carry NaNs as the arithmetic does, so they say by themselves which elements come from which;
no op need declare it. A bad element is the op's own where nothing that it is computed from has the
same: a NaN of operands without NaN, an infinity of finite ones. So it stays as it is when what is
bad in the operands is replaced. That alone does not decide it for such as a norm of a row that is
one value all over; there it is no NaN when NaNs stand in the same places among values that make
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.meeting import MetProducer
from opstep.runtime.device.ranks import connected
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.types import TensorType, u8
from opstep.runtime.plan.plan import Step

Test = Callable[[Any], Any]
Rerun = Callable[[Mapping[int, np.ndarray]], Sequence[np.ndarray]]
"""The results of an op with some operands, by their index, replaced: same shape, same dtype."""

MOST_INDICES = 8  # shown of elements that were not written
JUNK = 0xFF  # in each byte of working memory: a NaN of any float

SUBSTITUTES = (0.5, 2.0)  # what is put in place of bad elements: most functions are defined at one
LOWEST = (0.4, 1.1)  # where values that are made up begin: likewise
SPREAD = 0.5
PERIOD = 8191  # after which they come again: no size of an axis is a multiple of it


def rerun_of(executor: Executor, producer: Producer) -> Rerun:
    """Of an op that a machine has run, on its device; of a collective with what this rank had."""
    if producer.is_shared:
        return _alone(executor, producer)

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


def _alone(executor: Executor, producer: Producer) -> Rerun:
    """Of a collective, which cannot be run again, as other ranks are elsewhere: computed here, with
    what makes no difference in place of what they had.
    """
    (node,) = producer.operands
    assert node is not None
    step, own = producer.step, executor.array(node)
    op: Any = step.op  # a collective

    def rerun(changes: Mapping[int, np.ndarray]) -> Sequence[np.ndarray]:
        operand = changes.get(0, own)
        if "source" in step.attrs:  # what was received, whatever stands here
            return [executor.array(producer.results[0])]
        if "to" in step.attrs:
            return [operand]
        over = step.attrs["over"]
        index = connected().ranks(over).index
        neutral = step.attrs.get("reduction") == "prod"
        parts = [np.full_like(operand, neutral)] * over.size
        parts[index] = operand
        return [np.asarray(op.together(parts, **step.attrs)[index])]

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


class Unwritten(NamedTuple):
    """Elements of a result that its op never wrote, or made of memory that nobody wrote; `first`
    are the first few indices, `mask` has all.
    """

    node: Node
    count: int
    first: list[tuple[int, ...]]
    mask: np.ndarray


def unwritten(executor: Executor, producer: Producer) -> list[Unwritten]:
    """Elements that depend on what the memory held before the op ran. Only a suspect is run again,
    over memory that holds other bits: what differs then, nobody wrote.
    """
    step, results = producer.step, producer.results
    if not step.launches or step.op.traits.reinterprets or isinstance(producer, MetProducer):
        return []
    values = producer.plan.values
    read = {values[v].buffer for v in step.operands if v is not None}
    buffers = {values[v].buffer for v in step.results}
    if read & buffers or any(n.memory is None for n in results):
        return []  # what takes over an operand's memory was not filled
    if step.workspace < 0 and all(
        n.type.dtype.is_float and not executor.nonfinite(n)[0] for n in results
    ):
        # made of filled memory, floats would be NaN; of integers nobody knows
        return []
    others = run_over(executor, producer, producer.operands, lambda node: 0, JUNK)
    found = []
    for node, other in zip(results, others, strict=True):
        word = f"u{node.type.dtype.itemsize}"
        mask = np.asarray(executor.array(node).view(word) != other.view(word))
        if mask.any():
            places = np.argwhere(mask)
            shown = [tuple(map(int, p)) for p in places[:MOST_INDICES]]
            found.append(Unwritten(node, len(places), shown, mask))
    return found


def odd_elements(operands: Sequence[np.ndarray | None], test: Test) -> dict[int, np.ndarray]:
    """By operand the elements for which the test holds; those without one are left out."""
    found = {j: test(a) for j, a in enumerate(operands) if is_float(a)}
    return {j: mask for j, mask in found.items() if mask.any()}


def bad(a: np.ndarray) -> np.ndarray:
    return ~np.isfinite(a)


def born(
    again: Rerun, operands: Sequence[np.ndarray | None], result: np.ndarray, k: int
) -> np.ndarray:
    """A mask of the elements of result k that are NaN or infinite by the op's own doing."""
    nan, own = np.isnan(result), bad(result)
    nan_in = odd_elements(operands, np.isnan)
    inf = own & ~nan
    if nan_in and nan.any():
        nan = _stay(again, operands, nan_in, np.isnan, nan, k)
    if inf.any():
        inf = _stay(again, operands, odd_elements(operands, bad), np.isinf, inf, k)
    return nan | inf


def _stay(again: Rerun, operands, odd: Mapping[int, Any], test: Test, mask, k: int) -> np.ndarray:
    """The part of the mask that is there without the odd elements, and is not reached by them."""
    if not odd:
        return mask
    for value in SUBSTITUTES:
        changes = {j: replaced(operands[j], m, value) for j, m in odd.items()}
        mask = mask & test(again(changes)[k])
        if not mask.any():
            return mask
    return mask & ~reached(again, operands, odd, k)


def reached(again: Rerun, operands, odd: Mapping[int, Any], k: int) -> np.ndarray:
    """Elements of the result that become NaN for NaNs in these places among made-up values."""
    found = None
    for low in LOWEST:
        plain = {j: distinct_values(a, low) for j, a in enumerate(operands) if is_float(a)}
        marked = plain | {j: replaced(plain[j], m, np.nan) for j, m in odd.items()}
        there = np.isnan(again(marked)[k]) & ~np.isnan(again(plain)[k])
        found = there if found is None else found | there
    assert found is not None
    return found


def carriers(
    again: Rerun, operands: Sequence[np.ndarray | None], result: np.ndarray, own: np.ndarray, k: int
) -> tuple[int, ...]:
    """Operands that elements of the result which are not its own came through."""
    carried = bad(result) & ~own
    odd = odd_elements(operands, bad)
    if not carried.any() or not odd:
        return ()
    if len(odd) == 1:
        return tuple(odd)
    found = []
    for j in odd:
        others = {i: replaced(operands[i], m, SUBSTITUTES[0]) for i, m in odd.items() if i != j}
        if (bad(again(others)[k]) & carried).any():
            found.append(j)
    return tuple(found) or tuple(odd)  # only together
