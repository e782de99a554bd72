"""The gradient transform on whole graphs: calls, shared values, params, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import opstep
from opstep.runtime.ir.printer import print_module

F32 = np.float32

MLP = """
param w1: f32[8, 4] = normal(std=0.5)
param w2: f32[1, 8] = normal(std=0.5)

graph layer(x: f32[N, I], w: f32[O, I]) -> f32[N, O] {
  h = linear(x, w)
  a = tanh(h)
  return a
}

graph loss(x: f32[N, 4], y: f32[N, 1]) -> f32[] {
  h = layer(x, w1)
  p = layer(h, w2)
  twice = add(p, p)
  e = sub(twice, y)
  s = mul(e, e)
  l = mean(s)
  return l
}
"""


def test_gradients_by_inputs_and_params_through_calls():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 4)).astype(F32), rng.standard_normal((5, 1)).astype(F32)
    program = opstep.loads(MLP).with_grad("loss", ["w1", "w2", "x"])
    result = program.run("loss_grad", {"x": x, "y": y})
    leaves = [torch.tensor(a, requires_grad=True) for a in (*program.params.values(), x)]
    w1, w2, given = leaves
    p = torch.tanh(torch.tanh(given @ w1.T) @ w2.T)
    loss = ((2 * p - torch.tensor(y)) ** 2).mean()
    loss.backward()
    ours = result.outputs
    assert ours[0] == pytest.approx(loss.item(), rel=1e-5)
    for mine, leaf in zip(ours[1:], leaves, strict=True):
        np.testing.assert_allclose(mine, leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_the_gradient_is_a_program_that_can_be_printed_and_read():
    program = opstep.loads(MLP).with_grad("loss", ["w1"])
    again = opstep.loads(print_module(program.module))
    x, y = np.ones((3, 4), F32), np.ones((3, 1), F32)
    inputs = {"x": x, "y": y}
    a, b = (p.run("loss_grad", inputs).outputs[1] for p in (program, again))
    np.testing.assert_array_equal(a, b)


def test_params_with_names_in_backquotes():
    quoted = MLP.replace("w1", "`0.weight`").replace("w2", "`naïve-b`")
    program = opstep.loads(quoted).with_grad("loss", ["0.weight", "naïve-b"])
    text = print_module(program.module)
    assert "return l, d_0_weight, d_na_ve_b\n" in text
    inputs = {"x": np.ones((3, 4), F32), "y": np.ones((3, 1), F32)}
    plain = opstep.loads(MLP).with_grad("loss", ["w1", "w2"])
    for ours, its in (("0.weight", "w1"), ("naïve-b", "w2")):
        plain.params[its] = opstep.loads(quoted).params[ours]
    again = opstep.loads(text)
    found = again.run("loss_grad", inputs).outputs
    for mine, other in zip(found, plain.run("loss_grad", inputs).outputs, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_what_does_not_depend_on_a_value_has_gradient_zero():
    program = opstep.loads(
        "graph g(a: f32[3], b: f32[3]) -> f32[] {\n  s = sum(a)\n  return s\n}\n"
    ).with_grad("g", ["b", "a"])
    result = program.run("g_grad", {"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]})
    assert [o.tolist() for o in result.outputs] == [6, [0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "graph g(a: f32[3]) -> f32[3] {\n  b = exp(a)\n  return b\n}",
            r"m.opg:3:3: error: the first result must be a float scalar such as a loss: f32\[\]\n"
            r"    return b\n    \^+\nhint: return its sum or its mean first",
        ),
        (
            "state s: f32[] = 0\n"
            "graph t(x: f32[]) -> bool[] {\n  y = less(x, 1.0)\n  s <- x\n  return y\n}\n"
            "graph h(x: f32[]) -> f32[] {\n  y = mul(x, 2.0)\n  return y\n}\n"
            "graph g(a: f32[]) -> f32[] {\n  b = while(a, test=t, body=h)\n  return b\n}",
            r"m.opg:12:3: error: no gradient is taken through a loop whose test, t, updates",
        ),
        (
            "graph t(x: f32[N], y: f32[M]) -> bool[] {\n  a = any(x)\n  return a\n}\n"
            "graph h(x: f32[N], y: f32[M]) -> f32[M], f32[N] {\n  return y, x\n}\n"
            "graph g(a: f32[3]) -> f32[] {\n  b, c = while(a, a, test=t, body=h)\n"
            "  s = sum(b)\n  return s\n}",
            r"m.opg:9:3: error: no gradient is taken through h, which fits its loop for some sizes",
        ),
        ("graph g(b: f32[]) -> f32[] {\n  return b\n}", "a is neither an input of g nor a param"),
    ],
)
def test_graphs_without_a_gradient_say_why(text, message):
    with pytest.raises(opstep.OpstepError, match=message):
        opstep.loads(text, "m.opg").with_grad("g", ["a"])


def test_training_in_the_language_learns():
    """Gradients, updates and steps together: a line is fitted."""
    text = """
param w: f32[1, 3] = zeros()
graph loss(x: f32[N, 3], y: f32[N, 1]) -> f32[] {
  p = linear(x, w)
  l = mse_loss(p, y)
  return l
}
"""
    program = opstep.loads(text).with_grad("loss", ["w"])
    program = opstep.loads(
        print_module(program.module)
        + """
graph train(x: f32[N, 3], y: f32[N, 1]) -> f32[] {
  l, g = loss_grad(x, y)
  step = mul(g, 0.1)
  next = sub(w, step)
  w <- next
  return l
}
"""
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 3)).astype(F32)
    truth = np.array([[1.0, -2.0, 0.5]], F32)
    result = program.run("train", {"x": x, "y": x @ truth.T}, steps=200)
    assert result["l"] < 1e-6
    np.testing.assert_allclose(program.params["w"], truth, atol=1e-3)


def test_asserts_hold_in_the_gradient_too_and_derivatives_are_called_after_what_they_are_by():
    text = """
param fc.w: f32[3] = ones()
graph loss(x: f32[3]) -> f32[] {
  p = mul(x, fc.w)
  l = sum(p)
  fine = less(l, 100.0)
  assert fine, "the loss exploded"
  return l
}
"""
    program = opstep.loads(text, "m.opg").with_grad("loss", ["fc.w", "x"])
    result = program.run("loss_grad", {"x": [1.0, 2.0, 3.0]})
    assert result.names == ["l", "d_fc_w", "d_x"]
    assert result["d_fc_w"].tolist() == [1, 2, 3]
    with pytest.raises(opstep.OpstepError, match=r"m.opg:7:10: error: assert failed: the loss"):
        program.run("loss_grad", {"x": [100.0, 2.0, 3.0]})


@pytest.mark.parametrize(
    "wrt, shape, fused",
    [
        (["q", "k", "v"], "2, 4, 5", True),
        (["q", "mask"], "2, 4, 5", False),
        (["q", "k", "v"], "4, 5", False),
    ],
)
def test_attention_goes_back_in_one_op_unless_by_its_mask_or_repeated_rows(wrt, shape, fused):
    text = f"""
graph loss(q: f32[2, 3, 5], k: f32[{shape}], v: f32[{shape}], mask: f32[3, 4]) -> f32[] {{
  y = scaled_dot_product_attention(q, k, v, mask)
  l = mean(y)
  return l
}}
"""
    written = str(opstep.loads(text).with_grad("loss", wrt)["loss_grad"])
    assert ("scaled_dot_product_attention_grad(" in written) == fused
    assert ("softmax_grad(" in written) != fused
