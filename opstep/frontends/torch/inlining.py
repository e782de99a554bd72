"""What PyTorch calls by way of another op, called directly: regions of `torch.no_grad`, which are
graphs within the exported graph, and ops that are kept in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

REGION = "wrap_with_set_grad_enabled"


def inline_regions(exported: ExportedProgram) -> None:
    """Puts the ops of each region where it was called, with what is known of them (their Python
    frames above all): traced anew they would lose that.
    """
    renamed = _inline_all(exported.graph_module)
    for before, after in renamed:
        exported.graph_signature.replace_all_uses(before, after)


def _inline_all(module: fx.GraphModule) -> list[tuple[str, str]]:
    """Gives the names of values that have others now."""
    renamed = []
    regions = [node for node in module.graph.nodes if _is_region(node)]
    for node in regions:
        renamed += _inline(module, node)
    if regions:
        module.graph.lint()
        module.recompile()
    return renamed


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == REGION


def _inline(module: fx.GraphModule, node: fx.Node) -> list[tuple[str, str]]:
    _, region, *operands = node.args
    assert isinstance(region, fx.Node)
    inner: Any = getattr(module, str(region.target))
    _inline_all(inner)
    placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
    values: dict[fx.Node, Any] = dict(zip(placeholders, operands, strict=True))
    with module.graph.inserting_before(node):
        for n in inner.graph.nodes:
            if n.op == "get_attr":
                setattr(module, str(n.target), getattr(inner, str(n.target)))
            if n.op not in ("placeholder", "output"):
                values[n] = module.graph.node_copy(n, lambda n: values[n])
    (results,) = next(n for n in inner.graph.nodes if n.op == "output").args
    renamed = []
    for user in list(node.users):
        assert user.target is getitem
        value = values[results[user.args[1]]]
        user.replace_all_uses_with(value)
        renamed.append((user.name, value.name))
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    if not region.users:
        module.graph.erase_node(region)
    return renamed


def drop_tokens(graph: fx.Graph) -> None:
    """Calls ops that PyTorch keeps in order by a token directly: statements are in order anyway."""
    for node in list(graph.nodes):
        if node.target is not torch.ops.higher_order.with_effects:
            continue
        token, op, *args = node.args
        with graph.inserting_before(node):
            direct = graph.call_function(op, tuple(args), dict(node.kwargs))
        rest = node.meta["val"][1:]
        direct.meta = {**node.meta, "val": rest[0] if len(rest) == 1 else rest, "effect": True}
        for user in list(node.users):
            place = user.args[1]
            if place == 0 or len(rest) == 1:
                user.replace_all_uses_with(token if place == 0 else direct)
                graph.erase_node(user)
            else:
                user.args = (direct, place - 1)
        graph.erase_node(node)


def live_nodes(roots: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that some depend on, and these."""
    live: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in live:
            live.add(node)
            stack += node.all_input_nodes
    return live
