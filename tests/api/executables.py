"""Programs for executables, and inputs of them."""

from __future__ import annotations

import numpy as np

TEXT = """
graph main(x: f32[N, 4], y: f32[N, 4]) -> f32[N, 4], f32[N, 4], f32[] {
  a = add(x, y)
  b = mul(x, y)
  c = sub(a, b)
  s = sum(c)
  return c, b, s
}
"""
TRAINED = """
param w: f32[3] = ones()
state seen: i32[] = 0

graph main(x: f32[3]) -> f32[3], i32[] {
  next = sub(w, x)
  w <- next
  one = full(value=1, shape=[], dtype=i32)
  count = add(seen, one)
  seen <- count
  bound = less(x, 9.0)
  small = all(bound)
  assert small, "x is small"
  return next, count
}
"""


def random(shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f4")
