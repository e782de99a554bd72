"""Programs run through the Python API: values, control flow, updates, contexts, listeners."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import nullcontext

import numpy as np
import pytest
from interrupting import signalled
from mixes import LOOP, MIXES, in_every_mix

import opstep
from opstep.runtime.device.launch import Launch
from opstep.runtime.device.store import Store
from opstep.runtime.ir.op import OPS

F32 = np.float32


def test_outputs_by_position_and_by_name():
    result, _ = in_every_mix(
        "graph g(a: f32[N], b: f32[N]) -> f32[N], f32[N] {\n"
        "  s = add(a, b)\n  p = mul(a, b)\n  return s, p\n}\n",
        inputs={"a": np.array([1, 2], F32), "b": np.array([3, 4], F32)},
    )
    assert result["s"].tolist() == [4, 6]
    assert result.outputs[1].tolist() == [3, 8]
    assert list(result) == ["s", "p"]
    with pytest.raises(KeyError, match=r"no output q; there are: s, p"):
        result["q"]


def test_a_graph_may_return_its_inputs_its_params_and_one_value_twice():
    result, _ = in_every_mix(
        "param p: f32[2] = full(value=7.0)\n"
        "graph g(a: f32[2]) -> f32[2], f32[2], f32[2], f32[2] {\n"
        "  b = neg(a)\n  return a, p, b, b\n}\n",
        inputs={"a": [1.0, 2.0]},
    )
    assert [o.tolist() for o in result.outputs] == [[1, 2], [7, 7], [-1, -2], [-1, -2]]


def test_numbers_and_lists_take_the_declared_dtype_and_arrays_must_have_it():
    program = opstep.loads(
        "graph g(a: f32[2], k: i32[]) -> f32[2] {\n  y = mul(a, k)\n  return y\n}\n"
    )
    assert program.run(inputs={"a": [1, 2], "k": 3})["y"].tolist() == [3, 6]
    with pytest.raises(opstep.OpstepError, match="input a has elements of type f64, not f32"):
        program.run(inputs={"a": np.zeros(2), "k": 3})
    with pytest.raises(opstep.OpstepError, match="input k"):
        program.run(inputs={"a": [1, 2], "k": 3.5})


def test_arrays_of_other_libraries_come_in_and_results_go_out():
    torch = pytest.importorskip("torch")
    program = opstep.loads("graph g(a: f32[N]) -> f32[N] {\n  y = add(a, 1.0)\n  return y\n}\n")
    y = program.run(inputs={"a": torch.arange(3.0)})["y"]
    assert torch.from_dlpack(y).tolist() == [1, 2, 3]

    class OnlyDlpack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    given = OnlyDlpack(np.array([5.0], F32))
    assert program.run(inputs={"a": given})["y"].tolist() == [6]


def test_updates_take_effect_when_their_graph_ends():
    text = """
state s: i32[] = 10
graph bump(x: i32[]) -> i32[] {
  old = add(s, 0)
  new = add(s, x)
  s <- new
  seen = add(s, 0)
  y = add(old, seen)
  return y
}
graph main() -> i32[], i32[], i32[] {
  before = add(s, 0)
  a = bump(1)
  between = add(s, 0)
  b = bump(5)
  return before, between, b
}
"""
    one = opstep.loads(text.replace("bump(1)", "bump(before)").replace("bump(5)", "bump(between)"))
    result = one.run("main")
    assert [int(o) for o in result.outputs] == [10, 20, 40]
    assert int(one.params["s"]) == 40


def test_state_is_carried_over_steps():
    text = (
        "state n: i32[] = 0\nstate sum: f32[3] = zeros()\n"
        "graph g(x: f32[3]) -> f32[3] {\n"
        "  next = add(n, 1)\n  n <- next\n  t = add(sum, x)\n  sum <- t\n  return t\n}\n"
    )
    result, tensors = in_every_mix(text, inputs={"x": [1.0, 2.0, 3.0]}, steps=5)
    assert result["t"].tolist() == [5, 10, 15]
    assert int(tensors["n"]) == 5


FAILING = """
state w: f32[] = 1.0
graph g(x: f32[]) -> f32[] {
  fine = less(x, 100.0)
  assert fine, "x exploded"
  d = mul(w, 2.0)
  w <- d
  return d
}
"""


@pytest.mark.parametrize("mix", MIXES)
def test_a_failed_assert_takes_back_what_a_called_graph_updated(mix):
    program = opstep.loads("""state early: i32[] = 0
state late: i32[] = 0
graph main(bad: bool[]) -> i32[] {
  count()
  more = add(late, 1)
  late <- more
  fine = logical_not(bad)
  assert fine, "no"
  return more
}
graph count() {
  more = add(early, 1)
  early <- more
}
""")
    for bad in (False, True, False):
        with pytest.raises(opstep.OpstepError) if bad else nullcontext():
            program.run("main", {"bad": bad}, **mix)
    assert (int(program.params["early"]), int(program.params["late"])) == (2, 2)


@pytest.mark.parametrize("mix", MIXES)
def test_a_failed_assert_points_at_its_line_and_leaves_named_tensors_alone(mix):
    program = opstep.loads(FAILING, "model.opg")
    program.run(inputs={"x": 1.0}, **mix)
    with pytest.raises(
        opstep.OpstepError, match=r"model.opg:5:10: error: assert failed: x exploded"
    ):
        program.run(inputs={"x": 200.0}, **mix)
    assert float(program.params["w"]) == 2.0
    program.run(inputs={"x": 1.0}, **mix)
    assert float(program.params["w"]) == 4.0


BRANCHES = """
state s: i32[] = 0
graph double(x: f32[N]) -> f32[N] {
  y = mul(x, 2.0)
  n = add(s, 1)
  s <- n
  return y
}
graph same(x: f32[N]) -> f32[N] {
  return x
}
graph main(x: f32[N], p: bool[], k: i32[]) -> f32[N], f32[N], i32[] {
  a = cond(p, x, then=double, else=same)
  b = switch(k, a, cases=[same, double, double])
  after = add(s, 0)
  return a, b, after
}
"""


def test_cond_and_switch_choose_and_their_updates_are_seen_after_them():
    for p, k, expected in [(True, 0, (2, 2, 1)), (False, 1, (1, 2, 1)), (True, 2, (2, 4, 2))]:
        result, _ = in_every_mix(BRANCHES, "main", {"x": [1.0], "p": p, "k": k})
        assert tuple(float(o.reshape(-1)[0]) for o in result.outputs) == expected


def test_a_switch_beyond_its_cases_is_an_error():
    program = opstep.loads(BRANCHES, "b.opg")
    for k in (3, -1):
        with pytest.raises(opstep.OpstepError, match=rf"b.opg:14:7: error: index {k} is none of"):
            program.run("main", {"x": [1.0], "p": True, "k": k})


RECURSIVE = """
graph base(n: i32[], acc: i32[]) -> i32[] {
  return acc
}
graph more(n: i32[], acc: i32[]) -> i32[] {
  m = sub(n, 1)
  a = mul(acc, n)
  r = factorial(m, a)
  return r
}
graph factorial(n: i32[], acc: i32[]) -> i32[] {
  go = greater(n, 1)
  r = cond(go, n, acc, then=more, else=base)
  return r
}
"""


def test_recursion_through_cond_ends_at_its_base():
    for n, expected in [(1, 1), (5, 120), (10, 3628800)]:
        result, _ = in_every_mix(RECURSIVE, "factorial", {"n": n, "acc": 1})
        assert int(result["r"]) == expected


def test_recursion_without_an_end_is_an_error_not_a_crash():
    text = RECURSIVE.replace("go = greater(n, 1)", "go = less(n, 1000000)")
    program = opstep.loads(text)
    with pytest.raises(opstep.OpstepError, match="calls are nested more than"):
        program.run("factorial", {"n": 5, "acc": 1})


def test_contexts_share_params_and_runs_from_threads_do_not_mix():
    program = opstep.loads(
        "param w: f32[64, 64] = normal(std=0.1)\n"
        "graph g(x: f32[8, 64]) -> f32[8, 64] {\n"
        "  a = matmul(x, w)\n  b = tanh(a)\n  c = matmul(b, w)\n  return c\n}\n"
    )
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((8, 64)).astype(F32) for _ in range(6)]
    expected = [program.run(inputs={"x": x})["c"] for x in inputs]
    wrong = []

    def work(k):
        for _ in range(20):
            if not np.array_equal(program.run(inputs={"x": inputs[k]})["c"], expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong

    async def together():
        runs = (program.run_async(inputs={"x": x}) for x in inputs)
        return await asyncio.gather(*runs)

    for result, y in zip(asyncio.run(together()), expected, strict=True):
        np.testing.assert_array_equal(result["c"], y)


def test_the_event_loop_is_free_while_the_device_works():
    program = opstep.loads(
        "graph g(x: f32[512, 512]) -> f32[512, 512] {\n"
        + "".join(f"  y{k + 1} = matmul({f'y{k}' if k else 'x'}, x)\n" for k in range(40))
        + "  return y40\n}\n"
    )
    x = np.zeros((512, 512), F32)
    program.run(inputs={"x": x})

    async def main():
        ticks = 0
        run = asyncio.create_task(program.run_async(inputs={"x": x}, threads=1))
        while not run.done():
            ticks += 1
            await asyncio.sleep(0.001)
        await run
        return ticks

    assert asyncio.run(main()) > 3


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_other_tasks_have_a_turn_in_each_step_of_a_debug_run(device):
    program = opstep.loads("graph g(x: f32[]) -> f32[] {\n  y = neg(x)\n  return y\n}")
    turns, steps = 0, 20

    async def main():
        nonlocal turns
        options = {"device": device, "mode": "debug", "steps": steps}
        run = asyncio.create_task(program.run_async(inputs={"x": 1.0}, **options))
        while not run.done():
            turns += 1
            await asyncio.sleep(0)
        await run

    asyncio.run(main())
    assert turns >= steps


def test_listeners_are_told_of_each_op_in_order_with_its_values():
    seen = []

    class Spy:
        def before(self, execution):
            seen.append(("before", execution.step.op.name, execution.operands()[0].tolist()))

        def after(self, execution):
            seen.append(("after", execution.step.op.name, execution.results()[0].tolist()))

    program = opstep.loads(
        "graph g(x: f32[]) -> f32[] {\n  a = add(x, 1.0)\n  b = neg(a)\n  return b\n}"
    )
    program.run(inputs={"x": 2.0}, mode="debug", listeners=[Spy()])
    assert seen == [
        ("before", "add", 2),
        ("after", "add", 3),
        ("before", "neg", 3),
        ("after", "neg", -3),
    ]


def all_but_some(x, y, size, lo, hi):
    for i in range(lo, hi):
        if i != 0 and i != size - 1:
            y[i] = x[i]


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u8", "bool"])
def test_elements_never_written_are_found_by_op_and_index(monkeypatch, dtype):
    def cpu(x, y):
        return Launch(all_but_some, x, y, x.size, units=x.size)

    program = opstep.loads(
        f"graph g(x: {dtype}[3, 4]) -> {dtype}[3, 4] {{\n"
        "  fine = identity(x)\n  bad = identity(fine)\n  return bad\n}\n"
    )
    x = np.ones((3, 4), program.graph().inputs[0].type.dtype.numpy)
    assert not program.run(inputs={"x": x}, mode="debug").unwritten
    monkeypatch.setattr(OPS["identity"], "cpu", staticmethod(cpu))
    program = opstep.loads(program["g"].__repr__())
    found = program.run(inputs={"x": x}, mode="debug").unwritten
    assert [u.value for u in found] == ["fine", "bad"]
    assert all(u.count == 2 and u.first == [(0, 0), (2, 3)] for u in found[:1])


def test_what_an_op_writes_over_its_operand_is_not_taken_for_unwritten():
    """The payload of bools is true, that of integers the largest one: values that ops do give."""
    in_every_mix(
        "state s: bool[3] = true\n"
        "graph g(x: bool[3], n: u8[2]) -> bool[3], u8[2] {\n"
        "  a = logical_not(x)\n  b = bitwise_not(a)\n  c = identity(b)\n"
        "  d = bitwise_and(c, x)\n  m = identity(n)\n  k = relu(m)\n  l = identity(k)\n"
        "  s <- d\n  return d, l\n}\n",
        inputs={"x": [True, True, False], "n": [255, 0]},
    )


def test_an_interrupt_stops_a_run_and_the_program_can_run_again():
    endless = LOOP.replace("mul(x, 0.5)", "mul(x, 1.0)")
    program = opstep.loads(endless.replace("body=halve", "body=halve, limit=1000000000"))
    program.run("main", {"x": np.array([0.5], F32)}, streams=2)  # all is compiled
    with pytest.raises(KeyboardInterrupt), signalled(signal.SIGINT, 0.2):
        program.run("main", {"x": np.array([5], F32)}, streams=2)
    assert int(program.run("main", {"x": np.array([0.5], F32)})["turns"]) == 0


def test_params_are_drawn_by_seed_and_can_be_set():
    text = "param w: f32[100] = normal()\nparam b: f32[2]\ngraph g() -> f32[100] {\n  return w\n}\n"
    first, same, other = (opstep.loads(text) for _ in range(3))
    a, b, c = first.run(seed=1)["w"], same.run(seed=1)["w"], other.run(seed=2)["w"]
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    with pytest.raises(opstep.OpstepError, match=r"param b: f32\[2\] has no value"):
        first.params["b"]
    first.params["b"] = [1, 2]
    assert first.params["b"].tolist() == [1, 2]
    with pytest.raises(opstep.OpstepError, match=r"param b is f32\[2\], not f32\[3\]"):
        first.params["b"] = [1, 2, 3]
    with pytest.raises(opstep.OpstepError, match=r"no param or state d"):
        first.params["d"] = 1
    assert "b" in first.params
    assert "d" not in first.params
    assert first.params.get("d") is None
    first.params["w"] = np.zeros(100, F32)
    assert not first.run(seed=5)["w"].any()


def test_a_graph_shows_its_types_in_a_notebook():
    program = opstep.loads(LOOP)
    page = program["main"]._repr_html_()
    assert "f32[N], i32[]" in page
    assert "<script" not in page


def test_the_null_device_runs_everything_and_computes_nothing():
    program = opstep.loads(LOOP)
    assert program.run("main", {"x": np.array([5], F32)}, device="null").names == ["z", "turns"]


def test_a_size_for_which_a_shape_comes_out_otherwise_is_an_error():
    text = "graph g(x: f32[N]) -> f32[3] {\n  y = slice(x, starts=[0], ends=[3])\n  return y\n}\n"
    program = opstep.loads(text, "cut.opg")
    assert program.run(inputs={"x": np.ones(5, F32)})["y"].shape == (3,)
    with pytest.raises(
        opstep.OpstepError, match=r"cut.opg:2:7: .*f32\[2\] where N = 2, not f32\[3\]"
    ):
        program.run(inputs={"x": np.ones(2, F32)})


def test_numbers_that_are_equal_and_yet_differ_are_not_mixed_up():
    program = opstep.loads(
        "graph g() -> f32[1], f32[1] {\n"
        "  a = full(shape=[1], value=0.0)\n  b = full(shape=[1], value=-0.0)\n  return a, b\n}\n"
    )
    assert [bool(np.signbit(o[0])) for o in program.run().outputs] == [False, True]


# --- named tensors that another device has --------------------------------------------------------


def test_a_value_read_between_two_steps_of_another_device_is_not_kept():
    """`elsewhere` has memory of its own, as a GPU has; what a run does there is written here."""
    program = opstep.loads(
        "state n: i64[] = 0\ngraph main() {\n  more = add(n, 1)\n  n <- more\n}\n"
    )
    plan = program.plan("main", ())
    elsewhere = Store(program.on("cpu"), {"n": program.module.tensors["n"].type})
    program._stores["elsewhere"] = elsewhere
    program.params.bring(plan, "elsewhere")
    read = []
    for step in range(3):
        elsewhere.write("n", np.array(step + 1))
        program.params.outdate(plan, "elsewhere")
        read.append(int(program.params["n"]))
    assert read == [1, 2, 3]


def test_a_size_beyond_what_a_table_has_is_told_with_the_largest():
    program = opstep.loads(
        "param places: f32[256, 4] = zeros()\n\n"
        "graph main(x: f32[B, L, 4]) -> f32[B, L, 4] {\n"
        "  place = slice(places, starts=[0], ends=[L])\n  y = add(x, place)\n  return y\n}\n"
    )
    wanted = r"slice gives f32\[256, 4\] where L = 300, not f32\[300, 4\]"
    with pytest.raises(opstep.OpstepError, match=wanted) as raised:
        program.run("main", {"x": np.zeros((2, 300, 4), np.float32)})
    assert "L may be at most 256" in str(raised.value)
