"""Draws: known answers of the generator, their distributions, replay and independence."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.kernels.random.philox import philox_rounds

# from the test vectors that the authors of Philox publish with Random123 (philox4x32-10)
KNOWN = """
00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""


@pytest.mark.parametrize("line", KNOWN.split("\n")[1:-1])
def test_philox_gives_the_known_answers(line):
    words = [np.array([int(w, 16)], np.uint64) for w in line.split()]
    made = philox_rounds(words[:4], words[4:6])
    assert [int(w[0]) for w in made] == [int(w[0]) for w in words[6:]]


def draw(statement: str, result: str, **inputs) -> np.ndarray:
    declared = ", ".join(f"{name}: i64[]" for name in inputs)
    text = f"graph g({declared}) -> {result} {{\n  y = {statement}\n  return y\n}}\n"
    return opstep.loads(text).run(inputs=inputs)["y"]


def standing(samples: np.ndarray, mean: float, variance: float) -> None:
    """Mean and variance lie within five standard errors."""
    n = samples.size
    assert abs(samples.mean() - mean) < 5 * np.sqrt(variance / n)
    assert abs(samples.var() - variance) < 5 * variance * np.sqrt(2 / n)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_distributions(dtype):
    n = 200_000
    uniform = draw(f"uniform(shape=[{n}], low=-1, high=3, dtype={dtype}, seed=5)", f"{dtype}[{n}]")
    assert uniform.min() >= -1
    assert uniform.max() < 3
    standing(uniform.astype(np.float64), 1.0, 16 / 12)
    counts = np.histogram(uniform, 100, (-1, 3))[0]
    assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 165, "chi squared, 99 degrees, p = 1e-5"
    normal = draw(f"normal(shape=[{n}], mean=2, std=3, dtype={dtype}, seed=5)", f"{dtype}[{n}]")
    standing(normal.astype(np.float64), 2.0, 9.0)
    assert np.isfinite(normal).all()
    neighbours = np.corrcoef(normal[::2], normal[1::2])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(n / 2), "the two numbers of a pair are independent"


def test_integers_and_coins():
    n = 60_000
    dice = draw(f"randint(shape=[{n}], low=1, high=7, seed=9)", f"i64[{n}]")
    counts = np.bincount(dice, minlength=7)
    assert counts[0] == 0
    assert ((counts[1:] - n / 6) ** 2 / (n / 6)).sum() < 31, "chi squared, 5 degrees, p = 1e-5"
    coins = draw(f"bernoulli(shape=[{n}], p=0.3, seed=9)", f"bool[{n}]")
    standing(coins.astype(np.float64), 0.3, 0.21)


def test_a_draw_replays_and_the_step_moves_it():
    first, again = (draw("normal(shape=[50], seed=3)", "f32[50]") for _ in range(2))
    np.testing.assert_array_equal(first, again)
    zero, one = (draw("normal(s, shape=[50], seed=3)", "f32[50]", s=k) for k in (0, 1))
    np.testing.assert_array_equal(first, zero)
    assert not np.isin(one, zero).any()
    other = draw("normal(shape=[50], seed=4)", "f32[50]")
    assert not np.isin(other, first).any()


def test_a_longer_draw_begins_like_a_shorter_one():
    short = draw("uniform(shape=[10], seed=3)", "f32[10]")
    long = draw("uniform(shape=[1000], seed=3)", "f32[1000]")
    np.testing.assert_array_equal(long[:10], short)


def test_dropout_keeps_the_mean_and_its_gradient_has_the_same_mask():
    text = """
graph loss(x: f32[N], step: i64[]) -> f32[] {
  d = dropout(x, step, p=0.25, seed=11)
  l = sum(d)
  return l
}
graph kept(x: f32[N], step: i64[]) -> f32[N] {
  d = dropout(x, step, p=0.25, seed=11)
  return d
}
"""
    n = 100_000
    program = opstep.loads(text).with_grad("loss", ["x"])
    inputs = {"x": np.ones(n, np.float32), "step": 6}
    kept = program.run("kept", inputs)["d"]
    gradient = program.run("loss_grad", inputs).outputs[1]
    np.testing.assert_array_equal(kept, gradient)
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    standing((kept == 0).astype(np.float64), 0.25, 0.1875)


@pytest.mark.parametrize("dtype, most", [("f32", 3e38), ("f64", 1.5e308)])
def test_a_range_wider_than_the_largest_number(dtype, most):
    made = draw(f"uniform(shape=[4000], low={-most}, high={most}, dtype={dtype})", f"{dtype}[4000]")
    standing(made.astype(np.float64) / most, 0.0, 1 / 3)
    assert np.all((-most <= made) & (made < most))
