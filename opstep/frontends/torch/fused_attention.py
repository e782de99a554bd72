"""PyTorch's kernels of attention as the one op that `attention` has: graphs that were traced where
a GPU was have one of several, each with results of its own that only its gradient reads.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx

import opstep.frontends.torch.attention  # noqa: F401 - registers the op

aten = torch.ops.aten
_KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention")
_KERNELS += ("fused_attention_overrideable", "flash_attention_for_cpu")


def _overloads(suffix: str = "") -> set[Any]:
    packets = (getattr(aten, f"_scaled_dot_product_{kernel}{suffix}", None) for kernel in _KERNELS)
    return {packet.default for packet in packets if packet is not None}


FORWARD, BACKWARD = _overloads(), _overloads("_backward")


def single_attention(graph: fx.Graph) -> dict[str, str]:
    """Replaces those that draw no random numbers, and whose other results nothing else reads. Gives
    the new names of results, by the old ones.
    """
    renamed: dict[str, str] = {}
    for target, replaced in ((BACKWARD, _backward), (FORWARD, _forward)):
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in target:
                given = _arguments(node)
                if not given["dropout_p"]:
                    renamed |= replaced(graph, node, given)
    return renamed


def _arguments(node: fx.Node) -> dict[str, Any]:
    """By the names of the op's schema, which differ between kernels in three places."""
    schema: Any = node.target
    found = {a.name: a.default_value for a in schema._schema.arguments if a.has_default_value()}
    names = [a.name for a in schema._schema.arguments]
    found |= dict(zip(names, node.args, strict=False)) | node.kwargs
    found["mask"] = found.get("attn_bias", found.get("attn_mask"))
    found["grad"] = found.get("grad_out", found.get("grad_out_"))
    return found


def _common(given: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The operands, and the attributes, as ops of ours take them."""
    q, k, v = (given[name] for name in ("query", "key", "value"))
    gqa = q.meta["val"].shape[-3] != k.meta["val"].shape[-3]
    return [q, k, v, given["mask"]], [given["is_causal"], given["scale"], gqa]


def _forward(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> dict[str, str]:
    results = _results(node)
    if results is None or any(results.get(k) for k in range(1, len(node.meta["val"]))):
        return {}  # another one is read
    operands, attributes = _common(given)
    with graph.inserting_before(node):
        new = graph.call_function(torch.ops.opstep.attention.default, (*operands, *attributes))
    new.meta = {**node.meta, "val": node.meta["val"][0]}
    renamed = {}
    for old in results.get(0, []):
        old.replace_all_uses_with(new)
        renamed[old.name] = new.name
    _erase(graph, node)
    return renamed


def _backward(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> dict[str, str]:
    operands, attributes = _common(given)
    wanted = given.get("grad_input_mask") or (True, True, True, False)
    places = [0, 1, 2, 3] if wanted[3] and operands[3] is not None else [0, 1, 2]
    op = torch.ops.opstep.attention_backward.default
    with graph.inserting_before(node):
        new = graph.call_function(op, (given["grad"], places, *operands, *attributes))
    new.meta = {**node.meta, "val": list(node.meta["val"][: len(places)])}
    for user in list(node.users):
        user.replace_input_with(node, new)
    _erase(graph, node)
    return {}


def _results(node: fx.Node) -> dict[int, list[fx.Node]] | None:
    """The nodes that are read of its results, by number; None where it is read as a whole."""
    found: dict[int, list[fx.Node]] = {}
    for user in node.users:
        if user.target is not getitem:
            return None
        number: Any = user.args[1]
        if user.users:
            found.setdefault(number, []).append(user)
    return found


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    for user in list(node.users):
        graph.erase_node(user)
    graph.erase_node(node)
