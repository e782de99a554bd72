"""Products between chains of views, as PyTorch writes `einsum`: they move nothing in memory."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from opstep.frontends.torch.products import fold_products

aten = torch.ops.aten
MOVES = {aten.permute.default, aten.transpose.int, aten.t.default}


def folded(function, *given):
    """The module that a function is traced to, with its products folded."""
    module = make_fx(function, tracing_mode="fake")(*given)
    fold_products(module.graph)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def with_gradients(equation):
    def f(x, y, gy):
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        out = torch.einsum(equation, x, y)
        return (out.detach(), *torch.autograd.grad(out, (x, y), gy))

    return f


EQUATIONS = {  # shapes of operands, whether axes have to be moved
    "bhid,bhjd->bhij": ((2, 3, 5, 4), (2, 3, 6, 4), False),
    "bij,bjk->bik": ((2, 5, 4), (2, 4, 6), False),
    "ij,jk->ki": ((5, 4), (4, 6), False),
    "bijc,bkc->bijk": ((2, 3, 5, 4), (2, 6, 4), False),
    "bihd,bjhd->bhij": ((2, 5, 3, 4), (2, 6, 3, 4), True),
    "id,jd->ij": ((1, 4), (1, 4), False),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_products_of_its_operands_as_they_lie(equation):
    left, right, moves = EQUATIONS[equation]
    torch.manual_seed(0)
    x, y = torch.randn(left), torch.randn(right)
    given = x, y, torch.randn_like(torch.einsum(equation, x, y))
    module = folded(with_gradients(equation), *given)
    for found, expected in zip(module(*given), with_gradients(equation)(*given), strict=True):
        torch.testing.assert_close(found, expected)
    assert any(n.target in MOVES for n in module.graph.nodes) is moves


def test_products_of_more_axes_take_transposes_in():
    def f(q, k, gy):
        q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
        out = q @ k.mT
        return (out.detach(), *torch.autograd.grad(out, (q, k), gy))

    given = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4), torch.randn(2, 3, 5, 6)
    module = folded(f, *given)
    for found, expected in zip(module(*given), f(*given), strict=True):
        torch.testing.assert_close(found, expected)
    assert not any(n.target in MOVES for n in module.graph.nodes)


def test_a_product_that_others_read_stays():
    def f(x, y):
        z = x @ y
        return z, z.mT.contiguous()

    given = torch.randn(5, 4), torch.randn(4, 6)
    module = folded(f, *given)
    assert sum(n.target in MOVES for n in module.graph.nodes) == 1
    for found, expected in zip(module(*given), f(*given), strict=True):
        torch.testing.assert_close(found, expected)
