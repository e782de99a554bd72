"""The project's examples as models of ONNX: the same numbers in ONNX Runtime, and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import opstep
from opstep.api.sources import gather
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.printer import print_module

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SIZES = {"N": 2, "B": 2, "L": 12, "T": 5, "H": 16, "W": 16, "C": 4, "O": 4, "K": 8, "D": 8}
RELATIVE = 1e-5  # of the largest element
DRAWS = {  # others in each step, which ONNX cannot
    ("alexnet", "loss"), ("alexnet", "masks"), ("lenet_train", "loss"), ("lenet_train", "moved"),
}  # fmt: skip
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.opg"))


def inputs(program: opstep.Program, name: str) -> dict[str, np.ndarray]:
    """Random inputs, with some size for each symbol."""
    graph = program.graphs[name]
    dims = [d for b in graph.inputs if b.type for d in b.type.shape if isinstance(d, Expr)]
    symbols = {s for d in dims for s in d.symbols()}
    return gather(program, graph, ["random"], {s: SIZES.get(s, 3) for s in symbols}, 0)


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    largest = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=RELATIVE * largest)


def graphs(name: str) -> list[str]:
    program = opstep.load(EXAMPLES / f"{name}.opg")
    return [g for g in program.graphs if (name, g) not in DRAWS]


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_numbers(name, tmp_path):
    """All graphs of an example; after a run the params and states are the model's results."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    program = opstep.load(EXAMPLES / f"{name}.opg")
    for graph in graphs(name):
        path = tmp_path / f"{graph}.onnx"
        opstep.to_onnx(program, path, graph, updates=True, drop_asserts=True)
        onnx.checker.check_model(str(path), full_check=True)
        session = onnxruntime.InferenceSession(str(path), options)
        given = inputs(program, graph)
        names = [o.name for o in session.get_outputs()]
        found = dict(zip(names, session.run(None, given), strict=True))
        wanted = program.run(graph, given).outputs
        for got, want in zip(found.values(), wanted, strict=False):
            close(got, want)
        for result in list(found)[len(wanted) :]:
            close(found[result], program.params[result.removesuffix("/next")])


@pytest.mark.parametrize(("name", "graph"), sorted(DRAWS))
def test_random_numbers_are_refused_at_their_lines(name, graph, tmp_path):
    program = opstep.load(EXAMPLES / f"{name}.opg")
    with pytest.raises(opstep.OpstepError) as caught:
        opstep.to_onnx(program, tmp_path / "model.onnx", graph)
    for d in caught.value.diagnostics:
        assert f"{name}.opg:" in d.where()
        assert "ONNX" in d.message
        assert d.hint


READ_BACK = [p for p in PROGRAMS if p not in ("alexnet", "gpt")]  # of many weights


@pytest.mark.parametrize("name", READ_BACK)
def test_read_back(name, tmp_path):
    """What was exported computes the same when it is read again."""
    program = opstep.load(EXAMPLES / f"{name}.opg")
    for graph in graphs(name):
        path = tmp_path / f"{graph}.onnx"
        opstep.to_onnx(program, path, graph, updates=True, drop_asserts=True)
        again = opstep.load(path)
        given = inputs(program, graph)
        results = again.run(None, given).outputs
        for got, want in zip(results, program.run(graph, given).outputs, strict=False):
            close(got, want)


COMPOSITE = """param w: f32[6, 8] = ones()
param b: f32[6] = ones()

graph main(x: f32[N, 3, 8], label: i64[N, 3]) -> f32[], f32[N, 3, 6] {
  h = linear(x, w, b) at "model.py":12 in "layers.0"
  a = gelu(h)
  p = softplus(a, beta=2.0)
  factor = rsqrt(p)
  y = logaddexp(p, factor)
  loss = softmax_cross_entropy(y, label, axis=2)
  return loss, y
}
"""


def exported(tmp_path) -> tuple[opstep.Program, Path]:
    path = tmp_path / "composite.opg"
    path.write_text(COMPOSITE)
    opstep.to_onnx(opstep.load(path), tmp_path / "model.onnx")
    return opstep.load(path), tmp_path / "model.onnx"


def test_ops_of_several_nodes_come_back_as_they_were(tmp_path):
    program, path = exported(tmp_path)
    assert any(f.domain == "opstep.ops" for f in onnx.load(path).functions)
    wanted = print_module(program.module).replace(" = ones()", "")
    assert print_module(opstep.load(path).module) == wanted


def test_what_a_function_says_goes_before_what_its_call_says(tmp_path):
    """Another tool has changed a function: it is no longer the op that it was written as."""
    _, path = exported(tmp_path)
    model = onnx.load(path)
    (linear,) = (f for f in model.functions if f.name == "linear")
    added = next(n for n in linear.node if n.op_type == "Add")
    added.op_type = "Sub"
    onnx.save(model, path)
    text = print_module(opstep.load(path).module)
    assert "graph linear_2(" in text and "sub(" in text
    assert "gelu(" in text and "logaddexp(" in text


@pytest.mark.parametrize(
    "said", ["", "no text (", "unknown(x)", "linear(x)", "while(x)", "extent(of=[D], dtype=i64)"]
)
def test_calls_that_say_something_else_are_calls(said, tmp_path):
    _, path = exported(tmp_path)
    model = onnx.load(path)
    node = next(n for n in model.graph.node if n.op_type == "linear")
    next(p for p in node.metadata_props if p.key == "opstep.call").value = said
    onnx.save(model, path)
    assert "graph linear_2(" in print_module(opstep.load(path).module)
