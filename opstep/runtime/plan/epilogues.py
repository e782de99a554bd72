"""Epilogues: elementwise ops after a product or a convolution, computed of each element of its
result before that is stored.

The elementwise ops (`plan.fusing`) then cost no launch. Each op still rounds to its own element
type, so no bit changes. The device says where it has kernels for that: the same that would run the
product alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.cost import BYTES_PER_NS, LAUNCH_NS
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.fusing import MOST_OPERANDS, Body, Grouping, fused, is_elementwise
from opstep.runtime.plan.internal import Described, PlanOp
from opstep.runtime.plan.plan import Step, Takes

# Elements, times the ops of the epilogue. The tiles of a product leave multiprocessors few threads
# for these ops, so more of them are as fast in a launch of their own. Not those of `QUICK`, which
# take an instruction or two.
MOST = 1 << 22
QUICK = frozenset({"relu", "clip", "neg", "abs"})
NEAR = 16  # steps between a product and what follows it: its operands have to live as long
FIRST = 3  # number of the first operand that is not the product's: no product has more


class epilogued(PlanOp):
    """An op with its epilogue (kernels in `kernels.pointwise.groups`)."""

    name = "fused"
    traits = Traits(moves=True)  # its operands are seen as they are stored
    inplace = tuple(range(FIRST, FIRST + MOST_OPERANDS))

    def flops(*types, epilogue):
        own = types[: epilogue.count]
        return epilogue.op.flops(*own, **dict(epilogue.attrs))


@dataclass(frozen=True, repr=False)
class Epilogue(Described):
    """The computation of an `epilogued` op, without shapes: `op` of the first `count` operands,
    then `body`, whose operand `place` is the result of `op`, and whose others are those from
    `FIRST` on.
    """

    op: type[Op]
    attrs: tuple[tuple[str, Any], ...]
    count: int
    body: Body
    place: int

    def result_type(self, t: TensorType) -> TensorType:
        """The type of the op's result, where `t` is that of a result of the `epilogued` op."""
        return t.with_dtype(self.body.operands[self.place])


def with_epilogues(flat: Flat, takes: Takes) -> Flat:
    """The same with such steps where the device takes them."""
    grouping = Grouping(flat)
    made: dict[int, list[tuple[Step, int]]] = {}
    maker = {v: k for k, s in enumerate(flat.steps) for v in s.results if s.op.traits.epilogues}
    for k, step in enumerate(flat.steps[: len(flat.steps) - flat.commits]):
        found = sorted({v for v in step.operands if v in maker}, reverse=True)
        if not found or not (step.op is fused or is_elementwise(step)):
            continue
        for v in found:
            first = maker[v]
            near = k - first <= NEAR and first not in made
            if not near or not _alone(flat, grouping, v) or not _waits(flat, first, k):
                continue
            joined = _joined(flat, grouping, first, k, v)
            if joined is not None and takes(joined, flat.stored(joined)):
                made |= {first: [], k: [(joined, _cost(flat, first, k))]}
                break
    return flat.replaced(made) if made else flat


def _alone(flat: Flat, grouping: Grouping, v: int) -> bool:
    """Whether one step alone reads a value, and it is no output."""
    home = flat.homes[v]
    return flat.kinds[home] == "temp" and len(grouping.readers.get(home, ())) == 1


def _waits(flat: Flat, first: int, last: int) -> bool:
    """Whether a step may run at the place of a later one: no step between them changes its
    operands.
    """
    homes = flat.homes
    read = {homes[v] for v in flat.steps[first].operands if v is not None}
    between = flat.steps[first + 1 : last]
    return not any(homes[v] in read for s in between for v in s.values_written)


def _joined(flat: Flat, grouping: Grouping, first: int, last: int, v: int) -> Step | None:
    """The step that replaces both; None where their shapes forbid it."""
    of, then = flat.steps[first], flat.steps[last]
    types = flat.types
    group = then if then.op is fused else grouping.step([last])[0]
    body: Body = group.attrs["body"]
    alike = {types[r].shape for r in group.results} == {types[v].shape}
    place = group.operands.index(v)
    others = [w for w in group.operands if w != v]
    size: Any = types[v].size
    shared = {flat.homes[w] for w in of.operands if w is not None}
    shared &= {flat.homes[w] for w in others if w is not None}
    if (
        not alike
        or flat.converts(of)
        or shared
        or (size * len(body.members) > MOST and _in_tiles(of) and not _is_quick(body))
        or body.status >= 0
        or place in body.per_channel
        or len(others) + 1 != len(group.operands)
    ):
        return None
    epilogue = Epilogue(of.op, tuple(of.attrs.items()), len(of.operands), body, place)
    absent = (None,) * (FIRST - len(of.operands))
    operand_types = (*of.operand_types, *absent, *(types[w] for w in others if w is not None))
    return Step(
        epilogued, (*of.operands, *absent, *others), group.results, operand_types,
        {"epilogue": epilogue}, then.frame, then.statement,
        members=(*(of.members or (of,)), *(then.members or (then,))),
    )  # fmt: skip


def _in_tiles(of: Step) -> bool:
    """Whether a product is made by tiles: convolutions of each channel by itself are not."""
    layout = of.attrs.get("layout")
    attrs = dict(layout.attrs) if layout else of.attrs
    return attrs.get("groups", 1) == 1


def _is_quick(body: Body) -> bool:
    """Whether a tile takes hardly longer with this epilogue."""
    return len(body.operands) == 1 and all(m.op.name in QUICK for m in body.members)


def _cost(flat: Flat, first: int, last: int) -> int:
    """The time of the step that replaces two, in ns."""
    alone = flat.costs[first]
    nbytes: Any = flat.types[flat.steps[first].results[0]].nbytes
    return max(alone, alone + flat.costs[last] - LAUNCH_NS - 2 * nbytes // BYTES_PER_NS)
