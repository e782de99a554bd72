"""If, Loop and Scan become cond and while."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import opstep
from opstep.runtime.ir.printer import print_module

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def declared(name: str, kind: int = T.FLOAT, shape=()):
    return h.make_tensor_value_info(name, kind, list(shape))


def branch(name: str, op: str, shape):
    nodes = [h.make_node(op, ["x", "w"], [f"{name}_out"])]
    return h.make_graph(nodes, name, [], [declared(f"{name}_out", shape=shape)])


@pytest.mark.parametrize("chosen", [True, False])
def test_if_calls_one_of_two_graphs(model, agrees, chosen):
    """Both read values of the graph around them; weights are read where they are."""
    shape = ["n", 4]
    then, other = branch("then", "Add", shape), branch("other", "Mul", shape)
    nodes = [h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    inputs = {"c": (T.BOOL, []), "x": (T.FLOAT, shape)}
    net = model(nodes, inputs, {"y": (T.FLOAT, shape)}, {"w": floats(4)})
    program = agrees(net, {"c": np.array(chosen), "x": floats(3, 4)})
    assert "y = cond(c, x, then=y_then, else=y_else)" in print_module(program.module)


def counting(limit: float | None):
    """A loop that adds a row of x and keeps each sum; it ends early where a sum is large."""
    nodes = [
        h.make_node("Gather", ["x", "i"], ["row"], axis=0),
        h.make_node("Add", ["total", "row"], ["total_out"]),
        h.make_node("Identity", ["total_out"], ["kept"]),
    ]
    if limit is None:
        nodes.append(h.make_node("Identity", ["go"], ["go_out"]))
    else:
        nodes += [
            h.make_node("ReduceMax", ["total_out"], ["most"], keepdims=0),
            h.make_node("Less", ["most", "limit"], ["go_out"]),
        ]
    inputs = [declared("i", T.INT64), declared("go", T.BOOL), declared("total", shape=[4])]
    outputs = [declared("go_out", T.BOOL), declared("total_out", shape=[4])]
    if limit is None:
        outputs.append(declared("kept", shape=[4]))
    return h.make_graph(nodes, "body", inputs, outputs)


def test_loop_keeps_a_row_of_each_turn(model, agrees):
    nodes = [h.make_node("Loop", ["count", "", "start"], ["total", "rows"], body=counting(None))]
    net = model(
        nodes, {"x": (T.FLOAT, [5, 4]), "start": (T.FLOAT, [4])},
        {"total": (T.FLOAT, [4]), "rows": (T.FLOAT, [5, 4])}, {"count": np.array(5)},
    )  # fmt: skip
    program = agrees(net, {"x": floats(5, 4), "start": floats(4)})
    assert "= while(" in print_module(program.module)


def test_loop_ends_by_a_condition(model, agrees):
    nodes = [h.make_node("Loop", ["count", "yes", "start"], ["total"], body=counting(2.0))]
    net = model(
        nodes, {"count": (T.INT64, []), "x": (T.FLOAT, [5, 4]), "start": (T.FLOAT, [4])},
        {"total": (T.FLOAT, [4])},
        {"yes": np.array(True), "limit": np.array(2.0, np.float32)},
    )  # fmt: skip
    x, start = np.ones((5, 4), np.float32), np.zeros(4, np.float32)
    for count in (0, 1, 5):
        agrees(net, {"count": np.array(count), "x": x, "start": start})


def test_rows_of_a_loop_that_may_end_are_refused(model):
    body = counting(2.0)
    body.output.append(declared("kept", shape=[4]))
    nodes = [h.make_node("Loop", ["count", "yes", "start"], ["total", "rows"], body=body)]
    net = model(
        nodes, {"x": (T.FLOAT, [5, 4]), "start": (T.FLOAT, [4])},
        {"total": (T.FLOAT, [4]), "rows": (T.FLOAT, [None, 4])},
        {"count": np.array(9), "yes": np.array(True), "limit": np.array(2.0, np.float32)},
    )  # fmt: skip
    with pytest.raises(opstep.OpstepError, match="Loop cannot be imported: a size depends on data"):
        opstep.from_onnx(net)


@pytest.mark.parametrize("direction", [0, 1])
def test_scan_goes_over_rows(model, agrees, direction):
    nodes = [
        h.make_node("Add", ["total", "row"], ["total_out"]),
        h.make_node("Tanh", ["total_out"], ["kept"]),
    ]
    body = h.make_graph(
        nodes, "body", [declared("total", shape=[4]), declared("row", shape=[4])],
        [declared("total_out", shape=[4]), declared("kept", shape=[4])],
    )  # fmt: skip
    scan = h.make_node(
        "Scan", ["start", "x"], ["total", "rows"], body=body, num_scan_inputs=1,
        scan_input_directions=[direction], scan_output_directions=[direction],
    )  # fmt: skip
    net = model(
        [scan], {"start": (T.FLOAT, [4]), "x": (T.FLOAT, ["t", 4])},
        {"total": (T.FLOAT, [4]), "rows": (T.FLOAT, ["t", 4])},
    )  # fmt: skip
    agrees(net, {"start": floats(4), "x": floats(6, 4)})
