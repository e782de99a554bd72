"""Sums whose terms are sums and products: these need no memory for the terms."""

from __future__ import annotations

from typing import NamedTuple

from opstep.kernels.pointwise.fused import computed
from opstep.kernels.schedules.cpu.text import EXTREMES, Text
from opstep.runtime.device.builtin import TERMS, fixed_terms
from opstep.runtime.device.source import Intrinsic


class Terms(NamedTuple):
    """`intrinsic` takes these pointers and numbers, then a count; a term is computed from the
    registers `needed`.
    """

    pointers: list[str]
    numbers: list[str]
    needed: list[int]
    intrinsic: Intrinsic


def terms_of(text: Text, p: int, fold: int) -> Terms | None:
    """The terms of a reduction that ends pass p, if they are of that kind."""
    graph, this = text.graph, text.passes[p]
    needed = sorted(graph.within([graph.terms[fold]], this.known))
    if text.op(fold) in EXTREMES or not all(_is_known(text, p, r) for r in needed):
        return None
    read = [r for r in needed if r in this.known or text.is_read_along(r)]
    numbers = [r for r in needed if not graph.inner[r]]
    members = [r for r in needed if r not in read and r not in numbers]
    if not read or not members:
        return None
    place = {r: k for k, r in enumerate([*read, *numbers, *members])}
    steps: list[int] = []
    for r in members:
        member = graph.body.members[r - len(graph.leaves)]
        a, b = (place[o] for o in (member.operands * 2)[:2])
        steps += [TERMS.index(member.op.name), a, b]
    return Terms(
        [f"h{r}" if r in this.known else f"x{r}" for r in read],
        [f"c{r}" if text.is_literal(r) else f"r{r}" for r in numbers],
        needed,
        fixed_terms(len(read), len(numbers), *steps),
    )


def _is_known(text: Text, p: int, r: int) -> bool:
    """Whether a register can be a value of the intrinsic's."""
    graph, leaves = text.graph, len(text.graph.leaves)
    if computed(graph.body.types[r]) is not graph.dtype:
        return False
    if not graph.inner[r] or r in text.passes[p].known:
        return True
    if graph.body.types[r] is not graph.dtype:
        return False
    if r < leaves:
        return text.is_read_along(r)
    member = graph.body.members[r - leaves]
    return member.op.name in TERMS and all(t is graph.dtype for t in member.seen)
