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


def test_both_sides_are_kept_in_a_workspace(model, tmp_path, monkeypatch, capsys):
    all_rules()
    (rule, *_) = RULES["", "Tanh"]
    wrong = rule._replace(function=lambda b, x: b.atan(x))
    monkeypatch.setitem(RULES, ("", "Tanh"), [wrong])
    runs = str(tmp_path / "runs.db")
    line = ["diff", str(model), "--against", "onnxruntime", "-i", "random", "-s", "N=2"]
    assert main([*line, "-w", runs]) == 1
    kept = capsys.readouterr().err
    keys = kept.partition(" compare ")[2].split()[:2]
    assert main(["ws", runs, "compare", *keys, "--rtol", "1e-5"]) == 1
    assert "differ at the end: v11, v12" in capsys.readouterr().out
    assert main(["ws", runs, "list", "runs"]) == 0
    assert "onnxruntime" in capsys.readouterr().out


def quantised(path, x, scale, dtype=TensorProto.UINT8, nodes=()):
    """A model that quantises `x`, and then has `nodes`."""
    zero = helper.make_tensor("zero", dtype, [], [3])
    weights = [numpy_helper.from_array(np.float32(scale), "scale"), zero]
    made = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])
    graph = helper.make_graph(
        [made, *nodes], "steps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))],
        [helper.make_tensor_value_info("q", dtype, list(x.shape))], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def quantise_otherwise(monkeypatch, rounded) -> None:
    all_rules()

    def function(b, x, scale, zero, **attrs):
        y = b.add(rounded(b, x, scale), b.to(zero, x.dtype))
        return b.cast(b.clip(y, low=0.0, high=255.0), dtype=zero.dtype)

    (rule, *_) = RULES["", "QuantizeLinear"]
    monkeypatch.setitem(RULES, ("", "QuantizeLinear"), [rule._replace(function=function)])


def test_a_tie_that_is_rounded_the_other_way_is_rounding(tmp_path, monkeypatch):
    """Where a product with the reciprocal is a bit larger than the quotient."""
    scale = np.float32(0.1)
    x = (np.arange(40, dtype=np.float32) + np.float32(0.5)) * scale
    quantise_otherwise(
        monkeypatch, lambda b, x, s: b.round(b.mul(x, b.mul(b.reciprocal(s), 1.0000003)))
    )
    found = diff_onnx(quantised(tmp_path / "q.onnx", x, scale), {"x": x})
    assert found.same
    assert {d.verdict for d in found.differing} == {"rounding"}
    assert found.differing[0].elements.most == 1


def test_a_step_too_far_from_a_tie_is_a_fault(tmp_path, monkeypatch):
    x = RNG.standard_normal(64).astype("f4")
    quantise_otherwise(monkeypatch, lambda b, x, s: b.floor(b.div(x, s)))
    found = diff_onnx(quantised(tmp_path / "q.onnx", x, 0.03), {"x": x})
    assert (found.first.op, found.first.verdict) == ("QuantizeLinear", "a")
    assert found.first.elements.most == 1


def test_a_small_fault_behind_a_tie_is_found(tmp_path, monkeypatch):
    """What came in does not explain what comes of integers that differ."""
    scale = np.float32(0.1)
    x = (np.arange(40, dtype=np.float32) + np.float32(0.5)) * scale
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Tanh", ["d"], ["t"]),
    ]
    quantise_otherwise(
        monkeypatch, lambda b, x, s: b.round(b.mul(x, b.mul(b.reciprocal(s), 1.0000003)))
    )
    (rule, *_) = RULES["", "Tanh"]
    wrong = rule._replace(function=lambda b, x: b.mul(b.tanh(x), 1.0001))
    monkeypatch.setitem(RULES, ("", "Tanh"), [wrong])
    path = quantised(tmp_path / "q.onnx", x, scale, nodes=nodes)
    found = diff_onnx(path, {"x": x})
    assert (found.first.op, found.first.verdict) == ("Tanh", "a")


@pytest.mark.parametrize("op", ["FastGelu", "QuickGelu", "BiasGelu", "FusedMatMul"])
def test_operators_of_onnx_runtime_are_judged(tmp_path, op, monkeypatch):
    all_rules()
    second = {"BiasGelu": (4,), "FusedMatMul": (4, 4)}.get(op)
    weights = [] if second is None else [numpy_helper.from_array(weight(second), "w")]
    nodes = [
        helper.make_node(op, ["x", *("w" for _ in weights)], ["y"], domain="com.microsoft"),
        helper.make_node("Exp", ["y"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes, "own", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3, 4])], weights,
    )  # fmt: skip
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "own.onnx"
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=8), path)
    x = {"x": RNG.standard_normal((3, 4)).astype("f4")}
    assert diff_onnx(path, x).same
    rules = RULES["com.microsoft", op]
    function = rules[0].function
    wrong = rules[0]._replace(function=lambda b, *a, **k: b.mul(function(b, *a, **k), 1.001))
    monkeypatch.setitem(RULES, ("com.microsoft", op), [wrong])
    found = diff_onnx(path, x)
    assert (found.first.op, found.first.verdict) == (op, "a")


def test_models_that_one_side_refuses(tmp_path):
    with pytest.raises(opstep.OpstepError, match="no such file"):
        diff_onnx(tmp_path / "none.onnx", X)
