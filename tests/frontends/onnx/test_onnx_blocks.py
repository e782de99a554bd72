"""Blocks that a model repeats are one graph, which is called for each."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from opstep.runtime.ir.printer import print_module

RNG = np.random.default_rng(0)


def layers(count: int, wide: int = -1):
    """Residual layers; that of the number `wide` has other weights."""
    nodes, weights, x = [], {}, "x"
    for k in range(count):
        size = 16 if k == wide else 12
        weights[f"layers.{k}.up.weight"] = RNG.standard_normal((8, size)).astype(np.float32)
        weights[f"layers.{k}.down.weight"] = RNG.standard_normal((size, 8)).astype(np.float32)
        at = f"/layers/layers.{k}"
        nodes += [
            h.make_node("MatMul", [x, f"layers.{k}.up.weight"], [f"{at}/up/MatMul_output_0"]),
            h.make_node("Tanh", [f"{at}/up/MatMul_output_0"], [f"{at}/Tanh_output_0"]),
            h.make_node(
                "MatMul", [f"{at}/Tanh_output_0", f"layers.{k}.down.weight"], [f"{at}/down"]
            ),
            h.make_node("Mul", [f"{at}/down", "tenth"], [f"{at}/Mul_output_0"]),
            h.make_node("Add", [x, f"{at}/Mul_output_0"], [f"{at}/Add_output_0"]),
        ]
        x = f"{at}/Add_output_0"
    nodes.append(h.make_node("Relu", [x], ["y"]))
    return nodes, {**weights, "tenth": np.array(0.1, np.float32)}


SHAPES = {"x": (T.FLOAT, ["n", 8])}, {"y": (T.FLOAT, ["n", 8])}
BLOCK = """\
graph layers(x: f32[n, 8], up_weight: f32[8, 12], down_weight: f32[12, 8]) -> f32[n, 8] {
  up_MatMul = matmul(x, up_weight)
  Tanh = tanh(up_MatMul)
  down = matmul(Tanh, down_weight)
  Mul = mul(down, 0.1)
  Add = add(x, Mul)
  return Add
}
"""


def test_layers_are_calls(model, agrees):
    nodes, weights = layers(6)
    program = agrees(model(nodes, *SHAPES, weights), {"x": np.ones((3, 8), np.float32)})
    text = print_module(program.module)
    assert list(program.graphs) == ["main", "layers"]
    assert text.count("= layers(") == 6
    assert text.endswith(BLOCK)


def test_other_weights_make_another_block(model, agrees):
    nodes, weights = layers(7, wide=3)
    program = agrees(model(nodes, *SHAPES, weights), {"x": np.ones((3, 8), np.float32)})
    text = print_module(program.module)
    assert text.count("= layers(") == 6 and text.count(" = tanh(") == 2


def test_what_is_connected_otherwise_is_no_block(model, agrees):
    nodes, weights = layers(4)
    nodes[5].input[0] = "x"  # the second layer reads what the first one does
    program = agrees(model(nodes, *SHAPES, weights), {"x": np.ones((3, 8), np.float32)})
    assert print_module(program.module).count("= layers(") < 4


def test_constants_are_parts_of_a_block(model, agrees):
    """Numbers in which layers differ are operands."""
    nodes, weights = layers(4)
    del weights["tenth"]
    for k in range(4):
        value = numpy_helper.from_array(np.array(0.1 * (k + 1), np.float32))
        nodes.insert(0, h.make_node("Constant", [], [f"c{k}"], value=value))
    for k, node in enumerate(n for n in nodes if n.op_type == "Mul"):
        node.input[1] = f"c{k}"
    program = agrees(model(nodes, *SHAPES, weights), {"x": np.ones((3, 8), np.float32)})
    assert list(program.graphs) == ["main", "layers"]
    assert "state c3: f32[]" in print_module(program.module)


def test_quantised_layers_are_calls(model, agrees):
    nodes, weights, x = [], {"zero": np.array(0, np.int8), "one": np.array(1, np.float32)}, "x"
    for k in range(3):
        weights[f"w{k}"] = RNG.integers(-9, 9, (8, 8)).astype(np.int8)
        weights[f"scale{k}"] = np.array(0.1 + k, np.float32)
        nodes += [
            h.make_node("QuantizeLinear", [x, "one", "zero"], [f"q{k}"]),
            h.make_node("MatMulInteger", [f"q{k}", f"w{k}"], [f"product{k}"]),
            h.make_node("Cast", [f"product{k}"], [f"wide{k}"], to=T.FLOAT),
            h.make_node("Mul", [f"wide{k}", f"scale{k}"], [f"y{k}"]),
            h.make_node("Add", [x, f"y{k}"], [f"sum{k}"]),
            h.make_node("Tanh", [f"sum{k}"], [f"x{k}"]),
        ]
        x = f"x{k}"
    nodes.append(h.make_node("Relu", [x], ["y"]))
    program = agrees(model(nodes, *SHAPES, weights), {"x": RNG.normal(0, 9, (3, 8)).astype("f4")})
    assert len(program.graphs) == 2
    assert {"w0", "w1", "w2"} <= set(program.module.tensors)
