"""What is shown at a point is what a fresh run to that point with the same changes has.

`OPSTEP_SESSIONS=2000 pytest tests/runtime/debugger/test_truth.py` plays so many random sessions.
"""

from __future__ import annotations

import os
import re
from random import Random

import numpy as np
import pytest
from debugger.sessions_at_random import POLICIES, Model, bits, program_of

import opstep
from opstep.api.debugging import Debugger

SESSIONS = int(os.environ.get("OPSTEP_SESSIONS", "18"))


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_random_sessions(seed, tmp_path, record_property):
    policy = list(POLICIES.values())[seed % len(POLICIES)]
    model = Model(seed, policy, tmp_path / "model.opg", budget=(1 << 30, 1)[seed % 7 == 0])
    points = 0
    for _ in range(40):
        model.command()
        if model.random.random() < 0.1:
            points += model.compare()
    model.play("end")
    points += model.compare()
    assert points > 0
    record_property("points", points)


VALUE = re.compile(r"^  (v\d+) = ", re.MULTILINE)


def rewritten(text: str, names: list[str]) -> str:
    """A program that says by itself what is set by hand: elements of these values come from
    inputs.
    """
    head, _, main = text.partition("graph main(")
    more = "".join(f", {n}_part: bool[8], {n}_set: f32[8]" for n in names)
    main = main.replace(") ->", f"{more}) ->", 1)
    for name in names:
        old = re.search(rf"^  {name} = (.*)$", main, re.MULTILINE)
        assert old is not None
        new = f"  {name}_old = {old[1]}\n  {name} = where({name}_part, {name}_set, {name}_old)"
        main = main.replace(old[0], new, 1)
    return f"{head}graph main({main}"


@pytest.mark.parametrize("seed", [*range(30), 403_018])  # the last has nothing to set
def test_what_is_set_against_a_program_that_says_it(seed, tmp_path):
    """In any order, standing anywhere behind, under any policy."""
    random, rng = Random(seed), np.random.default_rng(seed)
    text = program_of(seed)
    values = VALUE.findall(text.partition("graph main(")[2])
    names = random.sample(values, min(len(values), random.randrange(1, 5)))
    policy = {"streams": random.randrange(1, 9), "alloc": random.choice(["reuse", "fresh"])}
    policy |= {"mode": "async", "fill": random.choice(["none", "nan"])}
    program, other = opstep.loads(text), opstep.loads(rewritten(text, names))
    for name, declared in program.module.tensors.items():
        if declared.init is None:
            drawn = rng.standard_normal(declared.type.shape).astype(declared.type.dtype.numpy)
            program.params[name] = other.params[name] = drawn
    main = program.graphs["main"]
    inputs = {b.name.text: rng.standard_normal(8).astype("f4") for b in main.inputs}
    given = {n: (rng.random(8) < 0.6, rng.standard_normal(8).astype("f4")) for n in names}
    more = {f"{n}_part": part for n, (part, _) in given.items()}
    more |= {f"{n}_set": array for n, (_, array) in given.items()}
    wanted = other.run("main", inputs | more)

    debugger = Debugger(program, "main", inputs, stop_on_entry=True, **policy)
    debugger.start()
    stop = debugger.go("over")  # what runs on from its entry has no history to take outputs from
    left = list(names)
    while left:
        there = [n for n in left if debugger.stack()[-1].lookup(n) is not None]
        if there and (random.random() < 0.3 or stop.reason == "end"):
            name = random.choice(there)
            left.remove(name)
            part, array = given[name]
            debugger.set(debugger.stack()[-1], name, array, part)
        stop = debugger.go("over")
    assert debugger.go("continue").reason == "end"
    machine = debugger.machine  # a name may be returned twice
    found = [machine.executor.array(n).tobytes() for n in machine.outputs()]
    assert found == [a.tobytes() for a in wanted.outputs]
    assert bits(program.params) == bits(other.params)
