"""Convolutions whose images have their channels last: the same bits as with channels first.

The kernels that do it are those for halves of a GPU; here the simulator runs them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cuda.compiling.compiler import to_ptx
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering
from opstep.runtime.plan import fusing
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.plan import Plan, Step
from tests.kernels.pointwise.fused_programs import NetworkWriter, check_joined, joined_plan


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    """Groups of any size are worth a kernel, and the architecture has the largest tiles."""
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    with targeting("sm_90"):
        yield


def launches(plan: Plan, step: Step) -> list[Any]:
    places = (*step.operands, *step.results)
    types = tuple(None if v is None else plan.values[v].type for v in places)
    return Lowering(step, types).prepared()[0]


def kernels(plan: Plan) -> list[list[str]]:
    """Of each step."""
    return [[g.kernel.function.__name__ for g in launches(plan, step)] for step in plan.steps]


def layouts(plan: Plan) -> list[tuple[bool, bool]]:
    """Of convolutions: whether their images and results have channels last."""
    attrs = [
        dict(s.attrs["epilogue"].attrs) if "epilogue" in s.attrs else s.attrs for s in plan.steps
    ]
    return [(a["layout"].x_last, a["layout"].y_last) for a in attrs if "layout" in a]


@pytest.mark.parametrize("seed", range(24))
def test_same_bits_in_random_networks(seed):
    writer = NetworkWriter(seed)
    check_joined(opstep.loads(writer.text()), writer.arrays())


OWN_FILTERS = """
graph main(
    x: bf16[32, 32, 3, 3], w: bf16[32, 32, 3, 3], w2: bf16[40, 32, 3, 3], w3: bf16[40, 40, 3, 3],
) -> bf16[32], bf16[32] {
  a = conv2d(x, w, padding=[1, 1])
  b = conv2d(a, a, padding=[1, 1])
  c = conv2d(b, w2, padding=[1, 1])
  d = conv2d(x, x, padding=[1, 1])
  e = conv2d(x, w2, padding=[1, 1])
  f = conv2d(e, w3, padding=[1, 1])
  g = mean(f, axes=[1, 2, 3], keepdims=false)
  h = mean(d, axes=[1, 2, 3], keepdims=false)
  i = mean(c, axes=[1, 2, 3], keepdims=false)
  y = add(g, h)
  return y, i
}
"""
LONG = """
graph main(
    x: f16[1, 32, 4, 4], w: f16[32, 32, 1, 1], w1: f16[32, 32, 16, 16], w2: f16[32, 32, 3, 3],
) -> f16[1, 32, 3, 3] {
  a = conv2d(x, w)
  b = conv2d(a, w1, padding=[7, 7])
  y = conv2d(b, w2, padding=[1, 1])
  return y
}
"""


@pytest.mark.parametrize("text", [OWN_FILTERS, LONG], ids=["own filters", "long filters"])
def test_same_bits_where_an_image_is_its_own_filter_or_other_kernels_run(text):
    program, rng = opstep.loads(text), np.random.default_rng(1)
    arrays = {
        b.name.text: (rng.standard_normal(shape) / shape[1] ** 0.5).astype(b.type.dtype.numpy)
        for b in program.graphs["main"].inputs
        for shape in [b.type.shape]
    }
    check_joined(program, arrays)


def test_random_networks_have_channels_last():
    plans = [joined_plan(opstep.loads(NetworkWriter(seed).text())) for seed in range(24)]
    found = [layouts(plan) for plan in plans]
    assert sum(len(each) > 1 for each in found) > 6
    assert {each for some in found for each in some} >= {(True, True), (True, False)}


BLOCK = """
graph main(
    x: bf16[2, 32, 8, 8], w0: bf16[64, 32, 3, 3], s: bf16[64], b: bf16[64], m: bf16[64],
    v: bf16[64], w1: bf16[64, 64, 3, 3], w2: bf16[64, 64, 1, 1], w3: bf16[64, 64, 3, 3],
) -> bf16[2, 64] {
  a = conv2d(x, w0, padding=[1, 1])
  c = conv2d(a, w1, padding=[1, 1])
  n = batch_norm(c, s, b, m, v)
  r = relu(n)
  d = conv2d(r, w2)
  e = add(d, a)
  f = conv2d(e, w3, padding=[1, 1])
  g = relu(f)
  y = mean(g, axes=[2, 3], keepdims=false)
  return y
}
"""


def test_images_are_turned_once():
    plan = joined_plan(opstep.loads(BLOCK))
    assert layouts(plan) == [(False, True), (True, True), (True, True), (True, False)]
    assert kernels(plan) == [
        ["channels_last", "arrange_filters", "convolve"],
        ["arrange_filters", "convolve"],
        ["convolve"],
        ["arrange_filters", "convolve"],
        kernels(plan)[-1],
    ]
    assert [[m.op.name for m in s.members] for s in plan.steps[:-1]] == [
        ["conv2d"],
        ["conv2d", "batch_norm", "relu"],
        ["conv2d", "add"],
        ["conv2d", "relu"],
    ]


def test_what_the_caller_is_given_has_channels_first():
    text = BLOCK.replace("return y", "return a").replace("-> bf16[2, 64]", "-> bf16[2, 64, 8, 8]")
    assert joined_plan(opstep.loads(text)).steps[0].op.name == "conv2d"


def test_there_are_kernels_for_halves_alone():
    assert not layouts(joined_plan(opstep.loads(BLOCK.replace("bf16", "f32"))))


def test_copies_that_take_more_than_they_spare_are_not_made():
    """The image is read by a pool, and by a filter of one place, which turns nothing by itself."""
    text = """
graph main(
    x: bf16[2, 32, 8, 8], w0: bf16[64, 32, 3, 3], w1: bf16[64, 64, 1, 1],
) -> bf16[2, 64, 2, 2], bf16[2, 64, 8, 8] {
  a = conv2d(x, w0, padding=[1, 1])
  p = max_pool2d(a, kernel=[3, 3])
  y = conv2d(a, w1)
  return p, y
}
"""
    assert not layouts(joined_plan(opstep.loads(text)))


def test_nothing_is_spared_where_a_copy_stays_for_the_caller():
    text = """
graph main(x: f16[2, 64, 8, 8], w: f16[64, 64, 1, 1]) -> f16[2, 8, 8, 64] {
  a = conv2d(x, w)
  y = transpose(a, perm=[0, 2, 3, 1])
  return y
}
"""
    assert not layouts(joined_plan(opstep.loads(text)))


def test_whoever_else_reads_an_image_gets_a_copy():
    text = BLOCK.replace("mean(g", "mean(p").replace(
        "  g = relu(f)", "  g = relu(f)\n  p = max_pool2d(e, kernel=[3, 3])"
    )
    plan = joined_plan(opstep.loads(text))
    names = [s.op.name for s in plan.steps]
    assert names.count("moved") == 1 and not check(plan)


PIXELS = """
graph main(
    x: bf16[2, 3, 16, 16], w: bf16[64, 3, 2, 2], d: bf16[64, 1, 7, 7], w1: bf16[128, 64],
    w2: bf16[64, 128], s: bf16[64, 1, 1], w3: bf16[64, 64, 3, 3],
) -> bf16[2, 64] {
  a = conv2d(x, w, stride=[2, 2])
  b = conv2d(a, d, padding=[3, 3], groups=64)
  c = transpose(b, perm=[0, 2, 3, 1])
  n = layer_norm(c, shape=[64])
  e = linear(n, w1)
  f = gelu(e)
  g = linear(f, w2)
  h = transpose(g, perm=[0, 3, 1, 2])
  i = mul(h, s)
  j = add(i, a)
  k = conv2d(j, w3, padding=[1, 1])
  y = mean(k, axes=[2, 3], keepdims=false)
  return y
}
"""


def test_transposes_of_programs_move_nothing_between_images_with_channels_last():
    plan = joined_plan(opstep.loads(PIXELS))
    names = [s.op.name for s in plan.steps]
    assert layouts(plan) == [(False, True), (True, True), (True, False)]
    assert not {"moved", "transpose"} & set(names) and names.count("shown") == 3
    check_pixels()


BOTH_WAYS = """
graph main(
    x: bf16[1, 32, 2, 32], w0: bf16[32, 32, 3, 3], w1: bf16[32, 32, 3, 3], w2: bf16[32, 32, 3, 3],
    w3: bf16[32, 32, 3, 3],
) -> bf16[1, 32], bf16[1, 32] {
  v = conv2d(x, w0, padding=[1, 1])
  a = conv2d(v, w1, padding=[1, 1])
  u = transpose(v, perm=[0, 3, 1, 2])
  b = conv2d(u, w2, padding=[1, 1])
  c = conv2d(b, w3, padding=[1, 1])
  y = mean(a, axes=[2, 3], keepdims=false)
  z = mean(c, axes=[2, 3], keepdims=false)
  return y, z
}
"""


def test_a_transpose_of_an_image_with_channels_last_may_be_of_its_copy():
    """It moves nothing of one with channels first, which is wanted last by another."""
    names = [s.op.name for s in joined_plan(opstep.loads(BOTH_WAYS)).steps]
    assert names.count("moved") == names.count("shown") == 1
    check_pixels(BOTH_WAYS)


def test_numbers_of_channels_and_images_scale_them_where_they_are():
    text = PIXELS.replace("s: bf16[64, 1, 1]", "s: bf16[2, 64, 1, 1]")
    names = [s.op.name for s in joined_plan(opstep.loads(text)).steps]
    assert not {"moved", "transpose"} & set(names)
    check_pixels(text)


def check_pixels(text: str = PIXELS) -> None:
    program, rng = opstep.loads(text), np.random.default_rng(2)
    shapes = {b.name.text: b.type.shape for b in program.graphs["main"].inputs}
    dtype = program.graphs["main"].inputs[0].type.dtype.numpy
    arrays = {n: (rng.standard_normal(s) / s[1] ** 0.5).astype(dtype) for n, s in shapes.items()}
    check_joined(program, arrays)


SEPARABLE = """
graph main(
    x: f16[2, 32, 9, 8], w0: f16[64, 32, 3, 3], d: f16[64, 1, 3, 3], b: f16[64], g: f16[64],
    o: f16[64], m: f16[64], v: f16[64], w1: f16[64, 64, 1, 1],
) -> f16[2, 64] {
  a = conv2d(x, w0, padding=[1, 1])
  c = conv2d(a, d, b, stride=[2, 2], padding=[1, 1], groups=64)
  n = batch_norm(c, g, o, m, v)
  e = clip(n, low=0.0, high=6.0)
  f = conv2d(e, w1)
  y = mean(f, axes=[2, 3], keepdims=false)
  return y
}
"""


def test_convolutions_of_single_channels_finish_their_sums():
    plan = joined_plan(opstep.loads(SEPARABLE))
    assert layouts(plan) == [(False, True), (True, True), (True, False)]
    assert [m.op.name for m in plan.steps[1].members] == ["conv2d", "batch_norm", "clip"]
    assert kernels(plan)[1] == ["convolve"]


@pytest.mark.parametrize("text", [PIXELS, SEPARABLE], ids=["pixels", "separable"])
def test_their_kernels_compile(text):
    plan = joined_plan(opstep.loads(text))
    for step in (s for s in plan.steps if not s.op.traits.reinterprets):
        for launch in launches(plan, step):
            if launch.kernel.function.__name__ == "convolve":
                assert ".entry" in to_ptx(launch.kernel, "sm_90")[0]
