"""The example in `docs/plan.md` is what the planner makes, and what the checker says."""

from __future__ import annotations

import re
from pathlib import Path

import opstep
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.text import format_plan, parse_plan

TEXT = (Path(__file__).parents[3] / "docs" / "plan.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))


def test_the_example_is_what_the_planner_makes():
    program = opstep.loads(BLOCKS["opg"], "two.opg")
    plan = program.plan("main", None, opstep.policy(streams=2), device="null", symbols={})
    assert format_plan(plan) == BLOCKS["plan"]
    assert check(plan) == []


def test_the_hazard_is_what_the_checker_says():
    (hazard,) = check(parse_plan(BLOCKS["plan"].replace("  wait    s1  e0\n", "")))
    assert str(hazard) == " ".join(BLOCKS["text"].split())
