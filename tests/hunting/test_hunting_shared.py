"""Bugs and clean programs, made of what goes wrong and of ways from there to an output; on half of
the ways other elements of the same tensors are bad, too, and never come out.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import opstep
from opstep.hunting.search import hunt

# An op of x, an element of x that is fine, one that makes it bad, and the rule that this breaks.
BIRTHS = [
    ("log({x})", 2.0, -1.0, "nan", "log of a negative number"),
    ("exp2({x})", 2.0, 200.0, "inf", "overflow of f32"),
    ("sqrt({x})", 4.0, -4.0, "nan", "square root of a negative number"),
    ("rsqrt({x})", 4.0, 0.0, "inf", "1 / sqrt(0)"),
    ("reciprocal({x})", 4.0, 0.0, "inf", "1 / 0"),
    ("acos({x})", 0.5, 1.5, "nan", "beyond -1 … 1, where it is defined"),
    ("atanh({x})", 0.5, 1.0, "inf", "atanh of 1 or -1"),
    ("exp({x})", 1.0, 90.0, "inf", "overflow of f32"),
    ("square({x})", 3.0, 1e20, "inf", "overflow of f32"),
    ("div({x}, {x})", 3.0, 0.0, "nan", "0 / 0"),
    ("div(1.0, {x})", 3.0, 0.0, "inf", "division by 0"),
    ("pow({x}, 0.5)", 3.0, -3.0, "nan", "negative number to a fractional power"),
    ("fmod(2.0, {x})", 3.0, 0.0, "nan", "remainder of a division by 0"),
    ("log1p({x})", 1.0, -2.0, "nan", "log of a negative number, 1 + x"),
    ("mul({x}, 1e30)", 1.0, 1e30, "inf", "overflow of f32"),
    ("acosh({x})", 2.0, 0.5, "nan", "less than 1, where it is defined"),
    ("sinh({x})", 1.0, 100.0, "inf", "overflow of f32"),
    ("pow({x}, -1.0)", 2.0, 0.0, "inf", "0 to a negative power"),
    ("cosh({x})", 2.0, 100.0, "inf", "overflow of f32"),
    ("log2({x})", 2.0, -2.0, "nan", "log of a negative number"),
]

# From b, [2, 4], to an output that takes in the second row alone, or only elements that keep says.
SHARED = {
    "where": "m = where(keep, b, 0.0)\n  y = sum(m)",
    "select": "y = select(b, axis=0, index=1)",
    "concat, slice": "c = concat(x, b, axis=0)\n  y = slice(c, starts=[3], ends=[4])",
    "matmul, select": "c = matmul(b, w)\n  y = select(c, axis=0, index=1)",
    "sum, select": "c = sum(b, axes=[1])\n  y = select(c, axis=0, index=1)",
    "softmax of rows": "c = softmax(b)\n  y = slice(c, starts=[1], ends=[2])",
    "turned, gathered": "c = transpose(b)\n  r = relu(c)\n  y = gather(r, one, axis=1)",
    "norm of rows": "c = layer_norm(b, shape=[4])\n  d = neg(c)\n  y = select(d, axis=0, index=1)",
    "flat": "c = reshape(b, shape=[8])\n  d = maximum(c, -5.0)\n"
    "  y = slice(d, starts=[4], ends=[8])",
    "scan": "c = cumsum(b, axis=1)\n  f = flip(c, axes=[0])\n  y = select(f, axis=0, index=0)",
}
ALONE = {
    "itself": "y = neg(b)",
    "sum": "y = sum(b)",
    "matmul": "y = matmul(b, w)",
    "called": "y = twice(b)",
    "through a loop": "y = while(b, n, test=below, body=again)",
}
INNOCENT, AT_FAULT = (0, 1), (1, 2)

TEXT = """\
graph main(x: f32[2, 4], w: f32[4, 3], keep: bool[2, 4], one: i64[1], n: i32[]) -> {result} {{
  b = {op}
  {way}
  return y
}}

graph twice(h: f32[2, 4]) -> f32[2, 4] {{
  d = add(h, h)
  return d
}}

graph below(h: f32[2, 4], k: i32[]) -> bool[] {{
  on = less(k, 3)
  return on
}}

graph again(h: f32[2, 4], k: i32[]) -> f32[2, 4], i32[] {{
  d = add(h, h)
  next = add(k, 1)
  return d, next
}}
"""


def paired(births, ways, each: int):
    """Each birth with some of the ways, all of them in turn."""
    turns = itertools.cycle(ways.items())
    return [
        pytest.param(birth, way, id=f"{birth[0].format(x='x')} {birth[2]:g}, {name}")
        for birth in births
        for name, way in itertools.islice(turns, each)
    ]


def program_of(op: str, way: str) -> opstep.Program:
    way = way.replace("y = while", "y, k = while")
    text = TEXT.format(op=op.format(x="x"), way=way, result="RESULT")
    for result in ("f32[]", "f32[4]", "f32[1, 4]", "f32[3]", "f32[4, 1]", "f32[2, 4]", "f32[2, 3]"):
        try:
            return opstep.loads(text.replace("RESULT", result), "b.opg")
        except opstep.OpstepError as error:
            last = error
    raise last


def given(fine: float, innocent: float | None, fault: float | None) -> dict:
    x = np.full((2, 4), fine, np.float32) + np.arange(8, dtype=np.float32).reshape(2, 4) / 128
    keep = np.ones((2, 4), bool)
    if innocent is not None:
        x[INNOCENT], keep[INNOCENT] = innocent, False
    if fault is not None:
        x[AT_FAULT] = fault
    w = np.linspace(0.1, 1, 12, dtype=np.float32).reshape(4, 3)
    return {"x": x, "w": w, "keep": keep, "one": np.array([1]), "n": np.int32(0)}


def is_right(found, bad: str, rule: str) -> None:
    first = found.first
    assert found.found, found.report()
    assert (first.kind, first.value, first.bad, first.where.line) == ("origin", "b", bad, 2)
    assert first.verdict.rules[0][0] == rule
    assert first.verdict.elements[0].place == AT_FAULT


@pytest.mark.parametrize("birth, way", paired(BIRTHS, SHARED, 3))
def test_a_bug_beside_elements_that_never_come_out(birth, way):
    """60 of them; of the elements that were born, the one that comes out is told."""
    op, fine, fault, bad, rule = birth
    found = hunt(program_of(op, way), "main", given(fine, fault, fault))
    is_right(found, bad, rule)
    assert found.first.verdict.arrived == 1
    assert found.first.verdict.own == 2


@pytest.mark.parametrize("birth, way", paired(BIRTHS, ALONE, 2))
def test_a_bug_alone(birth, way):
    """40 of them."""
    op, fine, fault, bad, rule = birth
    is_right(hunt(program_of(op, way), "main", given(fine, None, fault)), bad, rule)


@pytest.mark.parametrize("birth, way", paired(BIRTHS, SHARED, 2))
def test_missing_data_beside_a_bug(birth, way):
    """An input has a NaN that is taken out again: what is born beside it is told, not the input."""
    op, fine, fault, bad, rule = birth
    found = hunt(program_of(op, way), "main", given(fine, np.nan, fault))
    is_right(found, bad, rule)
    assert [f.given for f in found.masked] == ["input x"]


@pytest.mark.parametrize("birth, way", paired(BIRTHS, SHARED, 2))
def test_what_never_comes_out_is_no_alarm(birth, way):
    """40 clean programs: NaNs and infinities that are taken out again."""
    op, fine, fault, *_ = birth
    found = hunt(program_of(op, way), "main", given(fine, fault, None), steps=2)
    assert not found.found, found.report()
    assert found.masked[0].value == "b"


@pytest.mark.parametrize("birth, way", paired(BIRTHS, ALONE, 1))
def test_clean_programs_are_silent(birth, way):
    """20 more, with nothing bad at all."""
    op, fine, *_ = birth
    found = hunt(program_of(op, way), "main", given(fine, None, None), steps=2)
    assert not (found.found or found.masked), found.report()
