"""The backward of a layer norm as one op in AOTAutograd's graphs. Like ours it finds the statistics
of a row again, while it holds it: then the forward need not keep them.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx

from opstep.frontends.torch.body import Body
from opstep.frontends.torch.rules.registry import rule

aten = torch.ops.aten
Tensor = torch.Tensor


@torch.library.custom_op("opstep::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    grad: Tensor, x: Tensor, shape: list[int], weight: Tensor | None, eps: float
) -> list[Tensor]:
    """As PyTorch runs it, where a graph falls back to it."""
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, None, eps)
    mask = [True, weight is not None, weight is not None]
    found = aten.native_layer_norm_backward(grad, x, shape, mean, rstd, weight, weight, mask)
    return [t.clone() for t in found if t is not None]


@layer_norm_backward.register_fake
def _(grad, x, shape, weight, eps):
    like = [x] if weight is None else [x, weight, weight]
    return [t.new_empty(t.shape) for t in like]


def single_gradients(graph: fx.Graph) -> None:
    """In a joint graph, where the forward op, which has the epsilon, can be found."""
    for node in graph.find_nodes(
        op="call_function", target=aten.native_layer_norm_backward.default
    ):
        grad, x, shape, _, rstd, weight, *_ = node.args
        forward = rstd.args[0] if rstd.target is getitem else rstd
        if forward.target is aten.native_layer_norm.default:
            node.target = torch.ops.opstep.layer_norm_backward.default
            node.args = (grad, x, shape, weight, forward.args[4])
            if weight is None:
                _sum_for_bias(graph, node)


def _sum_for_bias(graph: fx.Graph, node: fx.Node) -> None:
    """Of a layer norm without a weight: the op gives the gradient of the input alone."""
    grad: Any = node.args[0]
    shape: Any = node.args[2]
    axes = list(range(grad.meta["val"].dim() - len(shape)))
    for user in [u for u in node.users if u.args[1] == 2]:
        total = grad
        if axes:
            with graph.inserting_before(user):
                total = graph.call_function(aten.sum.dim_IntList, (grad, axes))
            total.meta = dict(user.meta)
        user.replace_all_uses_with(total)
        graph.erase_node(user)


@rule("opstep::layer_norm_backward.default")
def _layer_norm_backward(b: Body, grad, x, shape, weight, eps):
    attrs = {"shape": list(shape), "epsilon": float(eps)}
    if weight is None:
        return b.layer_norm_grad(x, grad, **attrs), None, None
    return b.layer_norm_affine_grad(x, grad, weight, **attrs)
