"""Models become readable programs, with the names of the file, and compute what ONNX Runtime
does.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import opstep
from opstep.cli.main import main
from opstep.runtime.ir.printer import print_module

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def text_of(program: opstep.Program) -> str:
    return print_module(program.module)


@pytest.fixture
def classifier(model):
    nodes = [
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("Gather", ["shape", "first"], ["batch"]),
        h.make_node("Unsqueeze", ["batch", "axes"], ["batch_1"]),
        h.make_node("Concat", ["batch_1", "rest"], ["flat_shape"], axis=0),
        h.make_node("Reshape", ["x", "flat_shape"], ["/flat/Reshape_output_0"]),
        h.make_node("Gemm", ["/flat/Reshape_output_0", "fc.weight", "fc.bias"], ["h"], transB=1),
        h.make_node("Relu", ["h"], ["/act/Relu_output_0"]),
        h.make_node("Mul", ["/act/Relu_output_0", "half"], ["y"]),
    ]
    weights = {
        "first": np.array(0), "axes": np.array([0]), "rest": np.array([-1]),
        "fc.weight": floats(5, 12), "fc.bias": floats(5), "half": np.array(0.1, np.float32),
    }  # fmt: skip
    return model(
        nodes, {"x": (T.FLOAT, ["batch size", 3, 4])}, {"y": (T.FLOAT, ["batch size", 5])}, weights
    )


TEXT = """\
param fc.weight: f32[5, 12]
param fc.bias: f32[5]

graph main(x: f32[batch_size, 3, 4]) -> f32[batch_size, 5] {
  flat_Reshape = reshape(x, shape=[batch_size, -1])
  h = linear(flat_Reshape, fc.weight, fc.bias)
  act_Relu = relu(h)
  y = mul(act_Relu, 0.1)
  return y
}
"""


def test_text_has_the_names_of_the_file(classifier, agrees):
    program = agrees(classifier, {"x": floats(2, 3, 4)})
    assert text_of(program) == TEXT


def test_every_command_takes_the_file(classifier, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier, "net.onnx")
    assert main(["check", "net.onnx"]) == 0
    for command in ("run", "hunt", "plan", "bench"):
        given = [] if command in ("plan", "bench") else ["--input", "random"]
        assert main([command, "net.onnx", *given, "--symbol", "batch_size=2"]) == 0, command
    steps = ["-ex", "break 6", "-ex", "run", "-ex", "print max(flat_Reshape)", "--batch"]
    words = ["debug", "net.onnx", "--input", "random", "--symbol", "batch_size=2", *steps]
    assert main(words) == 0
    assert "max(flat_Reshape) =" in capsys.readouterr().out
    assert main(["import", "net.onnx"]) == 0
    loaded = opstep.load("net.opg")
    assert text_of(loaded) == TEXT
    np.testing.assert_array_equal(
        loaded.params["fc.bias"], opstep.load("net.onnx").params["fc.bias"]
    )


def test_onnx_is_imported_late():
    code = "import opstep, sys; opstep.loads('graph main() {}'); print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_weights_in_other_files_are_mapped(model, tmp_path, agrees):
    w = floats(64, 32)
    nodes = [h.make_node("MatMul", ["x", "w"], ["y"])]
    net = model(nodes, {"x": (T.FLOAT, [2, 64])}, {"y": (T.FLOAT, [2, 32])}, {"w": w})
    onnx.save(
        net, tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0, location="w.bin"
    )
    program = opstep.from_onnx(tmp_path / "net.onnx")
    held = program.files.tensors(["w"], program.params)["w"]
    base = held
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    x = floats(2, 64)
    np.testing.assert_allclose(program.run("main", {"x": x})["y"], x @ w, atol=1e-4)


def test_constants_decide_shapes(model):
    nodes = [h.make_node("Reshape", ["x", "shape"], ["y"])]
    net = model(
        nodes, {"x": (T.FLOAT, [6]), "shape": (T.INT64, [2])}, {"y": (T.FLOAT, [None, None])}
    )
    with pytest.raises(opstep.OpstepError, match="a size depends on data"):
        opstep.from_onnx(net)
    program = opstep.from_onnx(net, constants={"shape": [2, 3]})
    assert program.run("main", {"x": np.arange(6, dtype=np.float32)})["y"].shape == (2, 3)


def test_functions_are_graphs(model, agrees):
    body = [h.make_node("Mul", ["a", "a"], ["s"]), h.make_node("Add", ["s", "b"], ["r"])]
    function = h.make_function("own", "Squared", ["a", "b"], ["r"], body, [h.make_opsetid("", 17)])
    nodes = [
        h.make_node("Squared", ["x", "w"], ["h"], domain="own"),
        h.make_node("Squared", ["h", "w"], ["y"], domain="own"),
    ]
    net = model(
        nodes, {"x": (T.FLOAT, [2, 4])}, {"y": (T.FLOAT, [2, 4])}, {"w": floats(4)},
        opsets=[h.make_opsetid("own", 1)], functions=[function],
    )  # fmt: skip
    program = agrees(net, {"x": floats(2, 4)})
    assert list(program.graphs) == ["main", "Squared"]
    assert text_of(program).count("Squared(") == 3


def test_operators_without_a_rule_are_their_definitions(model, agrees):
    nodes = [h.make_node("MeanVarianceNormalization", ["x"], ["y"])]
    shape = [2, 3, 4, 5]
    net = model(nodes, {"x": (T.FLOAT, shape)}, {"y": (T.FLOAT, shape)})
    program = agrees(net, {"x": floats(*shape)})
    assert "MeanVarianceNormalization(x)" in text_of(program)


def test_lines_of_pytorch_are_kept(model):
    node = h.make_node("Relu", ["x"], ["y"])
    trace = (
        'File "train.py", line 10, in <module>\n  net(x)\nFile "net.py", line 33, in forward\n  y'
    )
    for key, value in (
        ("pkg.torch.onnx.stack_trace", trace),
        ("pkg.torch.onnx.name_scopes", "['', 'encoder', 'encoder.0', 'relu']"),
    ):
        node.metadata_props.add(key=key, value=value)
    net = model([node], {"x": (T.FLOAT, [2])}, {"y": (T.FLOAT, [2])})
    line = 'y = relu(x) at "net.py":33, "train.py":10 in "encoder.0"'
    assert line in text_of(opstep.from_onnx(net))


@pytest.mark.parametrize("opset, axis", [(11, 1), (13, 1)])
def test_softmax_of_old_takes_all_axes_behind(model, agrees, opset, axis):
    nodes = [h.make_node("Softmax", ["x"], ["y"], axis=axis)]
    net = model(nodes, {"x": (T.FLOAT, [2, 3, 4])}, {"y": (T.FLOAT, [2, 3, 4])}, opset=opset)
    agrees(net, {"x": floats(2, 3, 4)})


def test_a_product_takes_its_operands_as_they_are_before_a_transpose(model, agrees):
    """A tensor that others read, or the model returns, is transposed for them."""
    nodes = [
        h.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        h.make_node("MatMul", ["x", "turned"], ["inner"]),
        h.make_node("Transpose", ["inner"], ["kept"], perm=[1, 0]),
        h.make_node("MatMul", ["kept", "inner"], ["y"]),
    ]
    weights = {"w": floats(5, 4)}
    results = {"y": (T.FLOAT, [5, 5]), "kept": (T.FLOAT, [5, "n"])}
    net = model(nodes, {"x": (T.FLOAT, ["n", 4])}, results, weights)
    program = agrees(net, {"x": floats(3, 4)})
    text = text_of(program)
    assert "inner = matmul(x, w, transpose_b=true)" in text
    assert "y = matmul(inner, inner, transpose_a=true)" in text
    assert text.count("= transpose(") == 1


def test_the_largest_number_as_exporters_write_it(model, agrees):
    """Nine digits of it are above it, and nearer to it than to anything else."""
    least = np.float32(np.finfo(np.float32).min)
    nodes = [h.make_node("Where", ["seen", "x", "least"], ["y"])]
    inputs = {"seen": (T.BOOL, [3]), "x": (T.FLOAT, [3])}
    net = model(nodes, inputs, {"y": (T.FLOAT, [3])}, {"least": least})
    agrees(net, {"seen": np.array([1, 0, 1], bool), "x": np.ones(3, np.float32)})
