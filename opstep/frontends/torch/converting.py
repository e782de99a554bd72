"""A model in another float type."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.node import map_aggregate

from opstep.frontends.torch.dims import DTYPES
from opstep.frontends.torch.evaluating import results_of
from opstep.runtime.ir.errors import InputError, UnknownName

FLOATS = {ours.name: theirs for theirs, ours in DTYPES.items() if ours.is_float}

LARGEST = {torch.finfo(t).max for t in FLOATS.values()}  # what masks are filled with


def float_type(name: str) -> torch.dtype:
    """The type that ``bf16`` names. Raises `InputError`."""
    if name not in FLOATS:
        raise UnknownName(f"{name} is no float type", name, FLOATS)
    return FLOATS[name]


def converted(exported: ExportedProgram, dtype: torch.dtype) -> ExportedProgram:
    """A graph of ATen ops, with its weights, whose floats are all of that type. Nodes keep their
    names.
    """
    if any(n.op == "get_attr" for n in exported.graph.nodes):
        raise InputError("a model with control flow cannot be converted to another type")
    graph, most = fx.Graph(), torch.finfo(dtype).max
    graph.output(graph.graph_copy(exported.graph, {}))
    for node, before in zip(graph.nodes, exported.graph.nodes, strict=True):
        node.meta, node.name = dict(before.meta), before.name  # fx avoids names of built-ins

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, float) and abs(leaf) in LARGEST and abs(leaf) > most:
            return math.copysign(most, leaf)
        is_float = isinstance(leaf, torch.dtype) and leaf.is_floating_point
        return dtype if is_float else leaf

    for node in graph.nodes:
        node.args = map_aggregate(node.args, changed)
        node.kwargs = map_aggregate(node.kwargs, changed)
        if node.op == "placeholder":
            node.meta["val"] = in_type(node.meta.get("val"), dtype)
        elif node.op == "call_function":
            node.meta["val"] = _inferred(node)
    found = copy.copy(exported)
    found._graph_module = fx.GraphModule(exported.graph_module, graph)
    found._state_dict = {k: in_type(t, dtype) for k, t in exported.state_dict.items()}
    found._constants = {k: in_type(t, dtype) for k, t in exported.constants.items()}
    return found


def in_type(found: Any, dtype: torch.dtype) -> Any:
    """Floats in that type; anything else as it is."""
    is_float = isinstance(found, torch.Tensor) and found.is_floating_point()
    return found.detach().to(dtype) if is_float else found


def _inferred(node: fx.Node) -> Any:
    """What PyTorch says that a node gives, from what its operands are."""
    before = node.meta.get("val")
    if not any(isinstance(v, torch.Tensor) for v in results_of(before)):
        return before

    def meta(leaf: Any) -> Any:
        return leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf

    args = map_aggregate(node.args, meta)
    kwargs = map_aggregate(node.kwargs, meta)
    modes = (v.fake_mode for v in results_of(before) if hasattr(v, "fake_mode"))
    try:
        with next(modes), torch.no_grad():
            return node.target(*args, **kwargs)  # pyright: ignore
    except (RuntimeError, NotImplementedError) as error:
        message = str(error).split("\n")[0]
        raise InputError(f"{node.target} cannot be converted: {message}") from None
