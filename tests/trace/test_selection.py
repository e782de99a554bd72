"""Whose statistics are taken: what `--stats` says."""

from __future__ import annotations

import pytest

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.selection import Selection

PROGRAM = """\
param conv1.w: f32[4, 4] = normal()
state count: i32[] = 0

graph encode(x: f32[N, 4]) -> f32[N, 4] {
  h = linear(x, conv1.w)
  r = relu(h)
  return r
}

graph main(x: f32[N, 4]) -> f32[N, 4], f32[] {
  a = encode(x)
  b = encode(a)
  flat = reshape(b, shape=[N * 4])
  last = relu(b)
  total = sum(flat)
  fine = isfinite(total)
  assert fine, "not a number"
  more = add(count, 1)
  count <- more
  return last, total
}
"""


@pytest.fixture(scope="module")
def plan():
    return opstep.loads(PROGRAM).plan("main", symbols={"N": 2})


def chosen(plan, text: str) -> list[str]:
    return [
        f"{plan.steps[s].op.name}:{plan.values[v].name}" for s, v in Selection(text).values(plan)
    ]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("none", []),
        ("outputs", ["relu:last", "sum:total"]),
        ("relu:*", ["relu:r", "relu:r", "relu:last"]),
        ("h", ["linear:h", "linear:h"]),
        ("la*", ["relu:last"]),
        ("sum:t*, flat", ["reshape:flat", "sum:total"]),
        ("main/encode:a/*", ["linear:h", "relu:r"]),
        ("encode:b/r", ["relu:r"]),
        ("count", ["update:count"]),
        ("relu:h", []),
    ],
)
def test_patterns(plan, text, expected):
    assert chosen(plan, text) == expected


def test_all_are_the_results_of_ops_that_run(plan):
    found = chosen(plan, "all")
    assert "update:count" in found
    assert "linear:h" in found
    assert "reshape:flat" not in found  # it looks at another tensor's bytes
    assert not any(name.startswith("assert") for name in found)


def test_what_matches_nothing_is_complained_of(plan):
    for text in ("relu:*", "conv1.*", "input:x", "main/encode:a/*"):
        Selection(text).complain([plan])
    with pytest.raises(InputError, match="no tensor of the graph has such a name") as raised:
        Selection("totl").complain([plan])
    assert "total" in raised.value.diagnostics[0].hint


@pytest.mark.parametrize(
    "text, op, name, wanted",
    [
        ("all", "input", "x", True),
        ("none", "param", "conv1.w", False),
        ("outputs", "input", "x", False),
        ("conv1.*", "param", "conv1.w", True),
        ("conv2.*", "param", "conv1.w", False),
        ("input:*", "input", "x", True),
        ("input:*", "param", "conv1.w", False),
    ],
)
def test_inputs_and_named_tensors(text, op, name, wanted):
    assert Selection(text).tensor(op, name) is wanted


@pytest.mark.parametrize("text", ["", " , "])
def test_naming_nothing_is_an_error(text):
    with pytest.raises(InputError, match="names nothing"):
        Selection(text)
