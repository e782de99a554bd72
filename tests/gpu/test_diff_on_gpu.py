"""Two ways to run on a GPU, side by side; streams that are late; races that are put into plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import opstep
from opstep.differing.diff import diff, settings
from opstep.differing.taps import Taps
from opstep.runtime.device.cuda.spinning import spin
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.plan import Wait

SIZE = 1 << 20

WIDE = f"""\
param w: f32[{SIZE}] = normal()

graph main(x: f32[{SIZE}]) -> f32[{SIZE}], f32[] {{
  a = exp(x)
  b = sin(x)
  c = cos(x)
  d = tanh(x)
  e = mul(a, b)
  f = mul(c, d)
  g = add(e, w)
  h = sub(f, a)
  k = exp(h)
  l = sin(g)
  m = add(k, l)
  n = tanh(m)
  o = sum(n)
  w <- n
  return m, o
}}
"""


def vector(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(SIZE).astype("f4")}


def test_a_gpu_beside_the_cpu():
    both = opstep.loads(WIDE), opstep.loads(WIDE)
    ways = {"settings_a": settings("async"), "settings_b": settings("debug,device=cuda")}
    assert diff(*both, inputs=vector(), rtol=1e-3, atol=1e-3, **ways).first is None
    strict = diff(*both, inputs=vector(), **ways).first
    assert strict is not None and strict.elements and strict.elements.most < 1e-3
    assert strict.changing == ()


@pytest.mark.parametrize("chaos", [None, 4])
def test_modes_give_the_same_bits(chaos):
    found = diff(
        opstep.loads(WIDE), opstep.loads(WIDE), inputs=vector(1), steps=3, chaos=chaos,
        settings_a=settings("device=cuda,streams=4"), settings_b=settings("device=cuda,mode=debug"),
    )  # fmt: skip
    assert found.same and found.compared == 42


def test_a_run_with_delays_gives_the_same_bits():
    calm = opstep.loads(WIDE).run(inputs=vector(2), device="cuda", steps=3)
    late = opstep.loads(WIDE).run(inputs=vector(2), device="cuda", steps=3, chaos=9)
    assert calm["m"].tobytes() == late["m"].tobytes()
    assert calm["o"].tobytes() == late["o"].tobytes()


def test_delays_take_about_as_long_as_they_say():
    from time import perf_counter

    device = opstep.loads(WIDE).on("cuda")
    device.now(spin(device, 0.002))  # compiled
    began = perf_counter()
    for _ in range(20):
        device.now(spin(device, 0.002))
    taken = (perf_counter() - began) / 20
    assert 0.0005 < taken < 0.02, taken


def test_each_wait_that_is_missing_is_named_and_found(monkeypatch):
    wanted = []

    def before(self, execution):
        if execution.binding.plan is wanted[0] and execution.number in wanted[1]:
            for _ in range(5):
                work = spin(self.device, 0.003)
                execution.binding.streams[execution.stream].submit(work)

    monkeypatch.setattr(Taps, "before", before)
    how = settings("device=cuda,streams=4")
    program = opstep.loads(WIDE)
    plan = program.plan(policy=how.policy, device="cuda", symbols={})
    places = [k for k, i in enumerate(plan.instructions) if isinstance(i, Wait)]
    if not places:
        pytest.skip("the plan has no waits")
    for k in places:
        program = opstep.loads(WIDE)
        plan = program.plan(policy=how.policy, device="cuda", symbols={})
        (key,) = [key for key, made in program._plans.items() if made is plan]
        code = plan.instructions[:k] + plan.instructions[k + 1 :]
        program._plans[key] = plan = replace(plan, instructions=code)
        hazards = check(plan)
        assert hazards
        seconds = [plan.instructions[h.second.instruction].step for h in hazards]  # pyright: ignore
        if min(seconds) >= len(plan.steps) - plan.commits:
            continue  # updates at the end: the host issues them when all else is done
        sites = [h.first.instruction for h in hazards if h.first]
        wanted[:] = [plan, {plan.instructions[i].step for i in sites}]  # pyright: ignore
        found = diff(
            program, opstep.loads(WIDE), inputs=vector(k), settings_a=how,
            settings_b=settings("device=cuda,mode=debug"),
        )  # fmt: skip
        assert not found.same, hazards[0]
        assert found.verdicts["a"].near and found.verdicts["b"].free
