"""Where a graph loses precision: each op beside the same in f64."""

from __future__ import annotations

import ml_dtypes
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
    exact = x.astype("f8") * 0.3
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


POSITIONS = """
graph main(i: i64[600]) -> {T}[600] {{
  t = cast(i, dtype={T})
  c = cos(t)
  return c
}}
"""
COUNTED = {
    "iota": "t = iota(shape=[600], dtype={T})",
    "cumsum": "o = ones(shape=[600], dtype={T})\n  t = cumsum(o, axis=0)",
    "cast of f32": "f = iota(shape=[600], dtype=f32)\n  t = cast(f, dtype={T})",
    "by way of integers": (
        "f = iota(shape=[600], dtype={T})\n  i = cast(f, dtype=i32)\n  t = cast(i, dtype={T})"
    ),
    "a declaration": "t = add(w, 0.0)",
}


@pytest.mark.parametrize("dtype, fine", [("bf16", False), ("f16", True), ("f32", True)])
def test_a_cast_from_integers_rounds(dtype, fine):
    """Up to 2^11 f16 has all integers, bf16 up to 2^8."""
    found, by = losses(POSITIONS.format(T=dtype), i=np.arange(600))
    assert found.fine is fine
    assert not fine or by[f"t = cast(i, dtype={dtype})"].total.most == 0
    if not fine:
        cos = by["c = cos(t)"]
        assert (cos.what, cos.through) == ("the error of t grows", "t")
        i = np.arange(600)
        t = i.astype(ml_dtypes.bfloat16).astype("f8")
        error = np.linalg.norm(np.cos(t) - np.cos(i)) / np.linalg.norm(np.cos(i))
        assert cos.total.relative == pytest.approx(error, abs=2.0**-8)


@pytest.mark.parametrize("way", COUNTED)
def test_positions_that_a_narrow_type_does_not_hold(way):
    for dtype, fine in (("bf16", False), ("f32", True)):
        body = COUNTED[way].format(T=dtype)
        found, _ = losses(f"""
param w: {dtype}[600] = iota()
graph main() -> {dtype}[600] {{
  {body}
  c = cos(t)
  return c
}}
""")
        assert found.fine is fine, (dtype, found.outputs)


@pytest.mark.parametrize(
    "text, blamed",
    [
        ("t = full(shape=[4], value=0.1, dtype=f16)\n  y = sub(t, 0.0999755859375)", "t"),
        ("y = sub(w, 0.0999755859375)", "w"),
        ("a = mul(x, 0.1)\n  y = sub(a, 0.0999755859375)", "a"),
        ("l = less(x, 1.0001)\n  y = where(l, x, 0.0)", "1.0001"),
    ],
)
def test_constants_that_a_narrow_type_does_not_hold(text, blamed):
    found, _ = losses(
        f"""
param w: f16[4] = 0.1
graph main(x: f16[4]) -> f16[4] {{
  {text}
  return y
}}
""",
        x=np.ones(4, "f2"),
    )
    assert not found.fine and found.outputs["y"].zeroed == 4
    assert blamed in {one.through for one in found.losses if one.what}


def test_a_param_that_was_loaded_is_as_it_was_loaded():
    program = opstep.loads(
        "param w: f16[4] = 0.1\ngraph main() -> f16[4] {\n  y = mul(w, 3.0)\n  return y\n}\n"
    )
    program.params["w"] = np.full(4, 0.2, "f2")
    found = precision(program, "main", {})
    assert found.losses[0].came == 0


@pytest.mark.parametrize(
    "dtype, line, given, what",
    [
        ("i32", "j = mul(i, 65536)", [1, 2, 40000, 70000], "2 of 4 elements: i32 wraps"),
        ("u8", "j = add(i, i)", [1, 2, 200, 100], "1 of 4 elements: u8 wraps"),
        ("i64", "j = cast(i, dtype=i8)", [1, -128, 127, 128], "1 of 4 elements: i8 wraps"),
        ("f32", "j = cast(i, dtype=i8)", [1, 9, 0, 300], "1 of 4 elements: beyond what i8 holds"),
        ("i32", "j = mul(i, 65536)", [1, 2, 3, -4], ""),
    ],
)  # fmt: skip
def test_integers_that_wrap(dtype, line, given, what):
    given = np.array(given, {"u8": "u1"}.get(dtype, dtype.replace("32", "4").replace("64", "8")))
    text = f"graph main(i: {dtype}[4]) -> f32[4] {{\n  {line}\n  f = cast(j, dtype=f32)\n"
    found, by = losses(text + "  return f\n}\n", i=given)
    assert found.fine is not bool(what)
    assert (by[line].what if what else by.get(line)) == (what or None)


def test_integers_that_come_from_rounded_floats_are_compared():
    text = """
graph main(i: i64[4]) -> i32[4], bool[4] {
  t = cast(i, dtype=f32)
  d = sub(t, 16777216.0)
  j = cast(d, dtype=i32)
  b = equal(j, 0)
  return j, b
}
"""
    found, by = losses(text, i=np.array([16777217, 16777216, 16777218, 5]))
    assert not found.fine and found.outside == ["j", "b"]
    assert by["t = cast(i, dtype=f32)"].total.relative < 2.0**-24


def test_one_wrong_element_of_many_is_not_hidden():
    found, _ = losses(POSITIONS.format(T="bf16"), i=np.array([257] + [0] * 599))
    assert found.outputs["c"].relative < found.allowed["c"] < found.outputs["c"].largest / 4
    assert found.outside == ["c"]


def test_many_small_elements_beside_a_large_one_are_not_hidden():
    text = """
graph main(i: i64[5]) -> f32[5] {
  t = cast(i, dtype=f32)
  d = sub(t, 16777216.0)
  return d
}
"""
    found, _ = losses(text, i=np.array([5, 16777217, 16777219, 16777217, 16777217]))
    assert found.outputs["d"].largest < found.allowed["d"] < found.outputs["d"].typical
    assert not found.fine


def test_elements_that_their_type_is_too_coarse_for_are_no_error():
    """e^-200 is no f32."""
    text = "graph main(x: f32[8]) -> f32[8] {\n  y = softmax(x)\n  return y\n}\n"
    found, by = losses(text, x=np.array([0] + [-200] * 7, "f4"))
    assert found.fine and by["y = softmax(x)"].what == "7 of 8 elements become 0"


def test_an_op_without_a_meaning_in_numpy_is_not_called_exact(monkeypatch):
    from opstep.runtime.ir.op import OPS

    def refuse(x):
        raise TypeError("not this")

    monkeypatch.setattr(OPS["exp"], "oracle", staticmethod(refuse))
    text = "graph main(x: f32[2]) -> f32[2] {\n  y = exp(x)\n  return y\n}\n"
    found, _ = losses(text, x=np.ones(2, "f4"))
    assert found.unmeasured == ["<text>:2: y = exp(x)"] and not found.fine
