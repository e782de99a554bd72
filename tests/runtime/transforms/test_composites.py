"""An op that is only a graph of others: what follows from the graph."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import opstep
import opstep.kernels  # registers the ops
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import TensorType, f16, f64
from opstep.runtime.transforms.composite import Composite, definition

X = np.random.default_rng(0).standard_normal((3, 4))
S = np.arange(1.0, 5.0)


@pytest.fixture
def ops():
    """Two of them; they are gone after the test."""
    before = set(OPS)

    class tanhshrink(Composite):
        """x - tanh(x)."""

        signature = "tanhshrink(x: F)"

        def define(g, x):
            return g.sub(x, g.tanh(x))

    class rms_rows(Composite):
        """Rows by their root mean square, and that."""

        signature = "rms_rows(x: F, scale: F?, *, axis: int = -1, least: float = 1e-5)"
        results = ("y", "size")

        def define(g, x, scale, *, axis, least):
            size = g.sqrt(g.add(g.mean(g.square(x), axes=[axis], keepdims=True), least))
            y = g.div(x, size)
            return (y if scale is None else g.mul(y, scale)), size

    class products(Composite):
        """The second by the first."""

        signature = "products(x: F, y: F)"

        def define(g, x, y):
            return g.matmul(g.exp(y), g.exp(x))

    class mistaken(Composite):
        """No op is called so."""

        signature = "mistaken(x: F)"

        def define(g, x):
            return g.tanhs(x)

    class empty(Composite):
        """Nothing is returned."""

        signature = "empty(x: F)"

        def define(g, x):
            g.tanh(x)

    yield tanhshrink, rms_rows
    for name in set(OPS) - before:
        del OPS[name]


TEXT = """\
graph main(x: T[N, 4], s: T[4]) -> T[N, 4], T[N, 1] {
  a = tanhshrink(x)
  y, size = rms_rows(a, s, axis=1)
  return y, size
}
"""


def expected(x, s):
    a = x - np.tanh(x)
    size = np.sqrt((a * a).mean(1, keepdims=True) + 1e-5)
    return a / size * s, size


@pytest.mark.parametrize(
    ("name", "tolerance"), [("f64", 1e-12), ("f32", 2e-6), ("f16", 2e-3), ("bf16", 1.6e-2)]
)
def test_values(ops, name, tolerance):
    dtype = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": ml_dtypes.bfloat16}[name]
    x, s = X.astype(dtype), S.astype(dtype)
    program = opstep.loads(TEXT.replace("T[", f"{name}["))
    y, size = program.run("main", {"x": x, "s": s}).outputs
    wanted = expected(x.astype("f8"), s.astype("f8"))
    assert y.dtype == size.dtype == x.dtype
    np.testing.assert_allclose(y.astype("f8"), wanted[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(size.astype("f8"), wanted[1], rtol=tolerance)


def test_what_the_graph_says(ops):
    tanhshrink, rms_rows = ops
    t, s = TensorType(f64, (3, 4)), TensorType(f64, (4,))
    assert rms_rows.infer(t, s, axis=1, least=1e-5) == (t, TensorType(f64, (3, 1)))
    half = TensorType(f16, (3, 4))
    assert tanhshrink.infer(half) == half
    for mine, wanted in zip(
        rms_rows.oracle(X - np.tanh(X), S, axis=1, least=1e-5), expected(X, S), strict=True
    ):
        np.testing.assert_allclose(mine, wanted, rtol=1e-14)
    assert tanhshrink.flops(t) == OPS["tanh"].flops(t) + OPS["sub"].flops(t, t)


def test_its_definition_is_a_text(ops):
    graph = definition(ops[0], [TensorType(f16, (3,))], {}).graphs["tanhshrink"]
    assert graph.source.path == "<tanhshrink>"
    assert graph.source.text == (
        "graph tanhshrink(x: f16[3]) -> f16[3] {\n"
        "  cast = cast(x, dtype=f32)\n"
        "  tanh = tanh(cast)\n"
        "  sub = sub(cast, tanh)\n"
        "  cast1 = cast(sub, dtype=f16)\n"
        "  return cast1\n"
        "}\n"
    )


def test_the_gradient_is_derived(ops):
    text = TEXT.replace("T[", "f64[").replace("return y, size", "l = sum(y)\n  return l")
    text = text.replace("-> f64[N, 4], f64[N, 1]", "-> f64[]")
    program = opstep.loads(text).with_grad("main", ["x", "s"])
    by_x, by_s = program.run("main_grad", {"x": X, "s": S}).outputs[-2:]
    step = 1e-6
    for at in ((0, 0), (2, 3)):
        moved = [X.copy(), X.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        slope = (expected(moved[0], S)[0].sum() - expected(moved[1], S)[0].sum()) / (2 * step)
        np.testing.assert_allclose(by_x[at], slope, rtol=1e-6)
    np.testing.assert_allclose(by_s, expected(X, np.ones(4))[0].sum(0), rtol=1e-12)


def test_without_a_kernel_it_is_a_call(ops):
    plan = opstep.loads(TEXT.replace("T[", "f32[")).plan("main", symbols={"N": 3})
    assert [f.name for f in plan.frames] == ["main", "tanhshrink", "rms_rows"]
    assert [s.op.name for s in plan.steps[:2]] == ["tanh", "sub"]
    names = [plan.values[v].name for v in plan.outputs]
    assert names == ["y", "size"]


def test_operands_are_promoted_as_for_other_ops(ops):
    text = "graph main(x: i32[3]) -> f32[3] {\n  y = tanhshrink(x)\n  return y\n}\n"
    (y,) = opstep.loads(text).run("main", {"x": np.array([0, 1, 2], "i4")}).outputs
    np.testing.assert_allclose(y, np.arange(3) - np.tanh(np.arange(3)), rtol=1e-6)
    wrong = TEXT.replace("T[", "f32[").replace("s: f32[4]", "s: f32[5]")
    with pytest.raises(OpstepError, match=r"f32\[N, 4\].*f32\[5\]"):
        opstep.loads(wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("products(x, x)", "within products, matmul: axis -1 of f32[3, 4] is 4"),
        ("mistaken(x)", f"the definition of mistaken fails at {__name__}.py:"),
        ("empty(x)", "the definition of empty gives what is no value: [None]"),
    ],
)
def test_a_wrong_definition_is_reported_at_the_op(ops, call, message):
    """Operands and hints of an op within are not those of the statement."""
    text = f"graph main(x: f32[3, 4]) -> f32[3, 4] {{\n  y = {call}\n  return y\n}}\n"
    with pytest.raises(OpstepError) as error:
        opstep.loads(text)
    (found,) = error.value.diagnostics
    assert message in found.message
    assert text[found.span.start :].startswith(call.partition("(")[0])
