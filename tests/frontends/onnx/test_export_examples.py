"""The project's examples as models of ONNX: the same numbers in ONNX Runtime, and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import opstep
from opstep.api.sources import gather
from opstep.frontends.onnx.comparing import exact_session
from opstep.kernels.stdlib import library
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import TensorType, dtype_of

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
        session = exact_session(str(path), options)
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


class Structure:
    """What graphs compute, as numbers: equal where the same ops are applied to the same, with the
    same attributes, whatever values, graphs and symbols are called.
    """

    def __init__(self):
        self._numbers: dict[object, int] = {}

    def of(self, program: opstep.Program, graph: str, types: list) -> tuple[list, dict]:
        """The results, and what named tensors are afterwards."""
        plan = program.plan(graph, types)
        found: dict[int, object] = {v: f"input {k}" for k, v in enumerate(plan.inputs)}
        updated = {}
        for step in plan.steps:
            operands = [None if o is None else found.get(o, plan.values[o].name)
                        for o in step.operands]  # fmt: skip
            result = plan.values[step.results[0]]
            given = [t for t in step.operand_types if t is not None]
            same_type = step.op.name == "cast" and result.type == plan.values[step.operands[0]].type
            if step.op.name == "update":
                updated[result.name] = operands[0]
            elif step.op.name == "identity" or same_type:
                found[step.results[0]] = operands[0]
            elif step.op.name != "assert":
                attrs = {k: self._attribute(program, v, given[1:]) for k, v in step.attrs.items()}
                if step.op.name == "reshape":
                    attrs = {}  # the type says it
                key = (step.op.name, repr(attrs), tuple(operands), result.type)
                number = self._numbers.setdefault(key, len(self._numbers))
                found.update({r: (number, k) for k, r in enumerate(step.results)})
        return [found.get(o, plan.values[o].name) for o in plan.outputs], updated

    def _attribute(self, program: opstep.Program, value: object, types: list) -> object:
        """Graphs of control flow are what they compute."""
        if isinstance(value, Ref) and value.name in program.graphs:
            return self.of(program, value.name, types)[0]
        return value


LOOPS = {  # come back with whether they go on, and their count, among their values
    ("recurrent", "main"), ("recurrent", "loss"), ("recurrent_digits", "main"),
    ("recurrent_digits", "loss"), ("recurrent_digits", "accuracy"), ("while", "main"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_comes_back(name, tmp_path):
    """But for names, and for sizes of calls: each has a graph of its own."""
    program = opstep.load(EXAMPLES / f"{name}.opg")
    for graph in graphs(name):
        if (name, graph) in LOOPS:
            continue
        path = tmp_path / f"{graph}.onnx"
        opstep.to_onnx(program, path, graph, updates=True, drop_asserts=True)
        again = opstep.load(path)
        types = [TensorType(dtype_of(a.dtype), a.shape) for a in inputs(program, graph).values()]
        structure = Structure()
        results, updated = structure.of(program, graph, types)
        back, _ = structure.of(again, "main", types)
        names = [n.text for n in again.graphs["main"].body[-1].values][len(results) :]
        assert back[: len(results)] == results
        assert dict(zip(names, back[len(results) :], strict=True)) == {
            f"{n.replace('.', '_')}_next": value for n, value in updated.items()
        }
        own = {*program.module.graphs, *(g for m in library() for g in m.graphs), "main"}
        called = {g.rstrip("0123456789").removesuffix("_") for g in again.graphs}
        assert called <= {g.rstrip("0123456789").removesuffix("_") for g in own} | {
            "y_then", "y_else"
        }  # fmt: skip


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


SINGLE = """param table: f32[12, 8] = normal()

# Two rows of a table.
graph rows(token: f32[T, D], text: i32[N, L]) -> f32[N, L, D] {
  y = embedding(token, text)
  wide = mul(y, 2.0)
  return wide
}

# Words,
# and what they are.
graph main(text: i32[N, 4]) -> f32[N, 32], bool[], f32[3, 8] {
  x = rows(table, text)
  first = gather(x, 0, axis=1)
  same = all(x)
  some = slice(table, starts=[0], ends=[3])
  flat = reshape(x, shape=[N, 32])
  return flat, same, some
}
"""


def test_ops_of_one_node_come_back_as_they_were(tmp_path):
    path = tmp_path / "single.opg"
    path.write_text(SINGLE.replace("all(x)", "all(right)").replace(
        "  same", "  right = equal(first, first)\n  same"))  # fmt: skip
    opstep.to_onnx(opstep.load(path), tmp_path / "model.onnx")
    text = print_module(opstep.load(tmp_path / "model.onnx").module)
    for line in ("embedding(token, text)", "gather(x, 0, axis=1)", "all(right)",
                 "slice(table, starts=[0], ends=[3])", "reshape(x, shape=[N, 32])",
                 "# Two rows of a table.\ngraph rows(token: f32[12, 8], text: i32[N, 4])",
                 "# Words,\n# and what they are.\ngraph main("):  # fmt: skip
        assert line in text
    model = onnx.load(tmp_path / "model.onnx")
    (gather,) = (n for f in model.functions for n in f.node if n.op_type == "Gather")
    (axis,) = (a for a in gather.attribute if a.name == "axis")
    axis.i = 1  # another tool has changed it: then the node counts
    onnx.save(model, tmp_path / "model.onnx")
    text = print_module(opstep.load(tmp_path / "model.onnx").module)
    assert "gather(token, text, axis=1)" in text and "embedding(" not in text
