"""Where a graph loses precision: each op beside the same in f64."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.differing.precision import precision

RNG = np.random.default_rng(11)


def losses(text: str, steps: int = 1, **inputs):
    program = opstep.loads(text)
    found = precision(program, "main", inputs, steps=steps)
    return found, {one.statement: one for one in found.losses}


def half(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


def test_a_cancellation_is_told_with_what_it_lets_grow():
    text = """
graph main(x: f16[64]) -> f16[64] {
  y = mul(x, 0.3)
  a = add(y, 1024.0)
  b = sub(a, 1024.0)
  c = mul(b, 3.0)
  return c
}
"""
    x = half(64)
    found, by = losses(text, x=x)
    first = found.losses[0]
    assert (first.statement, first.line, first.through) == ("b = sub(a, 1024.0)", 5, "a")
    assert first.what == "the error of a grows"
    assert first.own.relative == 0.0  # the difference of what it was given is exact
    exact = x.astype("f8") * np.float64(np.float16(0.3))
    b = (x * np.float16(0.3) + np.float16(1024)) - np.float16(1024)
    error = np.linalg.norm(b - exact) / np.linalg.norm(exact)
    assert first.total.relative == pytest.approx(error, rel=1e-6)
    assert by["c = mul(b, 3.0)"].what == "" and by["c = mul(b, 3.0)"].added < 1e-3
    assert not found.fine
    assert found.outputs["c"].relative > found.allowed["c"] == 2.0**-7


def test_what_rounding_makes_is_fine():
    text = """
param w: f16[32, 32] = normal(std=0.2)
graph main(x: f16[8, 32]) -> f16[8, 32] {
  h = matmul(x, w)
  y = softmax(h)
  return y
}
"""
    found, by = losses(text, x=half(8, 32))
    assert found.fine and all(one.what == "" for one in found.losses)
    assert 0 < by["h = matmul(x, w)"].own.relative < 2.0**-10


def test_elements_that_overflow_or_become_0():
    text = """
graph main(x: f16[4], y: f16[4]) -> f16[4], f16[4] {
  small = mul(x, 1e-6)
  big = square(y)
  s = neg(big)
  return small, s
}
"""
    x, y = np.array([1, 0.001, 2, 0], "f2"), np.array([1, 300, 2, 3], "f2")
    found, by = losses(text, x=x, y=y)
    assert found.losses[0].statement == "big = square(y)"
    assert found.losses[0].what == "1 of 4 elements become infinite"
    assert found.losses[0].own.exact == 90000
    assert by["small = mul(x, 1e-06)"].what == "1 of 4 elements become 0"
    assert by["s = neg(big)"].what == ""
    assert found.outputs["s"].unlike == 1


def test_states_carry_their_errors_into_the_next_step():
    text = """
state total: f16[] = 2048.0
graph main(x: f16[]) -> f16[] {
  next = add(total, x)
  total <- next
  return next
}
"""
    one = np.array(0.75, "f2")
    found, by = losses(text, steps=8, x=one)
    assert found.steps == 8
    assert found.outputs["total"].exact == 2048 + 8 * 0.75
    assert found.outputs["total"].got == 2048
    assert by["next = add(total, x)"].runs == 8


def test_turns_of_a_loop_are_one_line_and_conversions_lose_nothing_of_their_own():
    text = """
graph main(x: f32[8]) -> f32[8] {
  h = cast(x, dtype=f16)
  y = while(h, test=small, body=grow)
  z = cast(y, dtype=f32)
  return z
}
graph small(v: f16[8]) -> bool[] {
  q = max(v)
  t = less(q, 100.0)
  return t
}
graph grow(v: f16[8]) -> f16[8] {
  n = mul(v, 1.7)
  return n
}
"""
    x = RNG.uniform(0.5, 1, 8).astype("f4")
    found, by = losses(text, x=x)
    assert by["n = mul(v, 1.7)"].runs == 9
    assert by["z = cast(y, dtype=f32)"].own.relative == 0.0
    assert 0 < by["h = cast(x, dtype=f16)"].own.relative < 2.0**-11
    assert found.outputs["z"].relative > found.allowed["z"]  # f32 can hold more than what came


def test_what_draws_and_what_only_moves_is_exact():
    text = """
param table: f16[5, 4] = normal()
graph main(i: i32[3]) -> f16[4, 3] {
  noise = normal(shape=[3, 4], dtype=f16)
  rows = gather(table, i)
  y = add(rows, noise)
  z = transpose(y)
  return z
}
"""
    found, by = losses(text, i=np.array([0, 4, 2], np.int32))
    assert found.fine and found.losses[0].op == "add"
    assert by["rows = gather(table, i)"].own.relative == 0.0


def test_the_end_of_a_run_by_an_error_is_told():
    text = """
graph main(x: f16[2]) -> f16[2] {
  y = while(x, test=on, body=same, limit=3)
  return y
}
graph on(v: f16[2]) -> bool[] {
  q = max(v)
  t = greater(q, 0.0)
  return t
}
graph same(v: f16[2]) -> f16[2] {
  n = mul(v, 1.0)
  return n
}
"""
    found, _ = losses(text, x=np.ones(2, "f2"))
    assert "has not ended after 3 turns" in str(found.error) and not found.fine
