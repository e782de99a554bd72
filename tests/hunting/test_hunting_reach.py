"""What a hunt says of elements: which come out, what masked ones decide, what counts as wanted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from seeded import break_with

import opstep
from opstep.hunting.search import hunt
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.types import DTYPES, f32
from opstep.runtime.plan.plan import Record, Wait


def f(*values):
    return np.array(values, np.float32)


def hunted(text: str, inputs: dict, **options):
    graph = options.pop("graph", "main")
    return hunt(opstep.loads(text, "b.opg"), graph, inputs, **options)


def test_the_origin_is_the_one_whose_elements_come_out():
    found = hunted(
        """graph main(x: f32[2], y: f32[2], ok: bool[2]) -> f32[2] {
  l = log(x)
  r = sqrt(y)
  m = where(ok, l, r)
  return m
}
""",
        {"x": f(-1, 1), "y": f(1, -1), "ok": np.array([False, False])},
    )
    assert [f.op for f in found.findings] == ["sqrt"]
    assert [f.op for f in found.masked] == ["log"]
    assert [c.op for c in found.first.chain] == ["sqrt", "where"]
    assert [m.op for m in found.masked[0].masked_by] == ["where"]


@pytest.mark.parametrize(
    "way",
    [
        "c = concat(l, r, axis=0)\n  y = slice(c, starts=[2], ends=[4])",
        "c = matmul(l, r)\n  y = select(c, axis=0, index=1)",
        "s = stack(l, r, axis=0)\n  c = sum(s, axes=[2])\n  y = select(c, axis=0, index=1)",
    ],
)
def test_rows_that_are_not_taken_do_not_count(way):
    text = f"""graph main(x: f32[2, 2], z: f32[2, 2]) -> {{}} {{{{
  l = log(x)
  r = sqrt(z)
  {way}
  return y
}}}}
"""
    result = "f32[2]" if "matmul" in way or "stack" in way else "f32[2, 2]"
    x, z = f(-1, 1, 1, 1).reshape(2, 2), f(1, 1, 1, -1).reshape(2, 2)
    found = hunted(text.format(result), {"x": x, "z": z})
    assert (found.first.op, [f.op for f in found.masked]) == ("sqrt", ["log"])


def test_missing_data_is_not_the_origin_of_what_is_born_beside_it():
    text = """graph main(x: f32[4], c: f32[4]) -> f32[4] {
  d = div(x, c)
  n = isnan(x)
  m = where(n, 0.0, d)
  return m
}
"""
    found = hunted(text, {"x": f(np.nan, 1, 0, np.nan), "c": f(1, 1, 0, 0)})
    assert (found.first.op, found.first.verdict.elements[0].place) == ("div", (2,))
    assert [f.given for f in found.masked] == ["input x"]


@pytest.mark.parametrize("size", [2_000, 100_000])
@pytest.mark.parametrize("seed", range(4))
def test_a_birth_among_many_carried_elements_is_found(size, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(1, 2, size).astype(np.float32)
    x[rng.permutation(size)[: size // 2]] = np.nan
    at = int(rng.integers(size))
    x[at] = 0
    text = "graph main(x: f32[N]) -> f32[N] {\n  q = div(x, x)\n  y = neg(q)\n  return y\n}\n"
    found = hunted(text, {"x": x})
    (birth,) = [f for f in found.findings if f.op]
    assert (birth.op, birth.verdict.own, birth.verdict.count) == (
        "div", 1, 1 + int(np.isnan(x).sum()),
    )  # fmt: skip
    assert birth.verdict.elements[0].place == (at,)


def test_all_births_are_counted_and_samples_say_that_they_are():
    x = np.linspace(-1, 1, 4096, dtype=np.float32)
    x[-1029:] = 0
    text = "graph main(x: f32[N]) -> f32[N] {\n  q = log(x)\n  return q\n}\n"
    found = hunted(text, {"x": x})
    assert found.first.verdict.own == int((x <= 0).sum())
    assert f"{found.first.verdict.own:,} of 4,096 elements of q were born here: of 128" in str(
        found
    )


def test_of_an_op_s_births_those_are_told_that_come_out():
    text = """graph main(x: f32[3]) -> f32[1] {
  l = log(x)
  y = slice(l, starts=[2], ends=[3])
  return y
}
"""
    found = hunted(text, {"x": f(-1, -2, 0)})
    assert (found.first.bad, found.first.verdict.elements[0].place) == ("inf", (2,))
    assert found.first.verdict.rules[0][0] == "log of 0"
    assert "3 of 3 elements of l were born here, 1 of them comes out" in str(found)


def test_a_headline_is_of_one_kind():
    text = "graph main(x: f32[3], c: f32[3]) -> f32[3] {\n  y = div(x, c)\n  return y\n}\n"
    found = hunted(text, {"x": f(1, 1, 0), "c": f(0, 0, 0)})
    assert (found.first.bad, found.first.verdict.rules[0]) == ("nan", ("0 / 0", 1))
    assert "NaN born in div y at main, b.opg:2: 0 / 0\n" in str(found)


# --- what a masked NaN decides --------------------------------------------------------------------


@pytest.mark.parametrize(
    "op", ["k = argmax(l)", "k = greater(l, 0.0)", "t, k = top_k(l, k=1, axis=0)"]
)
def test_what_a_masked_nan_decides_is_told(op):
    kind = "bool[3]" if "greater" in op else "i64[1]" if "top_k" in op else "i64[]"
    text = f"graph main(x: f32[3]) -> {kind} {{\n  l = log(x)\n  {op}\n  return k\n}}\n"
    found = hunted(text, {"x": f(-1, 1, 2)})
    assert not found.found
    assert [d.value for d in found.masked[0].decided] == ["k"]
    assert "it decides" in str(found)
    assert "no output shows it" not in str(found)


def test_a_test_for_nan_decides_nothing():
    text = """graph main(x: f32[3]) -> f32[3] {
  l = log(x)
  n = isnan(l)
  y = where(n, 0.0, l)
  return y
}
"""
    found = hunted(text, {"x": f(-1, 1, 2)})
    assert (found.found, found.masked[0].decided) == (False, ())
    assert "no output shows it, masked by isnan (b.opg:3), where (b.opg:4)" in str(found)


def test_a_failed_assert_is_told_and_its_nan_is_the_origin():
    text = """graph main(x: f32[2]) -> f32[2] {
  l = log(x)
  s = sum(l)
  fine = less(s, 100.0)
  assert fine, "too large"
  y = neg(x)
  return y
}
"""
    found = hunted(text, {"x": f(-1, 1)})
    assert (found.first.op, found.first.decided[0].op) == ("log", "less")
    assert "then assert failed: too large (b.opg:5)" in str(found)


# --- infinities that are meant --------------------------------------------------------------------

SCALED = "graph main(x: f32[2]) -> f32[2] {\n  y = mul(x, inf)\n  return y\n}\n"


def test_infinities_may_be_wanted():
    assert not hunted(SCALED, {"x": f(1, 2)}, wanted=["y"]).found
    computed = "graph main(x: f32[2]) -> f32[2] {\n  l = log(x)\n  y = neg(l)\n  return y\n}\n"
    assert not hunted(computed, {"x": f(0, 2)}, wanted=["main.l"]).found
    assert hunted(computed, {"x": f(-1, 2)}, wanted=["main.l"]).first.bad == "nan"
    with pytest.raises(opstep.OpstepError, match="no value is called ll"):
        hunted(computed, {"x": f(0, 2)}, wanted=["ll"])


def test_only_what_is_hunted_counts():
    text = "graph main(x: f32[2]) -> f32[2] {\n  l = log(x)\n  return l\n}\n"
    assert not hunted(text, {"x": f(-1, 0)}, kinds="index", steps=2).found
    assert hunted(text, {"x": f(-1, 0)}, kinds="inf").first.bad == "inf"
    assert not hunted(text, {"x": f(-1, 1)}, kinds="inf", steps=2).found


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_other_floats(dtype):
    text = f"""graph main(x: {dtype}[2, 4]) -> {dtype}[4], {dtype}[1, 2] {{
  b = log(x)
  s = softmax(b)
  y = select(s, axis=0, index=1)
  n, which = top_k(b, k=2, axis=1)
  z = slice(n, starts=[1], ends=[2])
  return y, z
}}
"""
    x = np.array([[-1, 2, 3, 4], [1, 2, -3, 4]])
    found = hunted(text, {"x": x.astype(DTYPES[dtype].numpy)})
    assert found.first.verdict.elements[0].place == (1, 2)
    assert (found.first.verdict.own, found.first.verdict.arrived) == (2, 1)


def test_a_state_may_keep_the_infinity_that_it_began_with():
    text = """state best: f32[3] = inf
graph main(x: f32[3], new: bool[3]) -> f32[3] {
  lower = minimum(best, x)
  kept = where(new, lower, best)
  best <- kept
  y = neg(x)
  return y
}
"""
    new = np.array([True, False, True])
    assert not hunted(text, {"x": f(1, 2, 3), "new": new}, steps=3).found
    found = hunted(text, {"x": f(1, 2, np.inf), "new": new}, steps=3)
    assert (found.found, "what is written or given (input x)" in str(found)) == (False, True)


def test_what_is_masked_may_be_an_alarm():
    text = """graph main(x: f32[2], ok: bool[2]) -> f32[2] {
  l = log(x)
  y = where(ok, l, 0.0)
  return y
}
"""
    x = {"x": f(-1, 1), "ok": np.array([False, True])}
    assert not hunted(text, x).found
    found = hunted(text, x, masked=True)
    assert (found.found, found.first.kind, found.only_masked) == (True, "masked", [])


# --- places ---------------------------------------------------------------------------------------


def test_a_loop_of_500_bad_turns_is_told_in_40_lines():
    text = """graph main(x: f32[4], n: i32[]) -> f32[4] {
  y, k = while(x, n, test=on, body=turn)
  return y
}
graph on(x: f32[4], k: i32[]) -> bool[] {
  c = less(k, 500)
  return c
}
graph turn(x: f32[4], k: i32[]) -> f32[4], i32[] {
  a = normed(x)
  l = log(-1.0)
  m = acos(-3.0)
  z = add(l, m)
  d = add(a, z)
  next = add(k, 1)
  return d, next
}
graph normed(x: f32[4]) -> f32[4] {
  r = sqrt(-4.0)
  y = add(x, r)
  return y
}
"""
    found = hunted(text, {"x": f(1, 2, 3, 4), "n": np.int32(0)})
    assert [(f.op, f.times, f.last) for f in found.findings] == [
        ("sqrt", 500, "normed"), ("log", 500, "turn [i=499]"), ("acos", 500, "turn [i=499]"),
    ]  # fmt: skip
    assert found.first.where.calls == "main → turn [i=0] at b.opg:2 → normed at b.opg:10"
    assert [line for _, line in found.first.where.through] == [10, 2]
    assert len(str(found).splitlines()) <= 40


BACKWARD = {
    "sqrt": ("sqrt({x})", 0.0, 1),
    "norm": ("norm({x}, axes=[0])", 0.0, 1),
    "log": ("log({x})", 0.0, 1),
    "pow": ("pow({x}, 0.5)", 0.0, 1),
    "rsqrt": ("rsqrt({x})", 0.0, 1),
    "div": ("div(1.0, {x})", 0.0, 1),
    "std": ("std({x}, axes=[0])", 2.0, 1),
    "acos": ("acos({x})", 1.0, 1),
    "atanh": ("atanh({x})", 1.0, 1),
}


@pytest.mark.parametrize("op", BACKWARD)
def test_backward_ops_name_the_forward_line(op):
    call, value, _ = BACKWARD[op]
    text = f"""graph main(x: f32[2]) -> f32[] {{
  h = mul(x, 1.0)
  d = {call.format(x="h")}
  c = clip(d, low=-9.0, high=9.0)
  s = sum(c)
  return s
}}
"""
    if op in ("norm", "std"):
        text = text.replace("s = sum(c)", "s = neg(c)")
    program = opstep.loads(text, "net.opg").with_grad("main", ["x"])
    found = hunt(program, "main_grad", {"x": f(value, value)}, masked=True)
    told = [f.where for f in found.findings if f.where is not None]
    assert told, found.report()
    assert {(w.path, w.line) for w in told} <= {("net.opg", 3), ("net.opg", 2)}
    backward = [w for w in told if w.backward == f"d = {call.format(x='h')}"]
    if backward:
        assert f"in the backward of `{backward[0].backward}`, net.opg:3" in str(found)
    else:
        assert (told[0].line, told[0].text.partition(" = ")[0]) == (3, "d")


# --- inputs that change ---------------------------------------------------------------------------


def test_batches_are_hunted_one_a_step():
    text = "state n: f32[] = 0.0\ngraph main(x: f32[N]) -> f32[N] {\n  y = log(x)\n"
    text += "  t = add(n, 1.0)\n  n <- t\n  return y\n}\n"
    batches = [{"x": f(1, 2)}, {"x": f(1, 2, 3)}, {"x": f(4, -1, 2)}, {"x": f(1, 2)}]
    program = opstep.loads(text)
    found = hunt(program, "main", iter(batches))
    assert (found.step, found.first.verdict.elements[0].place) == (2, (1,))
    assert found.inputs["x"].tolist() == [4, -1, 2]
    assert float(program.params["n"]) == 2
    assert hunt(opstep.loads(text), "main", batches[:2]).steps == 2
    with pytest.raises(opstep.OpstepError, match="at its end"):
        hunt(program, "main", iter([]))
    with pytest.raises(opstep.OpstepError, match="iterable"):
        hunt(program, "main", 3)


# --- other kinds ----------------------------------------------------------------------------------

ALL = "nan,inf,overflow,underflow,index"


@pytest.mark.parametrize(
    "body, inputs, first, rule",
    [
        ("m = mul(n, n)\n  f = cast(m, dtype=f32)\n  y = sqrt(f)", {"n": np.int32(50000)},
         "m", "i32 wraps"),
        ("m = sum(n)\n  f = cast(m, dtype=f32)\n  y = sqrt(f)", {"n": np.int64([2**63 - 1, 2])},
         "m", "i64 wraps"),
        ("m = floor_div(n, 0)\n  f = cast(m, dtype=f32)\n  y = reciprocal(f)", {"n": np.int32(5)},
         "m", "integer division by 0"),
        ("s = square(x)\n  y = div(x, s)", {"x": np.float16([1e-5, 1])},
         "s", "underflow of f16 to 0"),
        ("s = cast(x, dtype=f16)\n  y = div(1.0, s)", {"x": f(1e-9, 1)},
         "s", "underflow of f16 to 0"),
        ("j = gather(i, i)\n  y = gather(x, j)", {"x": f(1, 2), "i": np.int64([0, 7])},
         "j", "an index that does not exist"),
        ("s = scatter(x, i, x)\n  y = neg(s)", {"x": f(1, 2), "i": np.int64([0, 2])},
         "s", "an index that does not exist"),
        ("o = one_hot(i, classes=3, dtype=f32)\n  y = neg(o)", {"i": np.int64([0, 3])},
         "o", "an index that does not exist"),
        ("n = gather_nd(x, i)\n  y = neg(n)", {"x": f(1, 2), "i": np.int64([[0], [-3]])},
         "n", "an index that does not exist"),
    ],
)  # fmt: skip
def test_the_cause_is_found_where_no_nan_tells_of_it(body, inputs, first, rule):
    names = {"float16": "f16", "float32": "f32", "int32": "i32", "int64": "i64"}
    given = ", ".join(f"{n}: {names[v.dtype.name]}{list(v.shape)}" for n, v in inputs.items())
    for result in ("f32[]", "f32[2]", "f16[2]", "f32[2, 3]"):
        text = f"graph main({given}) -> {result} {{\n  {body}\n  return y\n}}\n"
        try:
            program = opstep.loads(text)
            break
        except opstep.OpstepError:
            continue
    found = hunt(program, "main", inputs, kinds=ALL)
    assert (found.first.value, found.first.verdict.rules[0][0]) == (first, rule)
    assert rule in str(found)
    assert "nothing" not in str(found)


def test_expressions_over_statistics_are_hunted():
    text = "state s: f32[] = 1.0\ngraph main(x: f32[2]) -> f32[2] {\n  y = mul(x, s)\n"
    text += "  t = mul(s, 10.0)\n  s <- t\n  return y\n}\n"
    found = hunted(text, {"x": f(1, -2)}, kinds=["nan", "absmax > 1e4"], steps=9)
    assert (found.step, found.first.value) == (4, "y")
    assert "absmax > 1e4: absmax is 20000" in str(found)
    quiet = hunted(text, {"x": f(1, -2)}, kinds="std > 1e9 and mean < 0", steps=3)
    assert "nothing found of std > 1e9 and mean < 0" in str(quiet)
    for wrong in ("nam", "absmax >", "median > 3", ""):
        with pytest.raises(opstep.OpstepError):
            hunted(text, {"x": f(1, -2)}, kinds=wrong)


# --- elements never written -----------------------------------------------------------------------


def adds(x, y, size, lo, hi):
    for i in range(lo, hi):
        y[i] += x[i]


def staged(x, y, room, size, lo, hi):
    for i in range(lo, hi):
        if i % 2 == 0:
            room[i] = x[i]
    for i in range(lo, hi):
        y[i] = room[i]


def positive(x, y, size, lo, hi):
    for i in range(lo, hi):
        if x[i] > 0:
            y[i] = x[i]


BROKEN = "graph main(x: {t}[4]) -> {t}[4] {{\n  y = abs(x)\n  return y\n}}\n"


@pytest.mark.parametrize("dtype", ["f32", "f16", "i32"])
@pytest.mark.parametrize("kernel, first", [(adds, (0,)), (staged, (1,)), (positive, (2,))])
def test_elements_that_nobody_wrote(monkeypatch, dtype, kernel, first):
    def cpu(x, y):
        room = (Scratch(x.dtype if dtype == "i32" else f32, x.size),) if kernel is staged else ()
        return Launch(kernel, x, y, *room, x.size, units=x.size)

    break_with(monkeypatch, "abs", cpu)
    kind = {"f32": np.float32, "f16": np.float16, "i32": np.int32}[dtype]
    x = {"x": np.array([1, 2, -3, 4]).astype(kind)}
    program = opstep.loads(BROKEN.format(t=dtype))
    found = hunt(program, "main", x)
    assert (found.first.kind, found.first.unwritten.first[0]) == ("uninitialised", first)
    run = program.run("main", x, mode="debug")
    assert run.unwritten[0].first[0] == first


@pytest.mark.parametrize("mode", ["async", "debug"])
def test_partial_writes_in_a_branch_that_is_taken_later(monkeypatch, mode):
    break_with(monkeypatch, "identity", lambda x, y: Launch(positive, x, y, x.size, units=x.size))
    text = """state n: i32[] = 0
graph main(x: f32[4]) -> f32[4] {
  late = greater(n, 2)
  y = cond(late, x, then=rare, else=often)
  next = add(n, 1)
  n <- next
  return y
}
graph rare(x: f32[4]) -> f32[4] {
  y = identity(x)
  return y
}
graph often(x: f32[4]) -> f32[4] {
  y = neg(x)
  return y
}
"""
    for _ in range(2):  # contexts of an earlier hunt know the branch
        found = hunted(text, {"x": f(1, 2, -3, 4)}, steps=6, mode=mode)
        assert (found.step, found.first.kind, found.first.value) == (3, "uninitialised", "y")


# --- plans that were changed ----------------------------------------------------------------------

TWO = "graph main(x: f32[8]) -> f32[8] {\n  y = exp(x)\n  z = neg(y)\n  s = sqrt(y)\n"
TWO += "  out = sub(s, z)\n  return out\n}\n"


def test_a_changed_plan_is_run_and_hunted():
    program, x = opstep.loads(TWO), {"x": np.ones(8, np.float32)}
    plan = program.plan("main", policy=opstep.policy())
    buffers = list(plan.buffers)
    y, z = (plan.values[s.results[0]].buffer for s in plan.steps[:2])
    buffers[z] = buffers[z]._replace(offset=buffers[y].offset)
    damaged = dataclasses.replace(plan, buffers=buffers)
    sound = program.run("main", x).outputs[0]
    assert program.run("main", x, plan=plan).outputs[0].tobytes() == sound.tobytes()
    assert np.isnan(program.run("main", x, plan=damaged).outputs[0]).all()
    assert program.run("main", x).outputs[0].tobytes() == sound.tobytes()
    found = hunt(program, "main", x, plan=damaged)
    assert found.unrepeated
    assert "the plan has hazards" in str(found)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p: {"instructions": [*p.instructions, Wait(9, 0)]}, "beyond"),
        (lambda p: {"instructions": [Wait(0, 0), *p.instructions], "events": 1}, "never recorded"),
        (lambda p: {"instructions": [*p.instructions, Record(0, 5)], "events": 1}, "beyond"),
        (lambda p: {"arena": 8}, "the arena has 8"),
        (lambda p: {"graph": "other"}, "the plan is one of other"),
    ],
)
def test_a_plan_that_could_not_end_is_refused(change, message):
    program = opstep.loads(TWO)
    plan = program.plan("main", policy=opstep.policy())
    wrong = dataclasses.replace(plan, **change(plan))
    with pytest.raises(opstep.OpstepError, match=message):
        program.run("main", {"x": np.ones(8, np.float32)}, plan=wrong)
