"""Which ops can be differentiated twice: docs/gradients.md names those that cannot."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from cases import graph_files

from opstep.api.program import Program
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Graph, Module
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.parser import load
from opstep.runtime.transforms.grad import GradientError, grad

GUIDE = Path(__file__).parents[2] / "docs" / "gradients.md"


def first_and_second(graphs: Iterable[Graph]) -> str:
    """The op that has no second derivative in one of these graphs, if there is one."""
    for graph in graphs:
        module = Module((graph,))
        wrt = [b.name.text for b in graph.inputs if b.type and b.type.dtype.is_float]
        try:
            made = grad(module, graph.name.text, wrt, seeded=True, name="once")
        except (GradientError, OpstepError):  # there is no first; or it is right for integers only
            continue
        both = Program(Module((*module.items, *made)))
        try:
            grad(both.verified, "once", wrt, seeded=True, name="twice")
        except GradientError as error:
            return str(error)
    return ""


@pytest.mark.slow
def test_the_guide_names_the_ops_without_a_second_derivative():
    found = set()
    for path in graph_files():
        op = OPS.get(path.stem)
        if op is not None and op.grad is not None and first_and_second(load(path).graphs.values()):
            found.add(op.name)
    said = re.search(r"Ops without a second derivative: (.*)\.", GUIDE.read_text("utf-8"))
    assert said and set(re.findall(r"`(\w+)`", said[1])) == found
