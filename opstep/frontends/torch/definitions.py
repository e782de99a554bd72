"""Definitions of ops by others, for ops and arguments that no rule translates: PyTorch's own where
we have none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from opstep.frontends.missing import Missing
from opstep.frontends.torch.compositions import COMPOSITIONS

Definition = Callable[..., Any]


class Definitions:
    """Those that a graph needs. Each may bring ops that need another, until nothing new is found;
    an op stays as it is within its own definition. `table` has those that were needed.
    """

    def __init__(self, kept: Collection[Any] = ()):
        """`kept`: ops that are not replaced."""
        self.table: dict[Any, Definition] = {}
        self.kept = kept
        self._returned: set[Any] = set()  # within their own definitions

    def add(self, targets: Collection[Any]) -> set[Any]:
        """Adds those of these ops, where there are some; gives the ops that are new."""
        new = set(targets) - self.table.keys() - set(self.kept)
        known = _table() if new else {}
        found = {t: known[t] for t in new if t in known}
        self.table |= once(found, self._returned)
        return set(found)

    def expand(self, graph: fx.Graph, targets: Collection[Any]) -> bool:
        """Writes these ops as their definitions; whether there was a new one."""
        new, found = self.add(targets), False
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in new:
                found = _expanded(graph, node, self.table) or found
        return found

    def explained(self, shown: Missing, missing: Missing) -> Missing:
        """`shown`, with why it is missing where definitions lead in a circle. `missing`: an op that
        came of it.
        """
        if missing.op not in map(str, self._returned):
            return shown
        why = f"what PyTorch or opstep defines it by comes back to {missing.op}"
        return shown._replace(reason=why)


def once(table: Mapping[Any, Definition], returned: set[Any]) -> dict[Any, Definition]:
    """Definitions that leave an op as it is within its own; `returned` is told of it."""
    active: set[Any] = set()

    def guarded(op: Any, definition: Definition) -> Definition:
        @wraps(definition)
        def defined(*args: Any, **kwargs: Any) -> Any:
            if op in active:
                returned.add(op)
                return NotImplemented
            active.add(op)
            try:
                return definition(*args, **kwargs)
            finally:
                active.discard(op)

        return defined

    return {op: guarded(op, definition) for op, definition in table.items()}


def without_definition(kept: Collection[Any] = ()) -> Callable[[Any], bool]:
    """Whether an op has none, or is one of those that are `kept` as they are."""
    table = _table()
    return lambda op: op in kept or op not in table


def _table() -> dict[Any, Any]:
    return {**decomposition_table, **torch.export.default_decompositions(), **COMPOSITIONS}


def _expanded(graph: fx.Graph, node: fx.Node, table: dict[Any, Definition]) -> bool:
    operands = node.all_input_nodes
    values = [n.meta["val"] for n in operands]
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
    if mode is None:
        return False

    def defined(*given: Any) -> Any:
        known = dict(zip(operands, given, strict=True))
        found = table[node.target](*_with(node.args, known), **_with(dict(node.kwargs), known))
        return tuple(found) if isinstance(found, tuple) else found  # fx knows no named tuples

    try:
        with mode, torch.no_grad():
            traced = make_fx(defined, table)(*values)
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
