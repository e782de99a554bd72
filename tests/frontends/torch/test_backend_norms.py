"""The backward of a layer norm in compiled models: one op, as near to f64 as PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

FORMS = {
    "affine": {},
    "without a scale": {"elementwise_affine": False},
    "without a bias": {"bias": False},
}


def results(norm, x):
    """The output, and the gradients of x and of what the norm learns."""
    y = norm(x)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype)
    wanted = [x, *norm.parameters()]
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), wanted)]


def made(form, dtype):
    torch.manual_seed(1)
    norm = nn.LayerNorm((4, 6), **FORMS[form])
    for p in norm.parameters():
        nn.init.normal_(p)
    return norm.to(dtype), (torch.randn(3, 5, 4, 6) + 2).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(compiled, form, dtype):
    norm, x = made(form, dtype)
    eager, ours = results(norm, x), results(compiled(norm), x)
    exact = results(norm.double(), x.detach().double().requires_grad_())
    least = {torch.float64: 1e-13, torch.float32: 1e-6}.get(dtype, 0.0)
    for found, theirs, wanted in zip(ours, eager, exact, strict=True):
        assert found.dtype == dtype
        far, near = (((t.double() - wanted).abs().max()) for t in (found, theirs))
        assert far <= max(2 * near, least * wanted.abs().max())


def test_it_is_one_op_and_the_forward_keeps_no_statistics(compiled, programs):
    norm, x = made("affine", torch.float32)
    results(compiled(norm), x)
    ops = {half: [s.callee.text for s in p.graphs[half].body[:-1]] for half, p in programs.items()}
    assert "layer_norm_affine_grad" in ops["backward"]
    assert "layer_norm" in ops["forward"]
    assert not any("statistics" in op for op in ops["forward"])


def test_under_autocast(compiled):
    norm, x = made("affine", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for found, expected in zip(results(compiled(norm), x), results(norm, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_a_bias_alone(compiled):
    """Of a layer norm and of one over all axes, whose sum is over none."""
    for size in ((3, 5, 4, 6), (4, 6)):
        torch.manual_seed(1)
        x, bias = torch.randn(size, requires_grad=True), torch.randn(4, 6, requires_grad=True)

        def function(x, b):
            return nn.functional.layer_norm(x, (4, 6), None, b)

        def gradients(f, x=x, bias=bias):
            return torch.autograd.grad(f(x, bias).sin().sum(), (x, bias))

        for found, wanted in zip(gradients(compiled(function)), gradients(function), strict=True):
            torch.testing.assert_close(found, wanted)
