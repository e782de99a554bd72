"""Indices that PyTorch refuses, found before a graph runs: ours would read NaN where there is no
element, and drop what is written there.

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
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
ALONG = (  # which take a tensor, an axis and an index into it
    "gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy",
    "index_reduce", "index_fill",
)  # fmt: skip
ROWS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")
LABELS = ("nll_loss_forward", "nll_loss2d_forward")
COUNTING_BACK = ("index_fill", "take", "put", "index", "index_put")

Check = Callable[[Sequence[Any]], None]


class Index(NamedTuple):
    """The last of the nodes of `chain` is an index of `node`'s, into an axis of that `size`. Where
    it is `ignored` it may be any.
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
            if self.ignored is not None:
                found = found[found != self.ignored]
            if found.numel():
                ends = [int(end) for end in found.aminmax()]
                for index in ends:
                    if not low <= index < size:
                        raise _refused(self.node, index, size)

        return check


def indices(graph: fx.Graph) -> Iterator[Index]:
    """Those that can be looked at before the graph runs."""
    for node in graph.nodes:
        for index, size in _taken(node):
            chain = _chain(index)
            if chain is not None:
                ignored: Any = node.args[4] if _name(node) in LABELS else None
                yield Index(node, chain, size, ignored)


def _name(node: fx.Node) -> str:
    return node.target._schema.name.removeprefix("aten::").removeprefix("_unsafe_")  # pyright: ignore


def _taken(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The indices that an op takes, each with the size of its axis."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    name, args = _name(node), node.args
    if name not in (*ALONG, *ROWS, *LABELS, *COUNTING_BACK):
        return
    x: Any = args[0].meta["val"]  # pyright: ignore - a tensor is the first argument
    if name in ROWS:
        yield args[1], x.shape[0]
    elif name in LABELS:
        yield args[1], x.shape[-1 if x.dim() < 2 else 1]
    elif name in ALONG:
        yield args[2], x.shape[args[1]] if x.dim() else 1
    elif name in ("take", "put"):
        yield args[1], x.numel()
    else:
        listed: Any = args[1]
        yield from ((i, n) for i, n in zip(listed, x.shape, strict=False) if i is not None)


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
    if index.meta["val"].dtype not in INTEGERS or all(n.op != "placeholder" for n in chain):
        return None
    return chain[::-1]


def _is_plain(node: fx.Node, value: Any) -> bool:
    """Whether it is a tensor of the host's, of integers or a single number, that an op makes."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    if value.dtype not in (*INTEGERS, torch.bool) and value.dim():
        return False
    is_op = isinstance(node.target, torch._ops.OpOverload) and not is_random(node.target)
    return node.op == "placeholder" or is_op


def _refused(node: fx.Node, index: int, size: int) -> InputError:
    source, span = source_line(*last_line(frames_of(node)))
    return InputError(
        f"{node.target} takes no index {index}: there are {size} elements",
        source=source,
        span=span,
    )
