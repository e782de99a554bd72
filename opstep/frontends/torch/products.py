"""Matrix products as they were written: AOTAutograd gives ``x @ w.t()`` as a transpose, which our
language computes, and a product, some layers as a product and a sum, and `einsum` as a product
between chains of views; here they become one op again.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from opstep.frontends.torch.rules.registry import rule

aten = torch.ops.aten
RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
VIEWS = RESHAPES | {
    aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.expand.default,
}  # fmt: skip


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
    _straighten(graph)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _swaps(node):
            base, swapped = _untransposed(node)
            if not swapped:
                node.replace_all_uses_with(base)
            else:
                _swap_product(graph, node)
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


def _straighten(graph: fx.Graph) -> None:
    """Operands and results of products that are chains of views, as `einsum` writes them, become a
    reshape, and a transpose of the last two axes where these are swapped.
    """
    for node in list(graph.nodes):
        if node.target not in VIEWS or "val" not in node.meta:
            continue
        source = node.args[0] if node.target in RESHAPES else node
        base, order = _origin(source)
        root: Any = base
        while root.target in RESHAPES:
            root = root.args[0]
        sizes = _sizes(node)
        if base is source or _swaps(node) or not all(type(n) is int for n in sizes):
            continue
        if root.target not in PRODUCTS and not _feeds_product(node):
            continue
        if order == sorted(order):
            _replace(graph, node, aten.reshape.default, (root, sizes))
        elif _is_swapped(order, _sizes(base), sizes):
            with graph.inserting_before(node):
                turned = [*sizes[:-2], sizes[-1], sizes[-2]]
                inner = graph.call_function(aten.reshape.default, (root, turned))
            inner.meta = {**_unlabelled(node), "val": node.meta["val"].mT}
            _replace(graph, node, aten.transpose.int, (inner, -2, -1))
    for node in reversed(list(graph.nodes)):
        if node.target in VIEWS and not node.users:
            graph.erase_node(node)


def _feeds_product(node: fx.Node) -> bool:
    return any(u.target in PRODUCTS or (_swaps(u) and _feeds_product(u)) for u in node.users)


def _origin(node: Any) -> tuple[Any, list[int]]:
    """(what a value has the elements of, its axes of more elements than one in the value's
    order).
    """
    if node.target in VIEWS and "val" in node.args[0].meta:
        x, axes = node.args[0], _permutation(node)
        base, order = _origin(x)
        long = [k for k, n in enumerate(_sizes(x)) if n != 1]
        if axes is not None:
            return base, [order[long.index(k)] for k in axes if k in long]
        if [n for n in _sizes(node) if n != 1] == [_sizes(x)[k] for k in long]:
            return base, order
    return node, [k for k, n in enumerate(_sizes(node)) if n != 1]


def _is_swapped(order: list[int], extents: list[Any], sizes: list[Any]) -> bool:
    """Whether the last two of `sizes` are groups of axes that follow each other the other way
    round; `order`: of axes of these extents.
    """
    for last in range(1, len(order)):
        for first in range(1, len(order) - last + 1):
            lead, rows = order[: -first - last], order[-first - last : -last]
            columns = order[-last:]
            counts = [prod(extents[k] for k in axes) for axes in (rows, columns)]
            if [*lead, *columns, *rows] == sorted(order) and counts == sizes[-2:]:
                return True
    return False


def _swap_product(graph: fx.Graph, node: fx.Node) -> None:
    """The transpose of a product that nobody else reads is the product of the transposes."""
    made: Any = node.args[0]
    while made.target in RESHAPES and len(made.users) == 1:
        if _sizes(made)[-2:] != _sizes(made.args[0])[-2:]:
            return
        made = made.args[0]
    if len(made.users) > 1 or made.target not in {product, aten.mm.default, aten.bmm.default}:
        return
    x, y, first, second = (*made.args, False, False)[:4]
    with graph.inserting_before(node):
        swapped = graph.call_function(product, (y, x, not second, not first))
    swapped.meta = {**_unlabelled(made), "val": made.meta["val"].mT}
    _replace(graph, node, aten.reshape.default, (swapped, _sizes(node)))


def _unlabelled(node: fx.Node) -> dict[str, Any]:
    """What is known of a node, but for whose gradient it is."""
    return {k: v for k, v in node.meta.items() if k not in ("gradient_of", "in_joint")}


def _permutation(node: Any) -> list[int] | None:
    """The axes of its operand that a value has, if it has the same in another order."""
    rank = len(getattr(node.meta["val"], "shape", ()))
    axes = list(range(rank))
    if node.target is aten.permute.default:
        return [a % rank for a in node.args[1]]
    if node.target is aten.t.default:
        return axes[::-1]
    if node.target is aten.transpose.int and rank:
        i, j = (a % rank for a in node.args[1:])
        axes[i], axes[j] = j, i
        return axes
    return None


def _swaps(node: Any) -> bool:
    """Whether it transposes the last two axes."""
    if not isinstance(node, fx.Node) or "val" not in node.meta:
        return False
    axes = _permutation(node)
    return bool(axes) and axes == [*range(len(axes) - 2), len(axes) - 1, len(axes) - 2]


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
