"""Which updates at the end of a plan may run beside each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import opstep
from opstep.runtime.device.cuda.driver.launching import _groups
from opstep.runtime.device.updates import Updates
from opstep.runtime.plan.plan import MODES, Run

PARAMS = """param a: f32[300000] = ones()
param b: f32[200000] = ones()
param c: f32[250000] = ones()
param s: f32[1] = ones()
"""


def beside(body: str) -> list[str]:
    """The named tensors that are updated beside each other, in the order of issue."""
    text = f"{PARAMS}graph main(x: f32[1]) -> f32[1] {{\n{body}  y = mul(x, 2.0)\n  return y\n}}\n"
    plan = opstep.loads(text).plan("main", fuse=True, policy=MODES["async"])
    updates, first, groups = Updates(plan, plan.commits), len(plan.steps) - plan.commits, [""]
    for instruction in plan.instructions:
        if not isinstance(instruction, Run):
            continue
        step, launch = plan.steps[instruction.step], SimpleNamespace(beside=False)
        updates.mark(instruction.step, instruction.stream, [launch])
        names = [plan.buffers[b].name for b in step.writes] if instruction.step >= first else []
        if not launch.beside:
            groups.append("")
        groups[-1] += "".join(names)
    return [g for g in groups if g]


@pytest.mark.parametrize(
    "body, expected",
    [
        (
            "  p = add(a, x)\n  a <- p\n  q = mul(b, x)\n  b <- q\n  r = sub(c, x)\n  c <- r\n",
            "abc",
        ),
        # what the last one writes is read by the others
        (
            "  p = mul(a, s)\n  a <- p\n  q = mul(b, s)\n  b <- q\n  r = sub(s, x)\n  s <- r\n",
            "ab s",
        ),
    ],
)
def test_updates_that_touch_nothing_of_each_other_s(body, expected):
    assert beside(body) == expected.split()


@pytest.mark.parametrize(
    "marks, groups",
    [
        ("", []),
        ("0", []),
        ("00", []),
        ("01", [(0, 2)]),
        ("0110011", [(0, 3), (4, 7)]),
        ("11", [(0, 2)]),
        ("s0s0s", [(0, 1), (2, 3), (4, 5)]),
    ],
)
def test_groups_of_launches(marks, groups):
    """1: it may run beside the one before; s: a stamp."""
    assert _groups([SimpleNamespace(beside=m == "1", stamp=m == "s") for m in marks]) == groups
