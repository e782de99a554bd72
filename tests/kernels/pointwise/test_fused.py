"""Elementwise ops in one launch: the same bits as one after the other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.util import find_spec

import numpy as np
import pytest

import opstep
from opstep.runtime.plan import fusing
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.listing import listing
from opstep.runtime.plan.text import format_plan, parse_plan
from tests.kernels.pointwise.fused_programs import Writer, array, outcome, simulated


@pytest.fixture(autouse=True)
def every_group(monkeypatch):
    """Groups of any size are worth a kernel."""
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)


def names(plan) -> list[list[str]]:
    return [[s.op.name for s in step.members] for step in plan.steps if step.members]


@pytest.mark.parametrize("seed", range(4))
def test_same_bits_in_random_programs(seed):
    writer = Writer(seed)
    text, arrays = writer.text(), writer.arrays()
    plan = opstep.loads(text).plan(fuse=True)
    assert not check(plan)
    assert parse_plan(format_plan(plan)) == listing(plan)
    alone = outcome(text, arrays, sync="op")
    assert outcome(text, arrays) == alone
    assert outcome(text, arrays, threads=2, streams=1) == alone


@pytest.mark.parametrize("seed", range(100, 104))
def test_same_bits_on_cuda_in_the_simulator(seed):
    writer = Writer(seed)
    program, arrays = opstep.loads(writer.text()), writer.arrays()
    rng = np.random.default_rng(seed)
    tensors = {n: array(rng, dtype, shape) for n, dtype, shape in writer.tensors}
    with np.errstate(all="ignore"):
        alone = simulated(program.plan(), arrays, tensors)
        assert simulated(program.plan(fuse=True), arrays, tensors) == alone


SIZE = 4096
PARAM = f"""
param w: f32[{SIZE}] = normal(std=0.1)

graph main(x: f32[{SIZE}]) -> f32[] {{
  y = mul(w, x)
  s = sum(y)
  return s
}}
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_optimizers_update_is_one_launch(optimizer):
    x = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    left = []
    for options in ({"sync": "op"}, {}):
        program = opstep.loads(PARAM).with_optimizer("main", optimizer, lr=1e-2)
        found = program.run("main_step", {"x": x}, steps=3, **options)
        left.append([a.tobytes() for a in (*found.outputs, *program.params.values())])
    assert left[0] == left[1]
    plan = program.plan("main_step", symbols={}, fuse=True)
    large = [s for s in plan.steps if any(plan.values[v].name == "w" for v in s.results)]
    assert len(large) == 1 and large[0].members
    assert plan.arena <= program.plan("main_step", symbols={}).arena
    assert [n for n in names(plan) if n.count("update") >= 1 and "sub" in n]


GUARDED = """
state a: f32[8] = ones()
state b: f32[8] = ones()

graph main(x: f32[8], good: bool[]) -> f32[8] {
  y = add(a, x)
  z = mul(y, 2.0)
  swapped = sub(b, a)
  assert good, "it is not good"
  a <- z
  b <- swapped
  return y
}
"""


def test_a_failed_assert_leaves_tensors_as_they_were():
    x = np.arange(8, dtype=np.float32)
    program = opstep.loads(GUARDED)
    steps = program.plan(fuse=True).steps
    assert sum("update" in [m.op.name for m in s.members] for s in steps) >= 1
    program.run(inputs={"x": x, "good": np.array(True)})
    before = [np.array(v) for v in program.params.values()]
    assert before[0].tolist() == ((1 + x) * 2).tolist() and not before[1].any()
    with pytest.raises(opstep.OpstepError, match="it is not good"):
        program.run(inputs={"x": x, "good": np.array(False)})
    for old, new in zip(before, program.params.values(), strict=True):
        np.testing.assert_array_equal(old, new)


CHAIN = """
graph main(x: f32[64, 64], b: f32[64]) -> f32[64], f32[64, 64] {
  biased = add(x, b)
  bent = relu(biased)
  total = sum(bent, axes=[0])
  twice = mul(bent, 2.0)
  less = sub(twice, 1.0)
  return total, less
}
"""


def test_what_others_read_has_memory_and_ends_a_group():
    plan = opstep.loads(CHAIN).plan(fuse=True)
    assert names(plan) == [["add", "relu"], ["mul", "sub"]]
    kept = {v.name for v in plan.values if v.buffer >= 0}
    assert {"bent", "total", "less"} <= kept and not {"biased", "twice"} & kept
    text = format_plan(plan)
    assert "bent = fused(add, relu)" in text and "lines 3, 4" in text


def test_groups_have_a_largest_size():
    lines = "".join(f"  v{k} = add(v{k - 1}, x)\n" for k in range(1, 100))
    text = f"graph main(x: f32[8]) -> f32[8] {{\n  v0 = neg(x)\n{lines}  return v99\n}}\n"
    plan = opstep.loads(text).plan(fuse=True)
    assert max(map(len, names(plan))) <= fusing.MOST_OPS
    x = np.ones(8, np.float32)
    assert opstep.loads(text).run(inputs={"x": x}).outputs[0].tolist() == [98.0] * 8


def test_small_groups_are_not_worth_a_kernel(monkeypatch):
    monkeypatch.undo()
    assert not names(opstep.loads(CHAIN).plan(fuse=True))
    large = opstep.loads(CHAIN.replace("64, 64", "4096, 64"))
    assert names(large.plan(fuse=True)) == [["add", "relu"], ["mul", "sub"]]


def test_groups_that_are_alike_share_a_kernel():
    heads = "".join(f"param w{k}: f32[{k + 8}] = ones()\n" for k in range(5))
    lines = "".join(f"  a{k} = mul(w{k}, 0.5)\n  b{k} = sub(a{k}, 1.0)\n" for k in range(5))
    lines += "".join(f"  w{k} <- b{k}\n" for k in range(5))
    text = f"{heads}graph main(x: f32[]) -> f32[] {{\n{lines}  return x\n}}\n"
    plan = opstep.loads(text).plan(fuse=True)
    kernels = {launch.kernel for s in plan.steps if s.members for launch in s.launches}
    assert names(plan) == [["mul", "sub", "update"]] * 5 and len(kernels) == 1


@pytest.mark.parametrize("options", [{"mode": "debug"}, {"sync": "op"}, {"alloc": "fresh"}])
def test_other_policies_run_each_op_alone(options):
    policy = opstep.policy(**options)
    assert not names(opstep.loads(CHAIN).plan(policy=policy, fuse=True))


def test_whoever_looks_sees_each_op(tmp_path):
    """Recordings and listeners."""
    from opstep.runtime.device.listening import Listener

    seen = []

    class Watcher(Listener):
        def before(self, execution):
            seen.append(execution.step.op.name)

    program = opstep.loads(CHAIN)
    arrays = {"x": np.ones((64, 64), np.float32), "b": np.ones(64, np.float32)}
    alone = program.run(inputs=arrays)
    watched = program.run(inputs=arrays, listeners=[Watcher()])
    assert seen == ["add", "relu", "sum", "mul", "sub"]
    with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
        recorded = program.run(inputs=arrays, recording=recording)
    for other in (watched, recorded):
        for a, b in zip(alone.outputs, other.outputs, strict=True):
            np.testing.assert_array_equal(a, b)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as workspace:
        written = "\n".join(workspace.iterdump())
    assert all(name in written for name in ("biased", "bent", "twice"))


@pytest.mark.skipif(find_spec("cuda") is None, reason="kernels for CUDA cannot be compiled here")
def test_a_product_and_a_sum_of_two_ops_stay_two_instructions():
    """A GPU's compiler would make one of them, which rounds once."""
    from opstep.runtime.device.cuda.compiling.compiler import to_ptx
    from opstep.runtime.device.cuda.lowering import Lowering

    text = """
graph main(a: f32[64, 64], b: f32[64]) -> f32[64, 64] {
  x = mul(a, b)
  y = add(x, a)
  z = square(y)
  w = sub(z, b)
  return w
}
"""
    plan = opstep.loads(text).plan(fuse=True)
    (step,) = plan.steps
    types = tuple(plan.values[v].type for v in (*step.operands, *step.results))
    ((launch,), _) = Lowering(step, types).prepared()
    ptx, _ = to_ptx(launch.kernel, "sm_80")
    assert "fma." not in ptx
    assert {"mul.rn.f32", "add.rn.f32", "sub.rn.f32"} <= set(ptx.split())


SWAPPED = """
state a: i32[4096]
state b: i32[4096]
graph main(x: i32[4096]) -> i32[4096] {
  c = neg(b)
  d = neg(c)
  e = neg(a)
  f = neg(e)
  y = neg(x)
  a <- d
  b <- f
  return y
}
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_updates_that_swap_tensors_read_both_before_they_write_any(threads):
    """Without arithmetic between, a compiler that takes the pointers for distinct copies one tensor
    over the other first.
    """
    program = opstep.loads(SWAPPED)
    assert any(n.count("update") == 2 for n in names(program.plan(fuse=True)))
    a, b = np.arange(4096, dtype=np.int32), np.arange(4096, dtype=np.int32)[::-1]
    program.params["a"], program.params["b"] = a, b
    program.run(inputs={"x": a}, threads=threads)
    np.testing.assert_array_equal(program.params["a"], b)
    np.testing.assert_array_equal(program.params["b"], a)
