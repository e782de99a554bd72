"""Quantised layers give the same integers as ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from opstep.runtime.ir.printer import print_module

RNG = np.random.default_rng(0)


def bytes_(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def signed(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 128, shape).astype(np.int8)


def scale(*values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32)


def test_a_convolution_is_one_of_integers(model, agrees):
    weights = {
        "xs": scale(0.02), "xz": np.array(120, np.uint8), "w": signed(6, 3, 3, 3),
        "ws": scale(0.01, 0.02, 0.03, 0.011, 0.012, 0.013), "wz": np.zeros(6, np.int8),
        "ys": scale(0.4), "yz": np.array(128, np.uint8),
        "bias": RNG.integers(-500, 500, 6).astype(np.int32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
    nodes = [h.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1], strides=[2, 2])]
    net = model(nodes, {"x": (T.UINT8, ["n", 3, 9, 9])}, {"y": (T.UINT8, ["n", 6, 5, 5])}, weights)
    program = agrees(net, {"x": bytes_(2, 3, 9, 9)})
    assert "conv2d_integer(" in print_module(program.module)


def test_a_product_is_one_of_integers(model, agrees):
    weights = {
        "xs": scale(0.02), "xz": np.array(3, np.uint8), "w": signed(16, 8), "ws": scale(0.01),
        "wz": np.array(0, np.int8), "ys": scale(0.3), "yz": np.array(100, np.uint8),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    nodes = [h.make_node("QLinearMatMul", names, ["y"])]
    net = model(nodes, {"x": (T.UINT8, [5, 16])}, {"y": (T.UINT8, [5, 8])}, weights)
    agrees(net, {"x": bytes_(5, 16)})


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_to_integers_and_back(model, agrees, axis):
    size = {None: (), 0: (4,), 1: (6,)}[axis]
    weights = {
        "s": np.full(size, 0.05, np.float32) * np.float32(1.25),
        "z": np.full(size, -7, np.int8),
    }
    how = {} if axis is None else {"axis": axis}
    nodes = [
        h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **how),
        h.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **how),
    ]
    outputs = {"q": (T.INT8, [4, 6]), "y": (T.FLOAT, [4, 6])}
    x = (RNG.standard_normal((4, 6)) * 8).astype(np.float32)
    agrees(model(nodes, {"x": (T.FLOAT, [4, 6])}, outputs, weights), {"x": x})


def test_scales_that_are_found_in_the_run(model, agrees):
    nodes = [
        h.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        h.make_node("MatMulInteger", ["q", "w", "z"], ["m"]),
        h.make_node("Cast", ["m"], ["f"], to=T.FLOAT),
        h.make_node("Mul", ["f", "s"], ["y"]),
    ]
    net = model(
        nodes, {"x": (T.FLOAT, [3, 16])}, {"q": (T.UINT8, [3, 16]), "y": (T.FLOAT, [3, 4])},
        {"w": signed(16, 4)},
    )  # fmt: skip
    agrees(net, {"x": RNG.standard_normal((3, 16)).astype(np.float32)})


@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
def test_a_network_that_onnx_runtime_quantised(agrees, tmp_path, form):
    """To the last bit: integers are summed, and scales are multiplied in the same order."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    pytest.importorskip("torch")
    from test_onnx_models import exported

    plain, inputs = exported("image", dynamo=False)
    onnx.save(plain, tmp_path / "plain.onnx")

    class Samples(quantization.CalibrationDataReader):
        def __init__(self):
            self.left = [inputs] * 2

        def get_next(self):
            return self.left.pop() if self.left else None

    quantization.quantize_static(
        tmp_path / "plain.onnx", tmp_path / "net.onnx", Samples(),
        quant_format=quantization.QuantFormat[form], per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
    )  # fmt: skip
    program = agrees(onnx.load(tmp_path / "net.onnx"), inputs)
    text = print_module(program.module)
    assert "conv2d_integer(" in text
    assert "value=0" not in text  # zero points are left out


def test_products_between_dequantised_values_are_of_integers(model, agrees):
    weights = {
        "xs": scale(0.02), "xz": np.array(120, np.uint8), "w": signed(16, 8),
        "ws": np.linspace(0.01, 0.02, 8, dtype=np.float32), "wz": np.zeros(8, np.int8),
        "ys": scale(0.4), "yz": np.array(128, np.uint8),
    }  # fmt: skip
    nodes = [
        h.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        h.make_node("DequantizeLinear", ["w", "ws", "wz"], ["b"], axis=1),
        h.make_node("MatMul", ["a", "b"], ["c"]),
        h.make_node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    net = model(nodes, {"x": (T.UINT8, ["n", 16])}, {"y": (T.UINT8, ["n", 8])}, weights)
    text = print_module(agrees(net, {"x": bytes_(50, 16)}).module)
    assert text.index("matmul_integer(") < text.index("f32)")  # it is one of integers
    seen = model(
        nodes, {"x": (T.UINT8, ["n", 16])},
        {"y": (T.UINT8, ["n", 8]), "c": (T.FLOAT, ["n", 8])}, weights,
    )  # fmt: skip
    text = print_module(agrees(seen, {"x": bytes_(50, 16)}).module)
    assert text.index("f32)") < text.index("matmul(")  # its result is asked for
