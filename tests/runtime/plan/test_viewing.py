"""Attention that reads heads where they are: the same bits as of copies.

It is kernels for GPUs that do it; here the simulator runs them.
"""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.listing import listing
from opstep.runtime.plan.text import format_plan, parse_plan
from tests.kernels.pointwise.fused_programs import joined_plan, simulated
from tests.runtime.plan.heads import attention_of_heads


@pytest.fixture(autouse=True, params=["sm_90", "sm_75"])
def architecture(request):
    with targeting(request.param):
        yield


def ran(plan) -> list[str]:
    return [s.op.name for s in plan.steps if not s.op.traits.reinterprets]


@pytest.mark.parametrize("seed", range(8))
def test_same_bits_in_random_programs(seed):
    text, arrays = attention_of_heads(seed)
    program = opstep.loads(text)
    plan = joined_plan(program)
    assert not check(plan)
    assert parse_plan(format_plan(plan)) == listing(plan)
    with np.errstate(all="ignore"):
        assert simulated(plan, arrays, {}) == simulated(joined_plan(program, False), arrays, {})


LAYER = """
graph main(x: f16[2, 9, 96]) -> f16[2, 9, 32] {
  a, b, c = split(x, sizes=[32, 32, 32], axis=2)
  qh = reshape(a, shape=[2, 9, 2, 16])
  kh = reshape(b, shape=[2, 9, 2, 16])
  vh = reshape(c, shape=[2, 9, 2, 16])
  q = transpose(qh, perm=[0, 2, 1, 3])
  k = transpose(kh, perm=[0, 2, 1, 3])
  v = transpose(vh, perm=[0, 2, 1, 3])
  y = scaled_dot_product_attention(q, k, v)
  z = transpose(y, perm=[0, 2, 1, 3])
  out = reshape(z, shape=[2, 9, 32])
  return out
}
"""


def test_a_layer_copies_nothing():
    plan = joined_plan(opstep.loads(LAYER))
    assert ran(plan) == ["fused"]
    members = [m.op.name for m in plan.steps[0].members]
    assert members == ["scaled_dot_product_attention", *["split", "transpose"], *["transpose"] * 3]
    assert "fused(scaled_dot_product_attention, split, transpose" in format_plan(plan)


def test_what_others_read_is_copied():
    text = LAYER.replace("-> f16[2, 9, 32]", "-> f16[2, 2, 9, 16], f16[2, 9, 32]")
    text = text.replace("return out", "return q, out")
    assert ran(joined_plan(opstep.loads(text))) == ["moved", "fused"]


def test_a_result_that_is_computed_with_is_not_transposed():
    text = LAYER.replace("z = transpose(y", "e = exp(y)\n  z = transpose(e")
    assert ran(joined_plan(opstep.loads(text))) == ["fused", "exp", "transpose"]


def test_rows_that_begin_anywhere_are_copied():
    text = LAYER.replace("96]", "72]").replace("32", "24").replace("16", "12")
    text = text.replace("f12", "f16")
    assert "scaled_dot_product_attention" in ran(joined_plan(opstep.loads(text)))


def test_attention_of_attention():
    """What the first one writes in another order is what the second one reads."""
    text = """
graph main(x: f16[2, 4, 4, 16]) -> f16[2, 4, 4, 16] {
  y = scaled_dot_product_attention(x, x, x)
  z = transpose(y, perm=[0, 2, 1, 3])
  w = scaled_dot_product_attention(z, z, z)
  return w
}
"""
    program = opstep.loads(text)
    plan = joined_plan(program)
    assert not check(plan) and len(ran(plan)) == 2
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 16)).astype(np.float16)
    assert simulated(plan, {"x": x}, {}) == simulated(joined_plan(program, False), {"x": x}, {})


def test_what_is_read_far_behind_is_copied():
    """A large tensor does not live on for a small part of it."""
    lines = "".join(f"  e{k} = exp({f'e{k - 1}' if k else 's'})\n" for k in range(70))
    text = f"""
graph main(x: f16[8, 4, 16], s: f16[1]) -> f16[4, 16], f16[1] {{
  q = select(x, index=0)
{lines}  y = scaled_dot_product_attention(q, q, q)
  return y, e69
}}
"""
    assert "select" in ran(joined_plan(opstep.loads(text)))


def test_one_head_of_keys_for_all_is_read_where_it_is():
    text = """
graph main(q: f16[2, 4, 9, 16], k: f16[2, 1, 9, 16], v: f16[2, 1, 9, 16]) -> f16[2, 4, 9, 16] {
  ks = broadcast(k, shape=[2, 4, 9, 16])
  vs = broadcast(v, shape=[2, 4, 9, 16])
  y = scaled_dot_product_attention(q, ks, vs)
  return y
}
"""
    program = opstep.loads(text)
    plan = joined_plan(program)
    assert ran(plan) == ["fused"]
    random = np.random.default_rng(0)
    shapes = {"q": (2, 4, 9, 16), "k": (2, 1, 9, 16), "v": (2, 1, 9, 16)}
    arrays = {n: random.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    assert simulated(plan, arrays, {}) == simulated(joined_plan(program, False), arrays, {})
