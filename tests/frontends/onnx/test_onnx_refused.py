"""Bad files: told with what is wrong and where, without a traceback; nothing outside is read."""

from __future__ import annotations

import random
import sys

import numpy as np
import onnx
import pytest
from mutating import mutate
from onnx import TensorProto as T
from onnx import helper as h

import opstep
from opstep.cli.main import main

X, Y = {"x": (T.FLOAT, [2, 3])}, {"y": (T.FLOAT, [2, 3])}


def refused(model, text: str) -> opstep.OpstepError:
    with pytest.raises(opstep.OpstepError, match=text) as raised:
        opstep.from_onnx(model)
    return raised.value


def test_all_that_is_missing_is_told_in_one_go(model):
    nodes = [
        h.make_node("Unique", ["x"], ["u"], name="first"),
        h.make_node("Relu", ["u"], ["r"]),
        h.make_node("Unique", ["r"], ["v"], name="second"),
        h.make_node("QMoE", ["x"], ["q"], domain="com.microsoft"),
        h.make_node("SequenceConstruct", ["x"], ["s"]),
        h.make_node("Mine", ["x"], ["y"], domain="mine"),
    ]
    opsets = [h.make_opsetid("com.microsoft", 1), h.make_opsetid("mine", 1)]
    error = refused(model(nodes, X, Y, opsets=opsets), "Unique")
    assert {d.message.removeprefix("<model>: ") for d in error.diagnostics} == {
        "node first: Unique cannot be imported: a size depends on data (2 times)",
        "the node that makes q: com.microsoft.QMoE cannot be imported: there is no op for it",
        "the node that makes s: SequenceConstruct cannot be imported: sequences have no "
        "counterpart",
        "the node that makes y: mine.Mine cannot be imported: there is no op for it",
    }


@pytest.mark.parametrize(
    "nodes, text",
    [
        (
            [("Relu", ["b"], ["a"]), ("Relu", ["a"], ["b"]), ("Relu", ["b"], ["y"])],
            "topologically sorted.*Relu",
        ),
        ([("Relu", ["x"], ["y"]), ("Abs", ["x"], ["y"])], "y"),
        ([("Relu", ["nothing"], ["y"])], "nothing"),
        ([("Relu", ["x", "x"], ["y"])], "Relu"),
        ([("NoSuchOp", ["x"], ["y"])], "NoSuchOp"),
    ],
    ids=["cycle", "twice", "unknown value", "inputs", "operator"],
)
def test_what_the_checker_refuses(model, nodes, text):
    refused(model([h.make_node(*n) for n in nodes], X, Y), text)


@pytest.mark.parametrize("op", ["Add", "ConstantOfShape"])
def test_what_is_known_of_nothing(model, op):
    nodes = [h.make_node(op, ["", "c"][: 2 if op == "Add" else 1], ["s"]),
             h.make_node("Add", ["x", "s"], ["y"])]  # fmt: skip
    with pytest.raises(opstep.OpstepError):
        opstep.from_onnx(model(nodes, X, Y, {"c": np.int64([2, 3])}))


def test_shapes_that_contradict_each_other(model):
    nodes = [
        h.make_node("Relu", ["x"], ["r"]),
        h.make_node("MatMul", ["r", "w"], ["m"], name="product"),
        h.make_node("Relu", ["m"], ["y"]),
    ]
    refused(model(nodes, X, Y, {"w": np.ones((4, 3), np.float32)}), "node product: MatMul .*3")
    nodes = [h.make_node("Transpose", ["x"], ["y"])]
    refused(model(nodes, X, Y), r"output y is f32\[3, 2\], but the model says")


@pytest.mark.parametrize("kind, word", [(T.STRING, "string"), (T.FLOAT8E5M2, "float8e5m2")])
def test_element_types_without_a_counterpart(model, kind, word):
    nodes = [h.make_node("Identity", ["x"], ["y"])]
    refused(model(nodes, {"x": (kind, [2])}, {"y": (kind, [2])}, opset=21), f"input x: {word}")


def test_functions_that_call_each_other(model):
    imports = [h.make_opsetid("", 17), h.make_opsetid("own", 1)]
    functions = [
        h.make_function(
            "own", a, ["x"], ["y"], [h.make_node(b, ["x"], ["y"], domain="own")], imports
        )
        for a, b in (("Ping", "Pong"), ("Pong", "Ping"))
    ]
    nodes = [h.make_node("Ping", ["x"], ["y"], domain="own")]
    refused(model(nodes, X, Y, opsets=imports[1:], functions=functions), "must not be recursive")


def test_a_version_from_the_future(model):
    net = model([h.make_node("Relu", ["x"], ["y"])], X, Y)
    net.opset_import[0].version = 99
    refused(net, "99")


def external(place: str, offset: str = "0", length: str = "24"):
    nodes = [h.make_node("Add", ["x", "w"], ["y"])]
    w = onnx.TensorProto(name="w", data_type=T.FLOAT, dims=[2, 3], data_location=1)
    for key, value in (("location", place), ("offset", offset), ("length", length)):
        w.external_data.add(key=key, value=value)
    values = [h.make_tensor_value_info(n, T.FLOAT, [2, 3]) for n in ("x", "y")]
    graph = h.make_graph(nodes, "g", values[:1], values[1:], [w])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "place, offset, length, text",
    [
        ("../w.bin", "0", "24", "outside of the model's folder"),
        ("/etc/passwd", "0", "24", "outside of the model's folder"),
        ("link.bin", "0", "24", "outside of the model's folder"),
        ("self.bin", "0", "24", "link to itself|not there"),
        ("gone.bin", "0", "24", "not there\\nhint: move or copy a model together"),
        ("short.bin", "0", "24", "ends before it does"),
        ("w.bin", "-8", "24", "ends before it does"),
        ("w.bin", "9999999999999", "24", "ends before it does"),
        ("w.bin", "0", "9999", "9999 bytes for the shape"),
        ("w.bin", "zero", "24", "no number"),
    ],
)  # fmt: skip
def test_weights_in_other_files(tmp_path, place, offset, length, text):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(24))
    (folder / "w.bin").write_bytes(bytes(24))
    (folder / "short.bin").write_bytes(bytes(8))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "self.bin").symlink_to("self.bin")
    (folder / "net.onnx").write_bytes(external(place, offset, length).SerializeToString())
    with pytest.raises(opstep.OpstepError, match=text):
        opstep.from_onnx(folder / "net.onnx").run("main", {"x": np.zeros((2, 3), np.float32)})


def test_sizes_that_lie(model):
    """Memory is not taken for what a file only says that it has."""
    net = model([h.make_node("Add", ["x", "w"], ["y"])], X, Y, {"w": np.ones((2, 3), np.float32)})
    net.graph.initializer[0].dims[:] = [2**40, 3]
    with pytest.raises(
        opstep.OpstepError, match=r"too small for the declared shape|bytes for the shape"
    ):
        opstep.from_onnx(net).run("main", {"x": np.zeros((2, 3), np.float32)})


def test_sizes_that_nothing_holds(model):
    """An axis is not resized to whatever a file says, if a table is needed for it."""
    nodes = [h.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")]
    scales = {"scales": np.array([1, 2**29], np.float32)}
    refused(model(nodes, X, {"y": (T.FLOAT, [2, 3 * 2**29])}, scales), "so many elements")


@pytest.mark.parametrize(
    "node, text",
    [
        (h.make_node("Split", ["x"], ["y"], num_outputs=2**62), "Split into 46116860"),
        (h.make_node("Split", ["x"], ["y"], num_outputs=-1), "Split into -1 parts"),
        (
            h.make_node("Scan", ["x"], ["y"], num_scan_inputs=2**62, body=h.make_graph(
                [h.make_node("Relu", ["r"], ["o"])], "body",
                [h.make_tensor_value_info("r", T.FLOAT, [3])],
                [h.make_tensor_value_info("o", T.FLOAT, [3])],
            )),
            "Scan of 4611686018427387904 of its 1 inputs",
        ),
    ],
    ids=["many outputs", "no outputs", "many inputs"],
)  # fmt: skip
def test_counts_that_a_node_does_not_have(model, node, text):
    refused(model([node], X, Y, opset=18), text)


def test_numbers_of_elements_that_no_integer_holds(model):
    inputs = {"x": (T.FLOAT, [2**40, 2**40])}
    size = h.make_node("Size", ["x"], ["y"])
    refused(model([size], inputs, {"y": (T.INT64, [])}), "y: Size cannot be imported: .*i64")


@pytest.mark.parametrize("most", [np.zeros(0, np.int64), np.arange(2)])
def test_loops_of_no_one_number_of_turns(model, most):
    value = h.make_tensor_value_info
    i, go, went = value("i", T.INT64, []), value("go", T.BOOL, []), value("went", T.BOOL, [])
    v, out = value("v", T.FLOAT, [2, 3]), value("out", T.FLOAT, [2, 3])
    nodes = [h.make_node("Identity", ["go"], ["went"]), h.make_node("Relu", ["v"], ["out"])]
    body = h.make_graph(nodes, "body", [i, go, v], [went, out])
    loop = h.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    refused(model([loop], X, Y, {"n": most}), "number of turns")


def test_files_that_are_none(tmp_path, capsys):
    path = tmp_path / "net.onnx"
    for content in (b"", b"graph main() {}", bytes(100), b"\xff" * 50):
        path.write_bytes(content)
        assert main(["check", str(path)]) != 0
        assert "Traceback" not in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none.onnx")]) != 0


def _mutated_bytes(whole: bytes, draw: random.Random) -> onnx.ModelProto | None:
    content = bytearray(whole)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(content))
        match draw.randrange(3):
            case 0:
                content[place] = draw.randrange(256)
            case 1:
                del content[place : place + draw.randint(1, 9)]
            case _:
                content[place:place] = draw.randbytes(draw.randint(1, 4))
    try:
        return onnx.ModelProto.FromString(bytes(content))
    except Exception:  # protobuf's own; no model comes of it
        return None


def _mutated_fields(whole: bytes, draw: random.Random) -> onnx.ModelProto:
    mutated = onnx.ModelProto.FromString(whole)
    for _ in range(draw.randint(1, 3)):
        mutate(mutated, draw)
    return mutated


@pytest.mark.parametrize("mutated", [_mutated_bytes, _mutated_fields], ids=["bytes", "fields"])
def test_mutated_files_are_read_or_refused(model, mutated):
    """No other exception than ours, whatever there is."""
    nodes = [
        h.make_node("Size", ["x"], ["size"]),
        h.make_node("Reshape", ["x", "shape"], ["r"]),
        h.make_node("Conv", ["r", "w"], ["c"], pads=[1, 1], strides=[1]),
        h.make_node("If", ["go"], ["y"], then_branch=_branch("Relu"), else_branch=_branch("Abs")),
    ]
    weights = {"w": np.ones((2, 3, 3), np.float32), "shape": np.array([1, 3, -1])}
    inputs = {"x": (T.FLOAT, ["n", 3]), "go": (T.BOOL, [])}
    outputs = {"y": (T.FLOAT, [1, 2, None]), "size": (T.INT64, [])}
    whole = model(nodes, inputs, outputs, weights).SerializeToString()
    draw = random.Random(0)
    good = 0
    for _ in range(600):
        try:
            found = mutated(whole, draw)
            good += found is not None and opstep.from_onnx(found) is not None
        except opstep.OpstepError:
            pass
    assert good > 10


def _branch(op: str):
    out = h.make_tensor_value_info(f"{op}_out", T.FLOAT, None)
    return h.make_graph([h.make_node(op, ["c"], [f"{op}_out"])], op, [], [out])


def test_a_runtime_that_cannot_be_imported(model, tmp_path, monkeypatch, capsys):
    path = tmp_path / "net.onnx"
    onnx.save(model([h.make_node("Relu", ["x"], ["y"])], X, Y), path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["diff", str(path), "--against", "onnxruntime"]) == 2
    assert "ONNX Runtime needs it, and it cannot be imported" in capsys.readouterr().err
