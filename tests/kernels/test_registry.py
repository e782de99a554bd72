"""Every op there is says what is to be known about it, and has test graphs."""

from __future__ import annotations

import re

import pytest
from cases import graph_files

import opstep.kernels  # registers the ops
import opstep.runtime.ir.control  # noqa: F401 - and those of control flow
from opstep.runtime.ir.op import OPS

KERNELS = {n: op for n, op in OPS.items() if not op.traits.host}
FUNCTIONS = ("infer", "oracle", "cpu", "flops")


@pytest.mark.parametrize("name", OPS)
def test_doc(name):
    """A first line that says what it computes, and where the idea or its name comes from."""
    op = OPS[name]
    assert op.__doc__, "no doc"
    first = op.__doc__.split("\n")[0]
    assert re.fullmatch(r"\S.*[.:,;]?", first)
    assert first == first.strip()
    if not op.traits.host and not name.endswith("_grad"):
        told = f"{op.source} {op.__doc__}"
        assert re.search(r"torch|ATen|ONNX|numpy", told), "no peer in PyTorch or ONNX is named"


@pytest.mark.parametrize("name", KERNELS)
def test_parts(name):
    """Shape rule, oracle, kernel and FLOPs are functions; the gradient is one too, or says None."""
    op = KERNELS[name]
    for part in FUNCTIONS:
        assert callable(getattr(op, part, None)), f"no {part}"
    assert hasattr(op, "grad"), "grad is a rule or None, but it is said"
    assert op.grad is None or callable(op.grad)


@pytest.mark.parametrize("name", KERNELS)
def test_takes_over_only_its_operands(name):
    op = KERNELS[name]
    assert all(k < len(op.operands) for k in op.inplace)
    assert not (op.traits.reinterprets and not op.traits.moves), (
        "another shape for the same memory, any type"
    )


def test_graphs_stand_in_the_rooms_of_their_ops():
    rooms = {path.stem: path.parent.name for path in graph_files()}
    assert rooms == {name: op.__module__.split(".")[2] for name, op in KERNELS.items()}


@pytest.mark.parametrize("path", graph_files(), ids=lambda p: p.stem)
def test_graphs_use_their_op(path):
    graphs = path.read_text().split("graph ")[1:]
    assert len(graphs) >= 2
    assert all(re.search(rf"= {path.stem}\(", g) for g in graphs)
