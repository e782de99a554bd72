"""Random programs that compute: calls (some of generic graphs), views, updates, asserts and control
flow.
"""

from __future__ import annotations

import re

from plan_programs import random_choices, random_program

# What random programs of the planner's tests name, in ops that compute.
MEANINGS = """
graph copy<T: float>(x: T[8]) -> T[8] {
  y = sin(x)
  return y
}

graph heavy(x: f32[8]) -> f32[8] {
  rows = broadcast(x, shape=[4096, 8])
  pressed = tanh(rows)
  y = mean(pressed, axes=[0])
  return y
}

graph scaled<T: float>(x: T[8]) -> T[8] {
  y = mul(x, 0.75)
  return y
}

graph work(x: f32[8]) -> f32[8] {
  y = cumsum(x, axis=0)
  z = tanh(y)
  return z
}

graph view<T>(x: T[8]) -> T[8] {
  rows = reshape(x, shape=[2, 4])
  y = reshape(rows, shape=[8])
  return y
}

graph pair<T: float>(x: T[8]) -> T[8], T[8] {
  a = softmax(x)
  b = neg(x)
  return a, b
}

graph put(x: f32[8], y: f32[8]) -> f32[8] {
  part = slice(y, starts=[2], ends=[5])
  z = slice_scatter(x, part, starts=[3], ends=[6])
  return z
}

graph positive(x: f32[8]) -> bool[] {
  size = abs(x)
  fine = greater_equal(size, 0.0)
  odd = isnan(x)
  either = logical_or(fine, odd)
  y = all(either)
  return y
}

graph rising(x: f32[8]) -> bool[] {
  m = mean(x)
  y = greater(m, 0.0)
  return y
}

"""


def text_of(seed: int) -> str:
    """A random program. A literal is no operand of a graph, so `mix` becomes an op, as `put` does
    with one; asserts hold, and what `cond` asks depends on the data.
    """
    text = random_program(random_choices(seed))
    text = re.sub(r"\b(f\d+) = positive\(", r"\1 = rising(", text)
    return MEANINGS + re.sub(r"\bmix\(|\bput\((?=\w+, 0\.5\))", "maximum(", text)
