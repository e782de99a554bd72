"""Results that lie in the memory of inputs or of each other: views of them, as in PyTorch."""

from __future__ import annotations

from collections.abc import Collection
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import fx

from opstep.frontends.torch.dims import Sizes, evaluated, hinted

neg_view: Any = torch._neg_view  # pyright: ignore[reportPrivateImportUsage]


class View(NamedTuple):
    """A tensor in the memory of another, its base. `start`: bytes from the base's first element on.
    `laid_out`: the base's strides; one that has others is copied first.
    """

    dtype: torch.dtype
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    start: Any
    is_conj: bool
    is_neg: bool
    laid_out: tuple[Any, ...]

    @staticmethod
    def between(base: torch.Tensor, t: torch.Tensor) -> View:
        start = t.storage_offset() * t.itemsize - base.storage_offset() * base.itemsize
        shape, strides = tuple(t.shape), tuple(t.stride())
        laid_out = tuple(base.stride())
        return View(t.dtype, shape, strides, start, t.is_conj(), t.is_neg(), laid_out)

    def numbers(self) -> tuple[Any, ...]:
        return *self.shape, *self.strides, *self.laid_out, self.start

    def bound(self, sizes: Sizes) -> View:
        shape, strides, laid_out = (
            tuple(evaluated(n, sizes) for n in numbers)
            for numbers in (self.shape, self.strides, self.laid_out)
        )
        start = evaluated(self.start, sizes)
        return self._replace(shape=shape, strides=strides, start=start, laid_out=laid_out)

    def of(self, base: torch.Tensor) -> torch.Tensor:
        if base.stride() != self.laid_out and base.numel():
            base = restrided(base, self.laid_out)
        if base.is_conj():
            base = torch.conj(base)
        if base.is_neg():
            base = neg_view(base)
        at = base.storage_offset() * base.itemsize + self.start
        if base.dtype is not self.dtype:
            base = _reinterpreted(base, self.dtype)
        seen = base.as_strided(self.shape, self.strides, at // self.dtype.itemsize)
        seen = torch.conj(seen) if self.is_conj else seen
        return neg_view(seen) if self.is_neg else seen


def restrided(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A copy whose elements lie so."""
    return torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)


def _reinterpreted(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All the memory that a tensor lies in, as elements of another type."""
    unit = max(t.itemsize, dtype.itemsize)
    count = t.untyped_storage().nbytes() // unit * unit // t.itemsize
    return t.as_strided((count,), (1,), 0).view(dtype)


def take_views(graph: fx.Graph, seen: Collection[int]) -> list[View | None]:
    """Has a graph give the base in place of a view, where the memory is an input's or is shared
    with another result. `seen`: the numbers of those results that the caller sees. Gives for each
    result what it is of the base.
    """
    output = graph.output_node()
    returned: Any = list(output.args[0])  # pyright: ignore[reportArgumentType]
    bases = [_base_of(n) if isinstance(n, fx.Node) else n for n in returned]
    shown: dict[fx.Node, set[fx.Node]] = {}
    for node, base in zip(returned, bases, strict=True):
        if isinstance(node, fx.Node):
            shown.setdefault(base, set()).add(node)
    views: list[View | None] = [None] * len(returned)
    visible = {bases[k] for k in seen}
    for k, (node, base) in enumerate(zip(returned, bases, strict=True)):
        if node is base:
            continue
        shares = base in visible and len(shown[base]) > 1
        if base.op == "placeholder" or shares or (k in seen and _overlaps(node.meta["val"])):
            views[k] = View.between(base.meta["val"], node.meta["val"])
            returned[k] = base
    output.args = (tuple(returned),)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and _base_of(node) is not node:
            graph.erase_node(node)
    return views


def _base_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node's result lies in: itself, where it is no view."""
    storage = _storage(node.meta.get("val"))
    while storage is not None and node.op == "call_function":
        maker: Any = node.args[0] if node.target is getitem else node
        held = (n for n in maker.all_input_nodes if _storage(n.meta.get("val")) == storage)
        base = next(held, None)
        if base is None:
            break
        node = base
    return node


def _storage(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _overlaps(t: torch.Tensor) -> bool:
    """Whether several of a tensor's elements are one in memory."""
    shape, strides = ([hinted(n) for n in numbers] for numbers in (t.shape, t.stride()))
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.Size(shape).numel() > extent
