"""Maxima without their indices, which PyTorch saves for the backward, and our gradient finds again.

A graph stays one that PyTorch can run itself: so the joint graph finds indices again in the
backward, instead of saving them, and only our copies of its halves are without.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_ALONE: dict[Any, Any] = {
    aten.max_pool2d_with_indices.default: aten.max_pool2d.default,
    aten.max_pool3d_with_indices.default: aten.max_pool3d.default,
}
_BACKWARD = {
    aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices_backward.default,
}


def find_indices_again(joint: fx.Graph) -> None:
    """In the backward."""
    for node in _calls(joint, _BACKWARD):
        indices: Any = node.args[-1]
        with joint.inserting_before(node):
            again = joint.node_copy(indices.args[0])
            found = joint.call_function(getitem, (again, 1))
        again.meta = {**again.meta, "partitioner_tag": "is_backward"}
        found.meta = {**indices.meta, "partitioner_tag": "is_backward"}
        node.args = (*node.args[:-1], found)


def drop_indices(graph: fx.Graph) -> None:
    """Of maxima whose indices nothing of ours reads."""
    for node in _calls(graph, _BACKWARD):
        indices, node.args = node.args[-1], (*node.args[:-1], node.args[1])
        node.meta["reduced"] = "its indices are not kept"
        if isinstance(indices, fx.Node) and indices.op == "call_function" and not indices.users:
            pooled: Any = indices.args[0]
            graph.erase_node(indices)
            if not pooled.users:
                graph.erase_node(pooled)
    for node in _calls(graph, _ALONE):
        if any(user.target is not getitem or user.args[1] != 0 for user in node.users):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(_ALONE[node.target], node.args, dict(node.kwargs))
        new.meta = {**node.meta, "val": node.meta["val"][0]}
        for user in list(node.users):
            user.replace_all_uses_with(new)
            graph.erase_node(user)
        graph.erase_node(node)


def _calls(graph: fx.Graph, targets: Any) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function" and n.target in targets]
