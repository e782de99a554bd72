"""Overflows within an op that is a graph of others: no flag shows those whose result is finite."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.hunting.debugging import FindingDebugger
from opstep.hunting.search import hunt
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.op import OPS
from opstep.runtime.transforms.composite import Composite

ROWS = np.array([[3e25, 6e25, 9e25, 1.2e26], [1.0, 2.0, 3.0, 4.0]], "f4")


def found_in(call: str, x=ROWS, **options):
    text = f"graph main(x: f32[N, 4]) -> f32[N, 4] {{\n  y = {call}\n  return y\n}}\n"
    return hunt(opstep.loads(text), "main", {"x": x}, **options)


@pytest.mark.parametrize(
    ("call", "exact"),
    [
        ("layer_norm(x, shape=[4])", "-1.34164"),
        ("rms_norm(x, shape=[4])", "0.365148"),
    ],
)
def test_a_result_that_an_overflow_made_wrong(call, exact):
    found = found_in(call)
    (finding,) = found.findings
    assert (finding.kind, finding.bad) == ("origin", "overflow")
    assert finding.verdict.rules[0][0] == "square overflows on the way"
    assert [e.place[0] for e in finding.verdict.elements] == [0, 0, 0, 0]
    assert finding.within.op == "square"
    report = found.report()
    assert f"within {finding.op}: {finding.within.call} overflows" in report
    assert "help: A number within the op is beyond" in report
    assert f"in f64 it is {exact}" in report


def test_hunts_for_overflows_report_it_once():
    found = found_in("layer_norm(x, shape=[4])", kinds="nan,inf,overflow")
    assert len(found.findings) == 1


@pytest.mark.parametrize("options", [{"nan_only": True}, {"kinds": "nan,index"}])
def test_hunts_for_others_do_not_report_it(options):
    found = found_in("layer_norm(x, shape=[4])", **options)
    assert not found.found
    assert not found.masked


def test_an_overflow_without_effect_is_masked():
    """The inverse of an infinite deviation is 0, and so is what it is multiplied with."""
    text = "graph main(x: f32[4], s: f32[4]) -> f32[4] {\n"
    text += "  y = layer_norm(x, s, shape=[4])\n  return y\n}\n"
    found = hunt(opstep.loads(text), "main", {"x": ROWS[0], "s": np.zeros(4, "f4")})
    assert not found.found
    (masked,) = found.masked
    assert (masked.op, masked.within.op) == ("layer_norm", "square")
    assert "masked: overflow in layer_norm y at main" in found.report()


def test_infinities_that_came_in_are_no_overflow():
    x = np.array([[0, -np.inf, 1, -np.inf], [1, 2, 3, 4]], "f4")
    found = found_in("softmax(x)", x)
    assert not found.found
    assert not [f for f in (*found.masked, *found.intended) if f.within]


def test_a_nan_is_explained_from_within():
    found = found_in("layer_norm_grad(x, x, shape=[4])")
    (finding,) = found.findings
    assert (finding.bad, finding.within.op) == ("nan", "square")
    assert "within layer_norm_grad: square(" in found.report()


def test_an_infinity_is_explained_from_within():
    text = "graph main(x: f32[4], s: f32[4]) -> f32[4] {\n"
    text += "  y = layer_norm(x, s, shape=[4])\n  return y\n}\n"
    inputs = {"x": np.arange(4, dtype="f4"), "s": np.full(4, 3e38, "f4")}
    (finding,) = hunt(opstep.loads(text), "main", inputs).findings
    assert (finding.bad, finding.within.op) == ("inf", "mul")


def test_only_what_depends_on_the_overflow_is_lost():
    """Where a gradient is constant, that by x is 0, and rounding is all that is left of it."""
    text = "graph main(x: f32[2, 100], g: f32[2, 100]) -> f32[2, 100] {\n"
    text += "  y = layer_norm_grad(x, g, shape=[100])\n  return y\n}\n"
    x = np.random.default_rng(0).standard_normal((2, 100)).astype("f4")
    x[0] *= 1e25
    g = np.stack([x[1], np.full(100, 0.1, "f4")])
    (finding,) = hunt(opstep.loads(text), "main", {"x": x, "g": g}).findings
    assert finding.verdict.own == 100


def test_a_result_beside_the_overflow_is_not_listed():
    text = "graph main(x: f32[2, 4]) -> f32[2, 4], f32[2, 1], f32[2, 1] {\n"
    text += "  y, m, r = layer_norm_with_statistics(x, shape=[4])\n  return y, m, r\n}\n"
    found = hunt(opstep.loads(text), "main", {"x": ROWS})
    assert [f.value for f in found.findings] == ["y", "r"]
    assert not found.masked


def test_a_pole_is_no_overflow():
    (finding,) = found_in("rms_norm(x, shape=[4], epsilon=0.0)", np.zeros((1, 4), "f4")).findings
    assert (finding.bad, finding.within.verb) == ("nan", "is infinite")


def test_what_f64_loses_is_not_compared_with_f64():
    text = "graph main(x: f64[4]) -> f64[4] {\n  y = layer_norm(x, shape=[4])\n  return y\n}\n"
    found = hunt(opstep.loads(text), "main", {"x": ROWS[1].astype("f8") * 1e200})
    assert found.findings[0].bad == "overflow"
    assert "in f64 it is" not in found.report()


@pytest.fixture
def shrink():
    """A composite without a kernel: a call, whoever runs it."""

    class shrink(Composite):
        """x * x - tanh(x)."""

        signature = "shrink(x: F)"

        def define(g, x):
            return g.sub(g.square(x), g.tanh(x))

    yield shrink
    del OPS["shrink"]


def test_a_debugger_begins_where_something_was_found(shrink):
    """Positions are those of a replay, for which an op with a kernel is one."""
    text = "graph main(x: f32[N, 4]) -> f32[N, 4] {\n  s = softmax(x)\n  a = shrink(x)\n"
    text += "  y = layer_norm(a, shape=[4])\n  z = layer_norm(x, shape=[4])\n  return z\n}\n"
    found = hunt(opstep.loads(text), "main", {"x": ROWS})
    stops = []
    for finding in (*found.findings, *found.masked):
        debugger = FindingDebugger(finding, opstep.loads(text), "main", {"x": ROWS})
        node = debugger.start().exception.node
        stops.append((node.name, debugger.stack()[0].line))
    assert stops == [("z", 5), ("square", 3), ("y", 4)]


def test_no_element_is_blamed_where_none_is_known_to_be_it():
    class by_length(RowComposite):
        """Rows, divided by their lengths."""

        signature = "by_length(x: F)"

        def define(g, x):
            return g.mul(x, g.rsqrt(g.sum(g.square(x), axes=[1], keepdims=True)))

    try:
        x = np.array([[0, 0, 0, 0], [1, 2, 3, 4]], "f4")
        (finding,) = found_in("by_length(x)", x).findings
        assert [e.place[0] for e in finding.verdict.elements] == [0, 0, 0, 0]
        assert not any(e.blamed for e in finding.verdict.elements)
    finally:
        del OPS["by_length"]


def test_an_overflow_beside_an_infinity_that_came_in():
    """The infinity is of another element, and without effect."""

    class signs(RowComposite):
        """x / sqrt(1 + x*x), for x within 1e30."""

        signature = "signs(x: F)"

        def define(g, x):
            within = g.clip(x, low=-1e30, high=1e30)
            return g.mul(within, g.rsqrt(g.add(g.square(x), 1.0)))

    class lengths(RowComposite):
        """x, within 1e30, divided by the root of 1 and the sum of squares along rows."""

        signature = "lengths(x: F)"

        def define(g, x):
            total = g.add(g.sum(g.square(x), axes=[1], keepdims=True), 1.0)
            return g.mul(g.clip(x, low=-1e30, high=1e30), g.rsqrt(total))

    x = np.array([[-np.inf, 1, 2, 3], [3e25, 1, 2, 3]], "f4")
    try:
        for name, wrong in (("signs", 1), ("lengths", 4)):
            (finding,) = found_in(f"{name}(x)", x).findings
            assert (finding.bad, finding.within.op) == ("overflow", "square")
            assert finding.verdict.own == wrong
            assert finding.verdict.elements[0].place == (1, 0)
    finally:
        del OPS["signs"], OPS["lengths"]
