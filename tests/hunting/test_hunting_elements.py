"""Of which bad elements a bad element of a result is made: of those that make it so alone, of those
that do only together, and of no others.
"""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.hunting.search import hunt

# What gives a, an exp, an infinity, and b, a log, one below 0 or a NaN.
INF, BELOW, NAN = 1000.0, 0.0, -1.0

TEXT = """graph main(x: f32[{shape}], z: f32[{shape}]) -> {result} {{
  a = exp(x)
  b = log(z)
  {body}
  return y
}}
"""


def hunted(body: str, x, z, result: str | None = None):
    x, z = np.array(x, np.float32), np.array(z, np.float32)
    shape = ", ".join(map(str, x.shape))
    text = TEXT.format(shape=shape, result=result or f"f32[{shape}]", body=body)
    program = opstep.loads(text, "b.opg")
    return hunt(program, "main", {"x": x, "z": z}), program.run("main", {"x": x, "z": z}).outputs[0]


def told(found) -> dict[str, list[tuple[int, ...]]]:
    """By value the elements that come out."""
    return {f.value: [e.place for e in f.verdict.elements] for f in found.findings}


# --- infinities that an op gives only where all of its operands are infinite ----------------------


@pytest.mark.parametrize(
    "body, result, places",
    [
        ("y = minimum(a, a)", None, [(0, 1), (1, 0), (1, 1)]),
        ("n = neg(a)\n  y = maximum(n, n)", None, [(0, 1), (1, 0), (1, 1)]),
        ("y = clip(a, low=-1.0, high=inf)", None, [(0, 1), (1, 0), (1, 1)]),
        ("y = min(a, axes=[1])", "f32[2]", [(1, 0), (1, 1)]),
        ("n = neg(a)\n  y = max(n, axes=[1])", "f32[2]", [(1, 0), (1, 1)]),
        ("y, i = top_k(a, k=2, largest=false)", None, [(0, 1), (1, 0), (1, 1)]),
        ("i = iota(shape=[2, 2], axis=1)\n  y = scatter_reduce(a, i, a, reduction=\"min\", axis=1)",
         None, [(0, 1), (1, 0), (1, 1)]),
        ("r = reshape(a, shape=[2, 1, 1, 2])\n  n = neg(r)\n  p = max_pool2d(n, kernel=[1, 2])\n"
         "  y = reshape(p, shape=[2])", "f32[2]", [(1, 0), (1, 1)]),
        ("c = greater(a, b)\n  y = where(c, a, a)", None, [(0, 1), (1, 0), (1, 1)]),
    ],
)  # fmt: skip
def test_infinities_that_come_out_only_together(body, result, places):
    found, y = hunted(body, [[1, INF], [INF, INF]], [[1, 1], [1, 1]], result)
    assert np.isinf(y).any()
    assert told(found) == {"a": places}


def test_a_minimum_of_two_infinities_has_two_origins():
    text = """graph main(x: f32[3], z: f32[3]) -> f32[3] {
  a = exp(x)
  b = exp(z)
  y = minimum(a, b)
  return y
}
"""
    x, z = np.array([INF, INF, 1], np.float32), np.array([INF, 1, INF], np.float32)
    found = hunt(opstep.loads(text), "main", {"x": x, "z": z})
    assert told(found) == {"a": [(0,)], "b": [(0,)]}
    assert [f.where.line for f in found.findings] == [2, 3]


# --- elements that are bad, and of which the op makes a number ------------------------------------


def test_what_a_division_by_infinity_makes_0_does_not_come_out():
    found, y = hunted("y = div(b, a)", [INF, -INF, -INF], [5, BELOW, 1])
    np.testing.assert_array_equal(y, np.array([0, -np.inf, np.nan], np.float32))
    assert told(found) == {"b": [(1,)], "y": [(2,)]}
    assert [f.value for f in found.masked] == ["a"]


def test_a_power_of_1_hides_a_nan():
    found, y = hunted("y = pow(x, b)", [1, -2], [NAN, NAN])
    np.testing.assert_array_equal(y, np.array([1, np.nan], np.float32))
    assert told(found) == {"b": [(1,)]}
    assert "2 of 2 elements of b were born here, 1 of them comes out" in str(found)


@pytest.mark.parametrize("size", [3, 40])
def test_a_maximum_comes_of_the_infinity_above(size):
    """Few elements are told apart one by one, many by the axes that they lie on."""
    x, z = np.ones((2, size)), np.zeros((2, size))
    x[0, 1] = x[1, 2] = INF
    found, y = hunted(
        "c = concat(b, a, axis=1)\n  m = max(c, axes=[1])\n  y = slice(m, starts=[0], ends=[1])",
        x, z, "f32[1]",
    )  # fmt: skip
    assert y == np.inf
    assert told(found) == {"a": [(0, 1)]}


def test_a_median_comes_of_infinities_of_its_row():
    """None of which makes it infinite alone, and none of which it needs."""
    x = np.zeros((3, 7))
    x[0, :3] = x[1, 2:6] = x[1, 0] = INF
    body = "s, i = sort(a, axis=1)\n  m = select(s, axis=1, index=3)\n"
    body += "  y = slice(m, starts=[1], ends=[2])"
    found, y = hunted(body, x, np.ones((3, 7)), "f32[1]")
    assert y == np.inf
    (places,) = told(found).values()
    assert {p[0] for p in places} == {1} and len(places) == 4


BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "fmod", "rem", "floor_div",
          "atan2", "prelu")  # fmt: skip
OF_ROWS = {
    "min": "c = min(a, axes=[1], keepdims=true)",
    "max": "c = max(b, axes=[1], keepdims=true)",
    "prod": "p = mul(a, b)\n  c = prod(p, axes=[1], keepdims=true)",
    "sum": "p = mul(a, b)\n  c = sum(p, axes=[1], keepdims=true)",
    "cumprod": "p = mul(a, b)\n  c = cumprod(p, axis=1)",
    "sort": "c, i = sort(a, axis=1)",
    "top_k": "c, i = top_k(b, k=3, largest=false)",
    "softmax": "c = softmax(b)",
    "matmul": "t = slice(b, starts=[0, 0], ends=[5, 5], axes=[0, 1])\n  c = matmul(t, a)",
}


def some(rng, odd: list[float]) -> np.ndarray:
    """Numbers, and on some places, few or many, odd ones."""
    odd_there = rng.random((5, 6)) < rng.choice([0.1, 0.3, 0.8])
    return np.where(odd_there, rng.choice(odd, (5, 6)), rng.choice([0.0, 1.0, 2.5], (5, 6)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("op", BINARY)
def test_bad_elements_come_from_those_at_their_place(op, seed):
    rng = np.random.default_rng(seed)
    x, z = some(rng, [INF, -INF]), some(rng, [BELOW, NAN])
    found, y = hunted(f"y = {op}(a, b)", x, z)
    bad = ~np.isfinite(y)
    assert found.found == bad.any()
    for finding in found.findings:
        assert all(bad[e.place] for e in finding.verdict.elements), found.report()
    assert sum(f.verdict.arrived for f in found.findings) >= bad.sum(), found.report()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("op", OF_ROWS)
def test_rows_that_do_not_come_out_make_nothing_of_it(op, seed):
    rng = np.random.default_rng(seed)
    x, z = some(rng, [INF, -INF]), some(rng, [BELOW, NAN])
    width = {"min": 1, "max": 1, "prod": 1, "sum": 1, "top_k": 3}.get(op, 6)
    body = f"{OF_ROWS[op]}\n  y = slice(c, starts=[1], ends=[2])"
    found, y = hunted(body, x, z, f"f32[1, {width}]")
    assert found.found == (not np.isfinite(y).all())
    of_rows = [f for f in found.findings if op != "matmul" or f.value != "a"]
    for finding in of_rows:
        for element in finding.verdict.elements:
            assert element.place[0] == (0 if finding.value == "y" else 1), found.report()
