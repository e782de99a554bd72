"""In-place ops as ones that give a new tensor, where nothing else sees the memory that they change.

PyTorch does this for every graph, with all aliases, by tracing it again, which takes longer than
the rest of an import. Most models change only what they have just computed (``relu_``, ``+=``).
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from opstep.frontends.torch.rules.registry import RULES, key_of

aten = torch.ops.aten
# Composed of other ops, which could give back an operand; these never do.
_NEW = {
    aten.linear.default, aten.matmul.default, aten.layer_norm.default, aten.batch_norm.default,
    aten.group_norm.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv2d.padding, aten.conv_transpose2d.input, aten.softmax.int, aten.log_softmax.int,
    aten.max_pool2d.default, aten.adaptive_avg_pool2d.default,
    aten.scaled_dot_product_attention.default,
}  # fmt: skip


def replace_in_place(exported: ExportedProgram) -> None:
    """Replaces the in-place ops, up to the first for which this is not plain to see."""
    if any(_is_in_place(node) for node in exported.graph.nodes):
        _replace(exported)
        exported.graph_module.recompile()


def _replace(exported: ExportedProgram) -> None:
    graph = exported.graph
    memory: dict[fx.Node, set[fx.Node]] = {}  # by node: all that may have the same memory
    places = {node: k for k, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op != "call_function":
            memory[node] = {node}
        elif not _is_in_place(node):
            _note(node, memory)
        else:
            op = _functional(node)
            if op is None or not _is_own(node, memory, places):
                return
            with graph.inserting_after(node):
                new = graph.call_function(op, node.args, dict(node.kwargs))
            new.meta = dict(node.meta)
            places[new], memory[new] = places[node], {new}
            for old in (node.all_input_nodes[0], node):
                for user in [u for u in old.users if places[u] > places[node]]:
                    user.replace_input_with(old, new)
                exported.graph_signature.replace_all_uses(old.name, new.name)
            graph.erase_node(node)


def _is_in_place(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _note(node: fx.Node, memory: dict[fx.Node, set[fx.Node]]) -> None:
    """Notes whose memory a node may have."""
    shared = {node}
    for operand in node.all_input_nodes if _may_alias(node.target) else ():
        shared |= memory[operand]
    for one in shared:
        memory[one] = shared


def _may_alias(op: Any) -> bool:
    if op in _NEW:
        return False
    if op is getitem or not isinstance(op, torch._ops.OpOverload):
        return True
    return op._can_decompose() or any(r.alias_info for r in op._schema.returns)


def _is_own(
    node: fx.Node, memory: dict[fx.Node, set[fx.Node]], places: dict[fx.Node, int]
) -> bool:  # fmt: skip
    """Whether the memory that a node changes is seen from then on as the operand that it changes,
    and not otherwise. That of placeholders outlives the graph.
    """
    whole = node.args[0]
    if not isinstance(whole, fx.Node):
        return False
    others = memory[whole] - {whole}
    later = (u for m in others for u in m.users if places[u] >= places[node])
    return all(m.op == "call_function" for m in memory[whole]) and not any(later)


def _is_alike(node: fx.Node) -> bool:
    """Whether numbers of one kind have one dtype."""
    values = [n.meta["val"] for n in node.all_input_nodes]
    dtypes = [v.dtype for v in values if isinstance(v, torch.Tensor)]
    return all(t == dtypes[0] or t.is_floating_point != dtypes[0].is_floating_point for t in dtypes)


def _functional(node: fx.Node) -> Any:
    """The op that gives a new tensor; None where there is none, or it could have another dtype, or
    draw other numbers.
    """
    op: Any = node.target
    schema = op._schema
    name = schema.name.partition("::")[2]
    packet = getattr(aten, name[:-1], None) if op.namespace == "aten" else None
    new = getattr(packet, op._overloadname, None)
    if not name.endswith("_") or new is None or key_of(new) not in RULES:
        return None
    is_off = name == "dropout_" and node.args[2:] == (False,)
    if (torch.Tag.nondeterministic_seeded in new.tags and not is_off) or not _is_alike(node):
        return None
    first, *rest = ([(a.name, str(a.type)) for a in s.arguments[1:]] for s in (new._schema, schema))
    return new if [first] == rest else None
