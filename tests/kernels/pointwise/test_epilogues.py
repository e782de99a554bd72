"""Ops behind a product or a convolution, in the same kernel: the same bits as one after the other.

The kernels that do it are those for halves of a GPU; here the simulator runs them.
"""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering
from opstep.runtime.plan import fusing
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.plan import Plan
from opstep.runtime.plan.text import format_plan
from tests.kernels.pointwise.fused_programs import ProductWriter, check_joined, joined_plan


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    """Groups of any size are worth a kernel, and the architecture has the largest tiles."""
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    with targeting("sm_90"):
        yield


def names(plan: Plan) -> list[list[str]]:
    return [[m.op.name for m in s.members] or [s.op.name] for s in plan.steps]


@pytest.mark.parametrize("seed", range(12))
def test_same_bits_in_random_programs(seed):
    writer = ProductWriter(seed)
    check_joined(opstep.loads(writer.text()), writer.arrays())


BLOCK = """
graph main(
    x: bf16[2, 64, 6, 8], w: bf16[24, 64, 3, 3], s: bf16[24], b: bf16[24], m: bf16[24],
    v: bf16[24], r: bf16[2, 24, 6, 8],
) -> bf16[2, 24, 6, 8] {
  c = conv2d(x, w, padding=[1, 1])
  n = batch_norm(c, s, b, m, v)
  a = add(n, r)
  y = relu(a)
  return y
}
"""


def test_a_block_of_a_residual_network_is_one_kernel():
    plan = joined_plan(opstep.loads(BLOCK))
    assert names(plan) == [["conv2d", "batch_norm", "add", "relu"]]
    types = [None if v is None else plan.values[v].type for v in plan.steps[0].operands]
    results = [plan.values[v].type for v in plan.steps[0].results]
    launches, _ = Lowering(plan.steps[0], (*types, *results)).prepared()
    kernels = [launch.kernel.function.__name__ for launch in launches]
    assert kernels == ["channels_last", "arrange_filters", "convolve"]
    assert "fused(conv2d, batch_norm, add, relu)" in format_plan(plan)


SQUEEZED = """
graph main(x: bf16[3, 24, 1, 1], w: bf16[40, 24, 1, 1], b: bf16[40]) -> bf16[3, 40, 1, 1] {
  c = conv2d(x, w, b)
  y = sigmoid(c)
  return y
}
"""


def test_filters_of_whole_images_are_a_product():
    program, rng = opstep.loads(SQUEEZED), np.random.default_rng(0)
    plan = joined_plan(program)
    assert names(plan) == [["conv2d", "sigmoid"]]
    inputs = program.graphs["main"].inputs
    arrays = {
        b.name.text: rng.standard_normal(b.type.shape).astype(b.type.dtype.numpy) for b in inputs
    }
    check_joined(program, arrays)


WIDE = BLOCK.replace("24", "64")  # x and r have one shape


def test_a_result_that_the_group_reads_twice_stays_in_registers():
    text = WIDE.replace("y = relu(a)", "y = mul(a, c)")
    assert names(joined_plan(opstep.loads(text))) == [["conv2d", "batch_norm", "add", "mul"]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return y", "return c"),  # it is read after the run
        ("add(n, r)", "add(n, x)"),  # y might take the place of what other tiles still read
        ("bf16", "f32"),  # no kernel does it
    ],
)
def test_what_stays_several_steps(old, new):
    assert ["conv2d"] in names(joined_plan(opstep.loads(WIDE.replace(old, new))))


@pytest.mark.parametrize(
    "behind, joins",
    [
        ("relu(c)", True),
        ("clip(c, low=0.0, high=6.0)", True),
        ("silu(c)", False),
        ("add(c, c)", False),
    ],
)
def test_of_a_large_result_only_what_is_quick_joins(behind, joins):
    text = f"""
graph main(x: bf16[32, 64, 64, 64], w: bf16[64, 64, 3, 3]) -> bf16[32, 64, 64, 64] {{
  c = conv2d(x, w, padding=[1, 1])
  y = {behind}
  return y
}}
"""
    found = names(joined_plan(opstep.loads(text)))
    assert found == (
        [["conv2d", behind[: behind.index("(")]]]
        if joins
        else [["conv2d"], [behind[: behind.index("(")]]]
    )


def test_a_product_does_not_go_behind_an_update_of_its_weights():
    text = """
state w: bf16[64, 64] = ones()

graph main(x: bf16[8, 64]) -> bf16[8, 64] {
  p = linear(x, w)
  n = add(w, 1.0)
  w <- n
  y = relu(p)
  return y
}
"""
    program = opstep.loads(text)
    assert ["linear", "relu"] in names(joined_plan(program))
    assert not check(joined_plan(program))


def test_ops_that_are_better_alone_stay_alone():
    text = """
graph main(x: bf16[8, 64], w: bf16[16, 64]) -> bf16[8, 16] {
  p = linear(x, w)
  y = sin(p)
  return y
}
"""
    assert names(joined_plan(opstep.loads(text))) == [["linear"], ["sin"]]


def test_a_result_takes_over_the_memory_of_a_residual():
    lines = "".join(
        f"  p{k} = {call}\n  q{k} = linear({x}, v)\n  y{k} = add(p{k}, q{k})\n"
        for k in range(4)
        for x in [f"y{k - 1}" if k else "x"]
        for call in [f"matmul({x}, w)"]
    )
    text = f"""
graph main(x: bf16[64, 64], w: bf16[64, 64], v: bf16[64, 64]) -> bf16[64, 64] {{
{lines}  return y3
}}
"""
    plan = joined_plan(opstep.loads(text))
    assert not check(plan) and plan.arena == 2 * 64 * 64 * 2
