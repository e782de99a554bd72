"""Shape rules of ops that compute: with symbols, and for random shapes against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opstep
import opstep.kernels  # registers the ops
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.ir.op import OPS, Mismatch, complete, resolve
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.ir.verify import verify

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

FITS = [
    ("a: f32[N, 3], b: f32[3]", "add(a, b)", "f32[N, 3]"),
    ("a: f32[N, 1], b: f32[1, M]", "mul(a, b)", "f32[N, M]"),
    ("n: f32[N], a: f32[N*2], b: f32[N*2]", "sub(a, b)", "f32[N*2]"),
    ("a: f32[N], b: f32[]", "pow(a, b)", "f32[N]"),
    ("a: i32[N], b: i32[N]", "div(a, b)", "f32[N]"),
    ("a: i32[N], b: f16[N]", "add(a, b)", "f16[N]"),
    ("a: i8[N], b: u8[N]", "add(a, b)", "i16[N]"),
    ("a: f16[N], b: bf16[N]", "add(a, b)", "f32[N]"),
    ("a: i32[N]", "exp(a)", "f32[N]"),
    ("a: bool[N]", "mean(a)", "f32[]"),
    ("a: bool[N]", "sum(a)", "i64[]"),
    ("a: u8[N, M]", "max(a, axes=[1])", "u8[N]"),
    ("a: f32[N, M]", "less(a, 1.0)", "bool[N, M]"),
    ("a: i32[N]", "mul(a, 0.5)", "f32[N]"),
    ("a: i64[N]", "mul(a, 2)", "i64[N]"),
    ("a: bool[N], b: f32[M, 1], c: f32[]", "where(a, b, c)", "f32[M, N]"),
    ("a: f32[N, M]", "sum(a, axes=[-1], keepdims=true)", "f32[N, 1]"),
    ("a: f32[N, M]", "mean(a, axes=[0])", "f32[M]"),
    ("a: f32[N, M]", "argmax(a, axis=1)", "i64[N]"),
    ("a: f32[N, M]", "cumsum(a, axis=0)", "f32[N, M]"),
    ("a: f32[N]", "uniform(shape=[N, 2])", "f32[N, 2]"),
    ("a: f32[N]", "extent(of=[N, 3])", "i64[]"),
    ("a: f32[N]", "iota(shape=[N, 3], axis=1)", "i64[N, 3]"),
    ("a: f32[N]", "full(shape=[N//2], value=1)", "f32[N//2]"),
]


@pytest.mark.parametrize("inputs, call, result", FITS)
def test_symbols(inputs, call, result):
    verify(parse(f"graph g({inputs}) -> {result} {{\ny = {call}\nreturn y\n}}"))


def test_a_mean_over_a_symbol_has_a_gradient():
    text = """
graph loss(x: f32[N, M]) -> f32[] {
  m = mean(x, axes=[0])
  v = var(x, axes=[0])
  s = add(m, v)
  y = sum(s)
  return y
}
"""
    program = opstep.loads(text).with_grad("loss", ["x"])
    x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    gradient = program.run("loss_grad", {"x": x}).outputs[1]
    wanted = 1 / 7 + 2 * (x - x.mean(0)) / 6
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5)


# --- random shapes --------------------------------------------------------------------------------

dims = st.integers(0, 5)


@st.composite
def broadcastable(draw):
    """Two shapes of which every axis fits, or now and then does not."""
    shape = draw(st.lists(dims, max_size=5))
    shapes = []
    for _ in range(2):
        own = [1 if draw(st.booleans()) else d for d in shape]
        shapes.append(tuple(own[draw(st.integers(0, len(own))) :]))
    if draw(st.integers(0, 9)) == 0:
        shapes[1] = (*shapes[1], draw(dims))
    return shapes


@SETTINGS
@given(broadcastable(), st.sampled_from(["sub", "less"]))
def test_broadcasting_is_numpys(shapes, name):
    op, rng = OPS[name], np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    try:
        wanted = op.oracle(a, b)
    except ValueError:
        with pytest.raises(Mismatch, match="do not broadcast"):
            resolve(op, [TensorType(f32, s) for s in shapes], {})
        return
    (got,) = execute(op, [a, b], {})
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@SETTINGS
@given(st.lists(dims, max_size=4), st.data())
def test_where_takes_any_three(shape, data):
    shapes = [
        tuple(1 if data.draw(st.booleans()) else d for d in shape)[data.draw(st.integers(0, 2)) :]
        for _ in range(3)
    ]
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 100, s).astype(np.int32) for s in shapes]
    arrays[0] = arrays[0] < 50
    (got,) = execute(OPS["where"], arrays, {})
    np.testing.assert_array_equal(got, np.where(*arrays))


@SETTINGS
@given(
    st.lists(st.integers(0, 7), max_size=5),
    st.data(),
    st.sampled_from(["sum", "max", "any", "mean", "logsumexp", "var"]),
)
def test_reductions_are_numpys(shape, data, name):
    axes = data.draw(st.none() | st.permutations(range(len(shape))))
    if axes is not None:
        axes = tuple(axes[: data.draw(st.integers(0, len(axes)))])
    check_reduction(name, shape, axes, data.draw(st.booleans()))


@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extreme_of_no_elements_for_no_results(name):
    check_reduction(name, [0, 0], (0,), False)


def check_reduction(name, shape, axes, keepdims):
    op, rng = OPS[name], np.random.default_rng(3)
    attrs = complete(op, {"axes": axes, "keepdims": keepdims})
    x = rng.standard_normal(shape).astype(np.float64)
    try:
        with np.errstate(all="ignore"):
            wanted = np.asarray(op.oracle(x, **attrs))
    except ValueError:  # the maximum of nothing
        with pytest.raises(Mismatch, match="no elements"):
            execute(op, [x], attrs)
        return
    (got,) = execute(op, [x], attrs)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@SETTINGS
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.data(), st.booleans(), st.booleans())
def test_scans_and_argmax_take_any_axis(shape, data, first, second):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(4).integers(-9, 10, shape)
    attrs = {"axis": axis, "exclusive": first, "reverse": second}
    (got,) = execute(OPS["cumsum"], [x], attrs)
    np.testing.assert_array_equal(got, OPS["cumsum"].oracle(x, **attrs))
    attrs = {"axis": axis, "keepdims": first}
    if shape[axis]:
        (got,) = execute(OPS["argmax"], [x], attrs)
        np.testing.assert_array_equal(got, OPS["argmax"].oracle(x, **attrs))


def test_long_sums_stay_accurate():
    """2**24 elements of f32: what a running sum in f32 would lose is all there."""
    x = np.full(1 << 24, 0.1, np.float32)
    for name, wanted in (("sum", float(np.float32(0.1)) * x.size), ("mean", float(x[0]))):
        (got,) = execute(OPS[name], [x], complete(OPS[name], {}))
        assert abs(float(got) / wanted - 1) < 1e-7
