"""Attention in compiled models: one op forward and backward, with the values of f64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from agreement import called
from torch import nn

BOOLS = torch.arange(5)[:, None] % 2 == torch.arange(9) % 3
FORMS = {  # shapes of q, k and v; arguments
    "plain": ((2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 5), {}),
    "causal": ((2, 3, 9, 8), (2, 3, 9, 8), (2, 3, 9, 8), {"is_causal": True}),
    "causal, fewer keys": ((2, 9, 8), (2, 6, 8), (2, 6, 8), {"is_causal": True}),
    "scale": ((7, 8), (9, 8), (9, 5), {"scale": 0.3}),
    "heads that share": ((2, 6, 7, 8), (2, 2, 9, 8), (2, 2, 9, 5), {"enable_gqa": True}),
    "bools": ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 5), {"attn_mask": BOOLS}),
    "a query that sees nothing": (
        (2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 5), {"attn_mask": torch.arange(5)[:, None] > 0},
    ),
    "numbers": ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 5), {"attn_mask": torch.randn(3, 1, 9)}),
}  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def attended(q, k, v, attn_mask=None, **options):
    return F.scaled_dot_product_attention(q, k, v, attn_mask, **options)


def operands(name, dtype):
    """q, k, v and numbers of a mask, which have gradients, and the other arguments."""
    torch.manual_seed(3)
    *shapes, options = FORMS[name]
    tensors, options = [torch.randn(s) for s in shapes], dict(options)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        tensors.append(options.pop("attn_mask"))
    return [t.to(dtype).requires_grad_() for t in tensors], options


def results(function, tensors, options):
    """The output and the gradients of all tensors."""
    y = function(*tensors, **options)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), tensors)]


def distance(found, exact):
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_as_near_to_f64_as_those_of_pytorch(compiled, name, dtype):
    tensors, options = operands(name, dtype)
    exact = results(attended, [t.detach().double().requires_grad_() for t in tensors], options)
    eager = results(attended, tensors, options)
    ours = results(compiled(attended), tensors, options)
    least = {torch.float64: 1e-13, torch.float32: 1e-6}.get(dtype, 0.0)
    for found, theirs, wanted in zip(ours, eager, exact, strict=True):
        assert found.dtype == dtype
        assert distance(found, wanted) <= max(2 * distance(theirs, wanted), least)


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)  # attention


def test_it_is_one_op_forward_and_backward_at_its_line(compiled, programs):
    compiled(Attention())(torch.randn(2, 5, 8, requires_grad=True)).sum().backward()
    ops = {
        "forward": "scaled_dot_product_attention",
        "backward": "scaled_dot_product_attention_grad",
    }
    with open(__file__, encoding="utf-8") as file:
        (line,) = (k for k, text in enumerate(file, 1) if text.endswith("  # attention\n"))
    for half, op in ops.items():
        statements = programs[half].graphs[half].body
        (found,) = (s for s in statements[:-1] if s.callee.text == op)
        assert found.at.line == line


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x, y):
        return self.heads(x, y, y, need_weights=False)[0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_layer_of_heads_calls_it(compiled, programs, training, alone):
    layer = Layer().train(training)
    x, y = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    with torch.set_grad_enabled(training):
        given = (x, x) if alone else (x, y)
        torch.testing.assert_close(compiled(layer)(*given), layer(*given), rtol=1e-5, atol=1e-6)
    (program,) = programs.values() if not training else [programs["forward"]]
    ops = [op for graph in program.graphs.values() for op in called(graph)]
    assert ops.count("scaled_dot_product_attention") == 1 and "softmax" not in ops


def test_an_encoder_in_eval_mode_calls_it(compiled, programs):
    layer, x = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), torch.randn(2, 9, 32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(layer)(x), layer(x), rtol=1e-5, atol=1e-5)
    ops = called(programs["inference"].graphs["inference"])
    assert "scaled_dot_product_attention" in ops and "softmax" not in ops


def test_of_keys_that_several_batches_share(compiled, programs):
    q, k = torch.randn(3, 2, 5, 8), torch.randn(1, 2, 7, 8)
    tensors = [t.requires_grad_() for t in (q, k, k.clone().detach())]
    found, expected = results(compiled(attended), tensors, {}), results(attended, tensors, {})
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_dropout_of_its_weights_is_drawn_by_pytorch(compiled):
    def f(x, p=0.5):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=p)

    x, found = torch.randn(2, 3, 5, 8), []
    for g in (compiled(f), f, compiled(f)):
        torch.manual_seed(5)
        found.append(g(x))
    torch.testing.assert_close(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_other_lengths_use_the_same_program(compiled, programs):
    fast = compiled(attended, dynamic=True)
    for n in (5, 9, 6):
        x = torch.randn(2, 3, n, 8, requires_grad=True)
        found = results(fast, [x], {"k": x, "v": x})
        for a, b in zip(found, results(attended, [x], {"k": x, "v": x}), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert called(programs["forward"].graphs["forward"]) == ["scaled_dot_product_attention"]


def test_operands_that_autocast_makes_one_type(compiled):
    q, mask = torch.randn(2, 3, 5, 8), torch.randn(5, 5)
    k = torch.randn(2, 3, 5, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(attended)(q, k, k, mask), attended(q, k, k, mask)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_where_pytorch_runs_the_graph_itself(compiled):
    def f(x, mask):
        y = F.scaled_dot_product_attention(x, x, x, mask)
        return torch.fft.fft(y).abs()

    x, mask = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    fast = compiled(f, fallback=True)
    with pytest.warns(UserWarning, match="itself"):
        found = torch.autograd.grad(fast(x, mask).sum(), (x, mask))
    expected = torch.autograd.grad(f(x, mask).sum(), (x, mask))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_its_result_is_laid_out_as_in_eager_mode(compiled):
    """Whether it can be viewed in another shape depends on that."""

    def attend(q):
        return F.scaled_dot_product_attention(q, q, q)

    heads, fast = torch.randn(2, 4, 3, 8), compiled(attend)
    for q in (heads, heads.transpose(1, 2), torch.randn(2, 4, 3, 16)[..., ::2]):
        assert fast(q).stride() == attend(q).stride()
