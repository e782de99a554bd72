"""Gradients where types and numbers meet: literals, mixed types, NaN."""

from __future__ import annotations

import numpy as np
import pytest

import opstep


def gradient(statement: str, x: np.ndarray, dtype: str, other: str = "") -> np.ndarray:
    """The derivative of the sum of what a statement makes of x (and of `other`, an f32 or i32)."""
    text = f"graph g(x: {dtype}[N]{other and f', o: {other}[N]'}) -> {dtype}[] {{\n"
    text += f"  y = {statement}\n  s = sum(y)\n  return s\n}}\n"
    given = {"x": x}
    if other:
        given["o"] = np.full(x.shape, 3, {"f32": "f4", "i32": "i4"}[other])
    return opstep.loads(text).with_grad("g", ["x"]).run("g_grad", given).outputs[1]


X = np.array([0.25, 1.5, 2.75])


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("pow(2.0, x)", 2.0**X * np.log(2.0)),
        ("pow(0.3, x)", 0.3**X * np.log(0.3)),
        ("pow(2, x)", 2.0**X * np.log(2.0)),
        ("pow(0.0, x)", 0 * X),
        ("pow(x, 0.3)", 0.3 * X**-0.7),
        ("atan2(0.3, x)", -0.3 / (0.09 + X * X)),
        ("atan2(x, 0.3)", 0.3 / (0.09 + X * X)),
        ("div(0.1, x)", -0.1 / X**2),
    ],
)
def test_literals_are_as_exact_as_what_they_meet(statement, expected):
    """In f64 to its last digits: nothing is computed in f32 on the way."""
    np.testing.assert_allclose(gradient(statement, X, "f64"), expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize(
    "statement, other, expected",
    [
        ("pow(o, x)", "f32", 3.0**X * np.log(3.0)),
        ("atan2(o, x)", "i32", -3 / (9 + X * X)),
        ("atan2(x, o)", "f32", 3 / (9 + X * X)),
    ],
)
def test_operands_are_promoted_before_they_are_differentiated(statement, other, expected):
    found = gradient(statement, X, "f64", other)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_the_gradient_by_the_narrower_operand_has_its_type():
    text = (
        "graph g(x: f32[3], o: f64[3]) -> f64[] {\n  y = atan2(x, o)\n  s = sum(y)\n  return s\n}"
    )
    found = (
        opstep.loads(text)
        .with_grad("g", ["x"])
        .run("g_grad", {"x": X.astype(np.float32), "o": X})
        .outputs[1]
    )
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, X / (2 * X * X), rtol=1e-7)


def test_no_gradient_passes_a_limit_at_nan():
    x = np.array([np.nan, -3.0, -1.0, 0.5, 1.0, 3.0])
    for limits, expected in [
        ("low=-1.0, high=1.0", [0, 0, 1, 1, 1, 0]),
        ("low=-1.0", [0, 0, 1, 1, 1, 1]),
        ("high=1.0", [0, 1, 1, 1, 1, 0]),
    ]:
        assert gradient(f"clip(x, {limits})", x, "f64").tolist() == expected


def test_the_tail_of_elu_keeps_its_digits():
    """Of e**x: y + alpha, which is the same in exact arithmetic, is 0 from -17 on in f32."""
    x = np.array([-0.5, -5, -10, -18, -30], np.float32)
    expected = 0.5 * np.exp(x.astype(np.float64))
    np.testing.assert_allclose(gradient("elu(x, alpha=0.5)", x, "f32"), expected, rtol=3e-7)
    far = np.array([1e30, np.inf], np.float32)
    np.testing.assert_array_equal(gradient("elu(x)", far, "f32"), [1, 1])


def test_hard_swish_is_flat_and_straight_at_its_corners():
    """As PyTorch chooses."""
    x = np.array([-3, 3], np.float32)
    np.testing.assert_array_equal(gradient("hard_swish(x)", x, "f32"), [0, 1])


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("relu(x)", [0, 0, 1, 1]),
        ("maximum(x, 0.0)", [0, 0.5, 1, 1]),
        ("minimum(x, 0.0)", [1, 0.5, 0, 0]),
        ("elu(x)", [np.exp(-2), 1, 1, 1]),
        ("leaky_relu(x, slope=0.5)", [0.5, 0.5, 1, 1]),
        ("hard_swish(x)", [-2 / 3 + 0.5, 0.5, 1, 1]),
        ("silu(x)", [-0.0907842487848955, 0.5, 1.0526646148910728, np.nan]),
        ("atan2(x, 0.0)", [0, 0, 0, 0]),
        ("atan2(0.0, x)", [0, 0, 0, 0]),
    ],
)
def test_no_nan_is_hidden_from_the_gradient(statement, expected):
    """Of the sum of squares, it has the NaN as a factor."""
    x = np.array([np.nan, -2.0, 0.0, 4.0, np.inf])
    text = f"graph g(x: f64[N]) -> f64[] {{\n  y = {statement}\n  q = square(y)\n  s = sum(q)\n"
    found = opstep.loads(text + "  return s\n}\n").with_grad("g", ["x"]).run("g_grad", {"x": x})
    assert np.isnan(found.outputs[1][0])
    np.testing.assert_allclose(gradient(statement, x[1:], "f64"), expected, rtol=1e-12)
