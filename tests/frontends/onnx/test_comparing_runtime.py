"""``opstep diff model.onnx --against onnxruntime``: a fault is found where it is."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import opstep
from opstep.cli.main import main
from opstep.frontends.onnx.comparing import diff_onnx
from opstep.frontends.onnx.rules import all_rules
from opstep.frontends.onnx.rules.registry import RULES

RNG = np.random.default_rng(3)
NODES = [  # each on the result of the one before, with these weights behind it
    ("Conv", {"pads": [1, 1, 1, 1]}, [(8, 3, 3, 3), (8,)]),
    ("BatchNormalization", {}, [(8,), (8,), (8,), "positive"]),
    ("LeakyRelu", {"alpha": 0.1}, []),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, []),
    ("ConvTranspose", {"strides": [2, 2]}, [(8, 4, 2, 2)]),
    ("HardSwish", {}, []),
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, []),
    ("Softplus", {}, []),
    ("GlobalAveragePool", {}, []),
    ("Flatten", {}, []),
    ("Gemm", {"transB": 1}, [(16, 4), (16,)]),
    ("Tanh", {}, []),
    ("LayerNormalization", {}, [(16,), (16,)]),
    ("Gelu", {}, []),
    ("MatMul", {}, [(16, 16)]),
    ("Elu", {}, []),
    ("ReduceL2", {"keepdims": 1}, ["axes"]),
    ("Sqrt", {}, []),
    ("Mul", {}, [(1, 16)]),
    ("Sigmoid", {}, []),
    ("Pow", {}, ["two"]),
    ("Erf", {}, []),
    ("Sub", {}, [(16,)]),
    ("Abs", {}, []),
    ("Add", {}, [(16,)]),
    ("CumSum", {}, ["axis"]),
    ("Cos", {}, []),
    ("Exp", {}, []),
    ("Div", {}, ["large"]),
    ("Softmax", {"axis": -1}, []),
]
OPS = [op for op, *_ in NODES]


def weight(kind) -> np.ndarray:
    special = {
        "axes": np.int64([1]), "axis": np.int64(1), "two": np.float32(2.0),
        "positive": RNG.uniform(0.5, 1.5, 8).astype("f4"), "large": np.float32(3.0),
    }  # fmt: skip
    if isinstance(kind, str):
        return special[kind]
    return (RNG.standard_normal(kind) * 0.4).astype("f4")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A chain of nodes, each of another kind."""
    nodes, weights, last = [], [], "x"
    for k, (op, attrs, kinds) in enumerate(NODES):
        names = [f"w{k}_{j}" for j in range(len(kinds))]
        weights += [
            numpy_helper.from_array(weight(c), n) for c, n in zip(kinds, names, strict=True)
        ]
        nodes.append(helper.make_node(op, [last, *names], [f"v{k}"], **attrs))
        last = f"v{k}"
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["N", 16])], weights,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    path = tmp_path_factory.mktemp("models") / "chain.onnx"
    onnx.save(made, path)
    return path


X = {"x": RNG.standard_normal((2, 3, 8, 8)).astype("f4")}


def test_right_sides_agree(model):
    found = diff_onnx(model, X)
    assert found.same
    assert found.compared == len(NODES)
    (output,) = found.outputs.values()
    assert output.apart.relative < 1e-5


@pytest.mark.parametrize("op", OPS)
def test_a_wrong_node_is_found(model, op, monkeypatch):
    """Of thirty in a row, each of which passes the error on."""
    all_rules()

    def spoiled(rule):
        def wrong(b, *inputs, **attrs):
            found = rule.function(b, *inputs, **attrs)
            y = found[0] if isinstance(found, list) or type(found) is tuple else found
            return b.add(b.mul(y, 1.001), 0.001)

        return rule._replace(function=wrong)

    monkeypatch.setitem(RULES, ("", op), [spoiled(rule) for rule in RULES["", op]])
    found = diff_onnx(model, X)
    assert not found.same
    assert (found.first.op, found.first.verdict) == (op, "a")
    assert found.first.elements.differing > 0
    assert [d.op for d in found.faults] == [op]


def test_the_command(model, monkeypatch, capsys):
    line = ["diff", str(model), "--against", "onnxruntime", "-i", "random", "-s", "N=2"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "they agree" in shown and "?" not in shown
    all_rules()
    (rule, *_) = RULES["", "Tanh"]
    wrong = rule._replace(function=lambda b, x: b.atan(x))
    monkeypatch.setitem(RULES, ("", "Tanh"), [wrong])
    assert main([*line, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["first"]["op"], found["first"]["verdict"]) == ("Tanh", "a")
    assert found["first"]["statement"].startswith("v11 = atan(")
    assert main(line) == 1
    shown = capsys.readouterr().out
    assert "first: Tanh gives f32[2, 16]" in shown
    assert "a is wrong" in shown
    assert main([*line, "--params", "x.safetensors"]) == 2
    assert "does not fit --against onnxruntime" in capsys.readouterr().err


def test_models_that_one_side_refuses(tmp_path):
    with pytest.raises(opstep.OpstepError, match="no such file"):
        diff_onnx(tmp_path / "none.onnx", X)
