"""The lines of Python that change tensors in place, told from a graph that still has such ops."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from opstep.api.origins import portable
from opstep.frontends.torch.sources import frames_of

Line = tuple[str, int]  # a file, as programs name it, and a line

_OPERATORS = {operator.setitem, operator.delitem} | {
    getattr(operator, name)
    for name in dir(operator)
    if name[0] == "i" and name[1:] in dir(operator)
}
_STATISTICS = (functional.batch_norm, functional.instance_norm)


def lines_in_place(module: fx.GraphModule, named: Collection[str] = ()) -> frozenset[Line]:
    """Of a model before PyTorch replaces such ops by others: those, too, whose result nobody reads
    are there. Parameters and buffers, `named` in an export, do not count: no variable has them.
    """
    graphs = [m.graph for m in module.modules() if isinstance(m, fx.GraphModule)]
    changing = [
        node for graph in graphs for node in graph.nodes
        if any(_is_visible(operand, named) for operand in _changed(node))
    ]  # fmt: skip
    return frozenset((portable(f.file), f.line) for n in changing for f in frames_of(n))


def _changed(node: fx.Node) -> Iterator[Any]:
    """The operands that it changes, or may change."""
    if node.op not in ("call_function", "call_method"):
        return
    if "out" in node.kwargs:
        yield node.kwargs["out"]
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target._schema.is_mutable:
            yield from node.args
        elif target.name() in ("aten::batch_norm", "aten::instance_norm"):
            yield from node.args[3:5]
        return
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    is_marked = name.endswith("_") and not name.endswith("__")
    if is_marked or target in _OPERATORS or name in ("__setitem__", "__set__", "set_data"):
        yield from node.args
    elif target in _STATISTICS:
        yield from node.args[1:3]
        yield from (node.kwargs.get(n) for n in ("running_mean", "running_var"))
    elif isinstance(target, torch._ops.HigherOrderOperator):
        return  # what it calls is a graph of its own
    elif _is_in_place(node):
        yield from node.args


def _is_in_place(node: fx.Node) -> bool:
    """Whether a function of PyTorch's is asked for that, as ``F.relu(x, inplace=True)``."""
    target: Any = node.target
    if not inspect.isfunction(target):
        return False
    try:
        given = inspect.signature(target).bind_partial(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return True
    return bool(given.get("inplace", False))


def _is_visible(operand: Any, named: Collection[str]) -> bool:
    """Whether it is a tensor that a variable may have: no parameter or buffer."""
    if isinstance(operand, list | tuple):
        return any(_is_visible(one, named) for one in operand)
    if not isinstance(operand, fx.Node):
        return False
    source = operand.meta.get("grapharg")
    name = str(getattr(getattr(source, "source", None), "name", "") or operand.target)
    is_named = operand.name in named or "_parameters" in name or "_buffers" in name
    return operand.op != "placeholder" or not is_named
