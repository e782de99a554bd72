"""Two runs side by side: the first op that differs, and races that are taken into plans."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from threading import Event

import numpy as np
import pytest

import opstep
from opstep.differing.diff import diff, settings
from opstep.differing.taps import Taps
from opstep.runtime.ir.errors import InputError
from opstep.runtime.plan.hazards import Site, check
from opstep.runtime.plan.plan import Call, Plan, Run, Wait

SIZE = 1 << 17  # elements: enough for the planner to use several streams
PATIENCE_S = 20  # of one op with another

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

LOOPED = """\
state seen: i32[] = 0

graph main(x: f32[8]) -> f32[8], f32[] {
  y = while(x, test=large, body=step)
  s = sum(y)
  next = add(seen, 1)
  seen <- next
  return y, s
}

graph large(v: f32[8]) -> bool[] {
  m = max(v)
  t = greater(m, 1.0)
  return t
}

graph step(v: f32[8]) -> f32[8] {
  h = halved(v)
  z = sub(h, 0.125)
  return z
}

graph halved(v: f32[8]) -> f32[8] {
  y = mul(v, 0.5)
  return y
}
"""


def vector(seed: int = 0, size: int = SIZE) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(size).astype("f4")}


# --- what is found --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [WIDE, LOOPED])
@pytest.mark.parametrize("how", ["streams=4", "streams=2,alloc=fresh", "fill=nan", "threads=1"])
@pytest.mark.parametrize("chaos", [None, 5])
def test_ways_to_run_give_the_same(text, how, chaos):
    x = vector(size=8 if text is LOOPED else SIZE)
    x["x"] = x["x"] * 20
    found = diff(
        opstep.loads(text), opstep.loads(text), inputs=x, settings_a=settings(how), steps=2,
        chaos=chaos,
    )  # fmt: skip
    assert found.same and found.first is None
    assert (found.steps, found.complete, found.passes) == (2, True, 2)
    assert all(v.free and v.hazards == [] for v in found.verdicts.values())
    assert found.compared > 20


def test_the_first_op_that_differs_and_how():
    other = WIDE.replace("f = mul(c, d)", "f = mul(d, 0.999)")
    found = diff(opstep.loads(WIDE), opstep.loads(other), inputs=vector(3))
    x, first = vector(3)["x"], found.first
    assert not found.same and first is not None and first.a and first.b and first.elements
    assert (first.kind, first.step, first.changing) == ("values", 0, ())
    assert first.a.site == "main/f" and first.a.statement == "f = mul(c, d)"
    assert first.b.statement == "f = mul(d, 0.999)"
    assert (first.a.line, first.a.op) == (9, "mul")
    d = np.tanh(x.astype("f8"))
    apart = np.abs(np.cos(x.astype("f8")) * d - d * 0.999)
    assert first.elements.most == pytest.approx(apart.max(), rel=1e-4)
    assert first.elements.differing > SIZE * 0.99
    assert first.elements.a == pytest.approx((np.cos(x[0]) * d[0]), rel=1e-5)
    assert found.differing == 7  # f h k m n o, and w


def test_tolerances_pass_over_what_is_small():
    text = "graph main(x: f32[64]) -> f32[64] {\n  a = exp(x)\n  b = mul(a, 1.0)\n  return b\n}\n"
    other = text.replace("1.0", "1.00001")
    x = vector(1, 64)
    both = opstep.loads(text), opstep.loads(other)
    strict = diff(*both, inputs=x).first
    assert strict is not None and strict.site.value == "b"
    assert strict.elements and strict.elements.most_relative == pytest.approx(1e-5, rel=0.1)
    assert strict.elements.most_ulp > 50
    assert diff(*both, inputs=x, rtol=1e-4).same
    assert not diff(*both, inputs=x, rtol=1e-6).same
    assert diff(*both, inputs=x, atol=1.0).same


def test_bits_of_zeros_and_nans_count_without_a_tolerance():
    text = "graph main(x: f32[4]) -> f32[4] {\n  a = mul(x, 0.0)\n  return a\n}\n"
    other = text.replace("0.0", "-0.0")
    x = {"x": np.array([1, np.nan, 2, np.inf], "f4")}
    both = opstep.loads(text), opstep.loads(other)
    found = diff(*both, inputs=x).first
    assert found is not None and found.elements
    assert found.elements.first == (0,)
    assert found.elements.nan == (2, 2)
    assert diff(*both, inputs=x, atol=1e-9).same


def test_an_op_within_turns_of_a_loop():
    other = LOOPED.replace("mul(v, 0.5)", "mul(v, 0.375)").replace("0.125)", "0.125)")
    x = {"x": np.full(8, 20.0, "f4")}
    found = diff(opstep.loads(LOOPED), opstep.loads(other), inputs=x)
    assert found.first is not None
    assert found.first.site.site == "main/y/step/[0]/step/halved:h/y"
    assert found.first.site.turns == [0]
    assert found.first.site.line == 24


def test_a_loop_that_turns_once_more_is_found_where_its_test_differs():
    other = LOOPED.replace("greater(m, 1.0)", "greater(m, 0.2)")
    x = {"x": np.full(8, 20.0, "f4")}
    found = diff(opstep.loads(LOOPED), opstep.loads(other), inputs=x)
    assert found.first is not None and found.first.kind == "values"
    assert found.first.site.value == "t"
    assert found.first.site.turns[0] > 0


def test_types_that_differ():
    text = """\
graph main(x: f32[4]) -> f32[] {
  a = cast(x, dtype=f64)
  s = sum(x)
  return s
}
"""
    found = diff(opstep.loads(text), opstep.loads(text.replace("f64", "i32")), inputs=vector(0, 4))
    assert found.first is not None and found.first.kind == "type"
    assert found.first.a and str(found.first.a.type) == "f64[4]"
    assert found.first.b and str(found.first.b.type) == "i32[4]"


CANCELS = """\
param w: f16[16, 16] = normal(std=0.25)

graph main(x: f16[8, 16]) -> f16[8, 16] {
  h = matmul(x, w)
  a = add(h, 512.0)
  b = sub(a, 512.0)
  c = cast(b, dtype=f32)
  d = mul(c, 2.0)
  e = cast(d, dtype=f16)
  return e
}
"""


def test_floats_of_two_types_are_compared_as_numbers():
    """By what the coarser type can hold: in bits all of them differ."""
    one, other = opstep.loads(CANCELS), opstep.loads(CANCELS.replace("f16", "f32"))
    x = {"x": np.random.default_rng(4).standard_normal((8, 16)).astype("f2")}
    found = diff(one, other, inputs=x)
    assert (found.coarse, found.initial) == ("f16", [])
    assert found.first is not None and found.first.kind == "values"
    assert found.first.site.statement == "b = sub(a, 512.0)"
    assert found.first.elements and found.first.elements.most == pytest.approx(0.25, rel=0.2)
    assert found.first.elements.most_ulp > 100
    assert diff(one, other, inputs=x, atol=1.0).same
    mild = [opstep.loads(text.replace("512", "2")) for text in (CANCELS, one_wide(CANCELS))]
    assert diff(*mild, inputs=x).same
    assert not diff(*mild, inputs=x, rtol=1e-6).same


def one_wide(text: str) -> str:
    return text.replace("f16", "f32")


def test_a_nan_against_a_number_is_not_apart_by_nothing():
    text = "graph main(x: f32[4]) -> f32[4] {\n  a = log(x)\n  return a\n}\n"
    other = text.replace("log(x)", "log1p(x)")
    x = {"x": np.array([-0.5, 0.0, 1e30, 1e30], "f4")}
    found = diff(opstep.loads(text), opstep.loads(other), inputs=x)
    assert found.first is not None and found.first.elements
    told = found.first.elements
    assert (told.differing, told.unlike, told.nan) == (2, 2, (1, 0))
    assert (told.most, told.most_ulp) == (0.0, 0)


def test_ops_that_one_program_alone_has():
    other = WIDE.replace("  k = exp(h)\n", "  kk = exp(h)\n  k = mul(kk, 1.0)\n")
    found = diff(opstep.loads(WIDE), opstep.loads(other), inputs=vector())
    assert found.same
    assert found.alone == ([], ["main/kk"])


def test_states_go_on_on_each_side():
    one = opstep.loads(LOOPED)
    x = {"x": np.full(8, 20.0, "f4")}
    assert diff(one, one, inputs=x, steps=3).same
    assert int(one.params["seen"]) == 3, "the sides share the tensors of one program"
    other = opstep.loads(LOOPED)
    other.params["seen"] = 7
    found = diff(opstep.loads(LOOPED), other, inputs=x, steps=3)
    assert found.initial == ["seen"]
    assert found.first is not None and found.first.site.value == "next"


def test_little_memory_takes_more_runs():
    text = WIDE.replace("k = exp(h)", "k = exp(h)")
    other = WIDE.replace("l = sin(g)", "l = sin(h)").replace("n = tanh(m)", "n = exp(m)")
    nbytes = SIZE * 4
    for budget in (nbytes * 64, nbytes * 3, nbytes):
        both = opstep.loads(text), opstep.loads(other)
        found = diff(*both, inputs=vector(), settings_a=settings("streams=4"), budget=budget)
        assert found.first is not None and found.first.site.value == "l"
        assert found.complete
        assert (found.passes > 1) == (budget < nbytes * 14)
    found = diff(*both, inputs=vector(), budget=nbytes - 1)
    assert not found.complete, "what is larger than the memory is told to be left out"
    assert found.first is not None and found.first.site.value == "o"


def test_an_assert_that_fails_on_one_side():
    text = """\
graph main(x: f32[4]) -> f32[4] {
  y = mul(x, 1.0)
  m = max(y)
  fine = less(m, 2.0)
  assert fine, "too large"
  return y
}
"""
    x = {"x": np.array([0, 1, 2, 3], "f4") / 2}
    found = diff(opstep.loads(text), opstep.loads(text.replace("(x, 1.0)", "(x, 9.0)")), inputs=x)
    assert found.first is not None and found.first.site.value == "y"
    assert list(found.errors) == ["b"]
    assert "too large" in str(found.errors["b"])
    same = opstep.loads(text.replace("2.0", "1.0")), opstep.loads(text.replace("2.0", "1.0"))
    both = diff(*same, inputs=x)
    assert both.same and sorted(both.errors) == ["a", "b"]


@pytest.mark.parametrize(
    "text, what",
    [
        ("strems=3", "'strems=3' is not a setting of a run"),
        ("streams=0", "streams is 0; it can be 1 to 64"),
        ("streams=65", "streams is 65"),
        ("streams=x", "streams is 'x'; it can be 1 to 64"),
        ("fast", "'fast' is not a setting"),
        ("mode=fast", "mode is 'fast'"),
        ("alloc=twice", "alloc is 'twice'"),
        ("device=null", "the null device computes nothing"),
        ("device=tpu", "there is no device tpu"),
        ("kernels=vendor", "kernels are chosen on GPUs"),
        ("device=cuda kernels=mine", "kernels is 'mine'"),
        ("threads=", "'threads=' is not a setting"),
    ],
)
def test_settings_that_are_none(text, what):
    with pytest.raises(InputError) as error:
        settings(text)
    assert what in str(error.value)


def test_settings_are_read_and_written():
    assert str(settings("")) == "async"
    assert str(settings("debug,streams=2 threads=1")) == "debug, streams=2, threads=1"
    assert settings("mode=debug, alloc=reuse").policy.alloc == "reuse"
    assert settings("sync=op", settings("streams=3")).streams == 3


# --- races ----------------------------------------------------------------------------------------


def without(plan: Plan, k: int) -> Plan:
    return replace(plan, instructions=plan.instructions[:k] + plan.instructions[k + 1 :])


def waits(plan: Plan) -> list[int]:
    return [k for k, i in enumerate(plan.instructions) if isinstance(i, Wait)]


def damaged(program: opstep.Program, how: str, damage) -> Plan:
    """Puts a plan with a fault in the place of the program's own; gives it."""
    side = settings(how)
    plan = program.plan(policy=side.policy, symbols={})
    (key,) = [k for k, made in program._plans.items() if made is plan]
    program._plans[key] = made = damage(plan)
    assert program.plan(policy=side.policy, symbols={}) is made
    return made


def step_of(plan: Plan, site: Site | None) -> int:
    assert site is not None
    instruction = plan.instructions[site.instruction]
    assert isinstance(instruction, (Run, Call))
    return instruction.step


@pytest.fixture
def late(monkeypatch):
    """Races that are decided, however busy the machine is: `late(plan)` holds back the op that
    should come first of each hazard of the plan until the other one is done, with `times` in that
    many runs; behind them the ops come in the order that is meant.
    """
    races: list[tuple[int, int, Event]] = []  # of the steps, one waits until the other is done
    subject: Plan | None = None
    lost = inf
    runs: list[Taps] = []
    decided: list[bool] = []

    def before(self, execution):
        if execution.binding.plan is subject:
            if self not in runs:
                runs.append(self)
            for first, second, done in races:
                if execution.number == first:
                    done.clear()
                if execution.number == (first if runs.index(self) < lost else second):
                    stream_of(execution).submit(partial(decide, done))

    def after(self, execution):
        keep(self, execution)
        if execution.binding.plan is subject:
            for first, second, done in races:
                if execution.number == (second if runs.index(self) < lost else first):
                    stream_of(execution).submit(done.set)

    def decide(done):
        decided.append(done.wait(PATIENCE_S))

    def stream_of(execution):
        return execution.binding.streams[execution.stream]

    keep = Taps.after
    monkeypatch.setattr(Taps, "before", before)
    monkeypatch.setattr(Taps, "after", after)

    def make_late(plan: Plan, times: float = inf) -> None:
        nonlocal subject, lost
        subject, lost = plan, times
        runs.clear()
        pairs = {(step_of(plan, h.first), step_of(plan, h.second)) for h in check(plan)}
        races[:] = [(first, second, Event()) for first, second in pairs]

    yield make_late
    assert decided and all(decided)


def count_of_waits(how: str) -> int:
    return len(waits(opstep.loads(WIDE).plan(policy=settings(how).policy, symbols={})))


@pytest.mark.parametrize("how", ["streams=4", "streams=4,alloc=fresh", "streams=2"])
def test_each_wait_that_is_missing_is_named_and_found(how, late):
    """Every wait of the plan is taken out in turn. The checker names it from the plan alone; then
    the op that should come first comes after the other, and the run shows it; unless that is one of
    the updates at the end, for the host issues them when all else is done.
    """
    number = count_of_waits(how)
    assert number >= 2
    found_by_running = 0
    for k in range(number):
        program = opstep.loads(WIDE)
        plan = damaged(program, how, lambda plan, k=k: without(plan, waits(plan)[k]))
        hazards = check(plan)
        assert hazards, f"wait {k} is missing, and nobody says so"
        if all(step_of(plan, h.second) >= len(plan.steps) - plan.commits for h in hazards):
            continue
        found_by_running += 1
        late(plan)
        found = diff(program, opstep.loads(WIDE), inputs=vector(k), settings_a=settings(how))
        assert not found.same, f"wait {k}: {hazards[0]}"
        assert found.first is not None
        assert found.verdicts["a"].hazards == hazards
        assert found.verdicts["a"].near, "the race that is at this op is told apart"
        assert found.verdicts["b"].free
    assert found_by_running >= 2


def test_memory_that_is_written_too_soon_is_found_at_its_reader():
    """A buffer is laid over another that is still read: the op that wrote the first one gave the
    right values, and is not blamed.
    """
    for writer, victim, reader in (("c", "b", "e"), ("d", "a", "e"), ("d", "c", "f")):
        program = opstep.loads(WIDE)

        def laid_over(plan: Plan, writer=writer, victim=victim) -> Plan:
            named = {v.name: v.buffer for v in plan.values}
            buffers = list(plan.buffers)
            at = buffers[named[victim]].offset
            buffers[named[writer]] = buffers[named[writer]]._replace(offset=at)
            return replace(plan, buffers=buffers)

        plan = damaged(program, "streams=1", laid_over)
        assert any(h.kind in ("overwritten", "reuse", "overlap") for h in check(plan))
        found = diff(program, opstep.loads(WIDE), inputs=vector(), settings_a=settings("streams=1"))
        assert found.first is not None
        assert found.verdicts["a"].near
        assert found.first.site.value == reader


def test_delays_at_random_bring_races_out():
    """Without a hint where it is: some seed of a few shows it, and what is shown is right."""
    how, shown = "streams=4", 0
    for k in range(count_of_waits(how)):
        for seed in range(6):
            program = opstep.loads(WIDE)
            plan = damaged(program, how, lambda plan, k=k: without(plan, waits(plan)[k]))
            x = vector(100 * k + seed)
            found = diff(
                program, opstep.loads(WIDE), inputs=x, settings_a=settings(how), chaos=seed
            )
            if not found.same:
                assert found.first is not None
                assert found.verdicts["a"].hazards == check(plan) != []
                shown += 1
                break
    assert shown >= 1


def test_a_side_that_changes_from_run_to_run_is_told(late):
    how = "streams=4"
    program = opstep.loads(WIDE)
    plan = damaged(program, how, lambda plan: without(plan, waits(plan)[0]))
    late(plan, times=1)  # the one that is compared
    found = diff(program, opstep.loads(WIDE), inputs=vector(), settings_a=settings(how))
    assert found.first is not None and found.first.changing == ("a",)
