"""Indices, and integers to divide by, that PyTorch refuses, found before a graph runs: ours would
read NaN where there is no element, drop what is written there, and have x // 0 = 0.

Looked at are those that a graph is given, or that few ops of integers make of what it is given, in
the host's memory: on a GPU every call would have to wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.node import map_arg

from opstep.frontends.missing import source_line
from opstep.frontends.torch.dims import Sizes, evaluated
from opstep.frontends.torch.drawing import is_random
from opstep.frontends.torch.sources import frames_of, last_line
from opstep.runtime.ir.errors import InputError

FEW = 8  # nodes from what is given to an index
ALONG = (  # which take a tensor, an axis and an index into it
    "gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy",
    "index_reduce", "index_fill",
)  # fmt: skip
ROWS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")
LABELS = ("nll_loss_forward", "nll_loss2d_forward")
COUNTING_BACK = ("index_fill", "put", "index", "index_put")
DIVIDING = ("floor_divide", "remainder", "fmod", "div")

Check = Callable[[Sequence[Any]], None]


class Index(NamedTuple):
    """The last of the nodes of `chain` is an index of `node`'s, into an axis of that `size`, or may
    be what is `ignored`; the size is None where `node` divides by it.
    """

    node: fx.Node
    chain: Sequence[fx.Node]
    size: Any
    ignored: int | None

    def bound(self, numbers: Mapping[fx.Node, int], sizes: Sizes) -> Check:
        """A check that raises `InputError` for a call's arguments, once sizes are known. `numbers`:
        which argument a placeholder is.
        """
        size = evaluated(self.size, sizes)
        low = -size if _name(self.node) in COUNTING_BACK else 0

        def check(given: Sequence[Any]) -> None:
            values: dict[fx.Node, Any] = {}
            for n in self.chain:
                if n in numbers:
                    values[n] = given[numbers[n]]
                else:
                    args, kwargs = map_arg((n.args, n.kwargs), values.__getitem__)
                    values[n] = n.target(*args, **kwargs)  # pyright: ignore - an op
            found = values[self.chain[-1]]
            if size is None and not found.all():
                raise _refused(self.node, "divides no integer by 0")
            if size is None or _outside(found, low, size) is None:
                return
            if self.ignored is not None:
                found = found[found != self.ignored]
            index = _outside(found, low, size)
            if index is not None:
                why = f"takes no index {index}: there are {size} elements"
                raise _refused(self.node, why)

        return check


def _outside(found: torch.Tensor, low: int, size: int) -> int | None:
    """The least or the largest of these indices, where that is not from `low` to below `size`."""
    extremes = map(int, found.aminmax()) if found.numel() else ()
    return next((index for index in extremes if not low <= index < size), None)


def indices(graph: fx.Graph) -> Iterator[Index]:
    """Those that can be looked at before the graph runs."""
    for node in graph.nodes:
        for index, size in _taken(node):
            chain = None if _is_wrapped(index, size) else _chain(index)
            if chain is not None:
                ignored: Any = node.args[4] if _name(node) in LABELS else None
                yield Index(node, chain, size, ignored)


def _name(node: fx.Node) -> str:
    return node.target._schema.name.removeprefix("aten::").removeprefix("_unsafe_")  # pyright: ignore


def _taken(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The indices that an op takes, each with the size of its axis, or what it divides by."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    name, args = _name(node), node.args
    if name in DIVIDING and isinstance(args[1], fx.Node):
        if not node.meta["val"].is_floating_point():
            yield args[1], None
        return
    if name not in (*ALONG, *ROWS, *LABELS, *COUNTING_BACK):
        return
    x: Any = args[0].meta["val"]  # pyright: ignore - a tensor is the first argument
    if name in ROWS:
        yield args[1], x.shape[0]
    elif name in LABELS:
        yield args[1], x.shape[-1 if x.dim() < 2 else 1]
    elif name in ALONG:
        yield args[2], x.shape[args[1]] if x.dim() else 1
    elif name == "put":
        yield args[1], x.numel()
    else:
        listed: Any = args[1]
        pairs = zip(listed, x.shape, strict=False)
        yield from ((i, n) for i, n in pairs if i is not None and not _is_mask(i))


def _is_mask(index: fx.Node) -> bool:
    return index.meta["val"].dtype in (torch.bool, torch.uint8)


def _is_wrapped(index: fx.Node, size: Any) -> bool:
    """Whether it is what a division by no more than the size leaves."""
    divisor = index.args[1] if index.target is torch.ops.aten.remainder.Scalar else None
    return isinstance(divisor, int) and isinstance(size, int) and 0 < divisor <= size


def _chain(index: fx.Node) -> list[fx.Node] | None:
    """The nodes that make an index, in order; None where that cannot be computed before."""
    chain: list[fx.Node] = []
    todo = [index]
    while todo:
        node = todo.pop()
        if node in chain:
            chain.remove(node)
        chain.append(node)
        value = node.meta.get("val")
        if len(chain) > FEW or not _is_plain(node, value):
            return None
        todo += node.all_input_nodes
    return chain[::-1] if any(n.op == "placeholder" for n in chain) else None


def _is_plain(node: fx.Node, value: Any) -> bool:
    """Whether it is a tensor of the host's, of integers or a single number, that an op makes."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    if value.dim() and (value.is_floating_point() or value.is_complex()):
        return False
    is_op = isinstance(node.target, torch._ops.OpOverload) and not is_random(node.target)
    return node.op == "placeholder" or is_op


def _refused(node: fx.Node, why: str) -> InputError:
    source, span = source_line(*last_line(frames_of(node)))
    return InputError(f"{node.target} {why}", source=source, span=span)
