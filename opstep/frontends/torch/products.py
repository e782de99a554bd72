"""Matrix products as they were written: AOTAutograd gives ``x @ w.t()`` as a transpose, which our
language computes, and a product; here they become one op again.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from opstep.frontends.torch.rules.registry import rule

aten = torch.ops.aten
RESHAPES = {aten.view.default, aten._unsafe_view.default}


def product(x: torch.Tensor, y: torch.Tensor, first: bool, second: bool) -> torch.Tensor:
    """A product of matrices, of which the first or the second is to be transposed."""
    return torch.matmul(x.mT if first else x, y.mT if second else y)


@rule("product")
def _product(b, x, y, first, second):
    flags = {"transpose_a": first, "transpose_b": second}
    return b.matmul(x, y, **{k: v for k, v in flags.items() if v})


def fold_transposes(graph: fx.Graph) -> None:
    """Takes transposes into the products that they are for. What nobody needs then stays there."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _swaps(node):
            base, swapped = _untransposed(node)
            if not swapped:
                node.replace_all_uses_with(base)
        elif node.target in (aten.mm.default, aten.bmm.default):
            (x, first), (y, second) = map(_untransposed, node.args)
            if first or second:
                _replace(graph, node, product, (x, y, first, second))
        elif node.target is aten.addmm.default and not node.kwargs:
            bias, x, y = node.args
            w, transposed = _untransposed(y)
            if transposed and len(bias.meta["val"].shape) == 1:
                _replace(graph, node, aten.linear.default, (x, w, bias))
    for node in list(graph.nodes):
        if node.target is aten.linear.default:
            _unflatten(graph, node)


def _replace(graph: fx.Graph, node: fx.Node, target: Any, args: tuple) -> fx.Node:
    with graph.inserting_before(node):
        new = graph.call_function(target, args)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    return new


def _swaps(node: Any) -> bool:
    """Whether it transposes the last two axes."""
    if not isinstance(node, fx.Node) or "val" not in node.meta:
        return False
    rank = len(getattr(node.meta["val"], "shape", ()))
    if node.target is aten.t.default:
        return rank == 2
    if node.target is aten.transpose.int:
        axes = {a % rank for a in cast(tuple[int, ...], node.args[1:])} if rank > 1 else None
        return axes == {rank - 1, rank - 2}
    if node.target is aten.permute.default:
        axes = [a % rank for a in node.args[1]]  # pyright: ignore
        return rank > 1 and axes == [*range(rank - 2), rank - 1, rank - 2]
    return False


def _untransposed(node: Any) -> tuple[Any, bool]:
    """What a value is a transpose of, if it is one of something."""
    swapped = False
    while _swaps(node):
        node, swapped = node.args[0], not swapped
    return node, swapped


def _unflatten(graph: fx.Graph, node: fx.Node) -> None:
    """A layer of a tensor with more axes than two is given flattened, and reshaped afterwards."""
    flat, *weights = node.args
    if getattr(flat, "target", None) not in RESHAPES:
        return
    whole: Any = flat.args[0]  # pyright: ignore
    shape, size = _sizes(whole), _sizes(node)[-1]
    if len(shape) < 2 or shape[-1] != _sizes(flat)[-1] or not isinstance(size, int):
        return
    rows: Any = flat.args[1]  # pyright: ignore
    for user in list(node.users):
        if user.target in RESHAPES and _sizes(user) == [*shape[:-1], size]:
            new = _replace(graph, user, aten.linear.default, (whole, *weights))
            node.prepend(new)  # for those who want it flattened
            with graph.inserting_before(node):
                again = graph.call_function(aten.view.default, (new, [*rows[:-1], size]))
            again.meta = dict(node.meta)
            node.replace_all_uses_with(again)
            return


def _sizes(node: Any) -> list[Any]:
    """A shape to compare: of symbolic sizes the expressions, for to compare those is a guard."""
    return [s if isinstance(s, int) else s.node.expr for s in node.meta["val"].shape]
