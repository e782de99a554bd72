"""Definitions of ops by others, for ops and arguments that no rule translates: PyTorch's own where
there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from opstep.frontends.torch.compositions import COMPOSITIONS

ROUNDS = 4  # of definitions: each may bring ops that need another


def definitions(targets: Collection[Any]) -> dict[Any, Any]:
    """Those of these ops, where there are some."""
    if not targets:
        return {}
    table = _table()
    return {t: table[t] for t in targets if t in table}


def without_definition(kept: Collection[Any] = ()) -> Callable[[Any], bool]:
    """Whether an op has none, or is one of those that are `kept` as they are."""
    table = _table()
    return lambda op: op in kept or op not in table


def _table() -> dict[Any, Any]:
    return {**COMPOSITIONS, **decomposition_table, **torch.export.default_decompositions()}


def expand(graph: fx.Graph, targets: Collection[Any]) -> bool:
    """Writes these ops as their definitions; whether there was one."""
    table, found = definitions(targets), False
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in table:
            found = _expanded(graph, node, table[node.target]) or found
    return found


def _expanded(graph: fx.Graph, node: fx.Node, definition: Callable[..., Any]) -> bool:
    operands = node.all_input_nodes
    values = [n.meta["val"] for n in operands]
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
    if mode is None:
        return False

    def defined(*given: Any) -> Any:
        known = dict(zip(operands, given, strict=True))
        return definition(*_with(node.args, known), **_with(dict(node.kwargs), known))

    try:
        with mode, torch.no_grad():
            traced = make_fx(defined)(*values)
    except Exception:  # of any class: it is not defined for these arguments
        return False
    if traced.graph.find_nodes(op="get_attr"):  # a tensor that the model does not have
        return False
    inputs = traced.graph.find_nodes(op="placeholder")
    _replace(graph, node, traced, dict(zip(inputs, operands, strict=True)))
    return True


def _with(argument: Any, known: Mapping[fx.Node, Any]) -> Any:
    """An argument of a node with values for nodes, in lists that may be changed."""
    if isinstance(argument, list | tuple):
        return [_with(a, known) for a in argument]
    if isinstance(argument, dict):
        return {k: _with(a, known) for k, a in argument.items()}
    return known[argument] if isinstance(argument, fx.Node) else argument


def _replace(
    graph: fx.Graph, node: fx.Node, traced: fx.GraphModule, known: dict[fx.Node, fx.Node]
) -> None:
    """Has the traced ops in place of the node, with its line and its module, and the node that was
    the first to be replaced (``defines``).
    """
    with graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op in ("placeholder", "output"):
                continue
            known[inner] = graph.node_copy(inner, known.__getitem__)
            known[inner].meta = {"defines": node, **node.meta, "val": inner.meta["val"]}
    returned: Any = traced.graph.output_node().args[0]
    if isinstance(returned, fx.Node):
        node.replace_all_uses_with(known[returned])
        return
    for user in list(node.users):
        assert user.target is getitem
        user.replace_all_uses_with(known[returned[user.args[1]]])
