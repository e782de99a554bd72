"""Matrix products as they were written: AOTAutograd gives ``x @ w.t()`` as a transpose, which our
language computes, and a product, and some layers as a product and a sum; here they become one op
again.
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


def layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A linear layer with weights [in, out]."""
    return torch.nn.functional.linear(x, w.mT, bias)


@rule("layer")
def _layer(b, x, w, bias):
    return b.linear(x, w, bias, transpose_w=True)


LAYERS = {aten.linear.default, layer}
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default}


def fold_products(graph: fx.Graph) -> None:
    """Takes transposes and biases into the products that they are for. What nobody needs then stays
    there.
    """
    for node in list(graph.nodes):
        if node.target is aten.add.Tensor and not node.kwargs:
            _fold_bias(graph, node)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _swaps(node):
            base, swapped = _untransposed(node)
            if not swapped:
                node.replace_all_uses_with(base)
        elif node.target in PRODUCTS and _is_mixed(node):
            continue  # it is refused as it stands
        elif node.target in (aten.mm.default, aten.bmm.default):
            (x, first), (y, second) = map(_untransposed, node.args)
            if first or second:
                _replace(graph, node, product, (x, y, first, second))
        elif node.target is aten.mv.default:
            x, transposed = _untransposed(node.args[0])
            if transposed:
                _replace(graph, node, aten.matmul.default, (node.args[1], x))
        elif node.target is aten.addmm.default and not node.kwargs:
            bias, x, y = node.args
            w, transposed = _untransposed(y)
            if _sizes(bias) == _sizes(node)[1:]:
                _replace(graph, node, aten.linear.default if transposed else layer, (x, w, bias))
    for node in list(graph.nodes):
        if node.target in LAYERS:
            _unflatten(graph, node)


def _fold_bias(graph: fx.Graph, node: fx.Node) -> None:
    """``F.linear`` of more axes than two is a product, a reshape and this sum where its operand was
    not contiguous.
    """
    for shaped, bias in (node.args[:2], node.args[1::-1]):
        if not (isinstance(shaped, fx.Node) and isinstance(bias, fx.Node)):
            continue
        product: Any = shaped.args[0] if shaped.target in RESHAPES else shaped
        if product.target is not aten.mm.default or len(product.users) > 1:
            continue
        if len(shaped.users) > 1 or not _is_bias(bias, node, shaped):
            continue
        new = _replace(graph, product, aten.addmm.default, (bias, *product.args))
        node.prepend(new)  # the bias may be computed behind the product
        if shaped is product:
            node.replace_all_uses_with(new)
        else:
            _replace(graph, node, shaped.target, (new, *shaped.args[1:]))
        return


def _is_mixed(node: fx.Node) -> bool:
    """Whether operands are of several element types."""
    return len({n.meta["val"].dtype for n in node.all_input_nodes if "val" in n.meta}) > 1


def _is_bias(bias: fx.Node, node: fx.Node, shaped: fx.Node) -> bool:
    if any("val" not in n.meta for n in (bias, shaped)):
        return False
    types = {n.meta["val"].dtype for n in (bias, node, shaped)}
    sizes = _sizes(shaped)
    return len(types) == 1 and _sizes(bias) == sizes[-1:] and _sizes(node) == sizes


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
            new = _replace(graph, user, node.target, (whole, *weights))
            node.prepend(new)  # for those who want it flattened
            with graph.inserting_before(node):
                again = graph.call_function(aten.view.default, (new, [*rows[:-1], size]))
            again.meta = dict(node.meta)
            node.replace_all_uses_with(again)
            return


def _sizes(node: Any) -> list[Any]:
    """A shape to compare: of symbolic sizes the expressions, for to compare those is a guard."""
    return [s if isinstance(s, int) else s.node.expr for s in node.meta["val"].shape]
