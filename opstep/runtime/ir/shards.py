"""Named tensors of which each rank has a part: ``param w: f32[1024, 4096] over model``.

A declaration says the whole type. On a rank the program knows the tensor by the type of its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from opstep.runtime.ir.diagnostics import did_you_mean, names_listed
from opstep.runtime.ir.graph import Declaration, Span
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType


@dataclass(frozen=True)
class Shard:
    """How a tensor is shared out: along `axis`, to the ranks of each group, in their order."""

    whole: TensorType
    axis: int
    group: Group

    @property
    def type(self) -> TensorType:
        """Of the part that a rank has."""
        dims = [*self.whole.shape]
        dims[self.axis] //= self.group.size
        return self.whole.with_shape(dims)

    def part(self, rank: int) -> tuple[slice, ...]:
        """Which elements of the whole a rank has."""
        extent: int = self.type.shape[self.axis]  # pyright: ignore[reportAssignmentType]
        first = self.group.index(rank) * extent
        return (*[slice(None)] * self.axis, slice(first, first + extent))


class Unsharded(Mismatch):
    """A tensor cannot be shared out as its declaration says. `span`: where it says so."""

    def __init__(self, message: str, span: Span, hint: str = ""):
        super().__init__(message, hint=hint)
        self.span = span


def shard_of(d: Declaration, mesh: Mesh) -> Shard | None:
    """What a declaration says about shards; None where it says nothing. Raises `Unsharded`."""
    if d.sharding is None:
        return None
    for k, name in enumerate(d.sharding.over):
        if name.text not in mesh.names:
            hint = did_you_mean(name.text, mesh.names) or f"it has {names_listed(mesh.names)}"
            if not mesh.declared:
                message = f"there is no mesh with an axis {name.text}"
                raise Unsharded(message, name.span, f"declare one: mesh {name.text}: 4")
            raise Unsharded(f"the mesh has no axis {name.text}", name.span, hint)
        if name.text in [n.text for n in d.sharding.over[:k]]:
            raise Unsharded(f"axis {name.text} is named twice", name.span, "name it once")
    axis, rank = d.sharding.axis, d.type.rank
    over = Span(d.sharding.over[0].span.start, d.sharding.over[-1].span.end)
    at = d.sharding.axis_span if axis else over
    if axis >= rank:
        has = f"axes 0 to {rank - 1}" if rank > 1 else "axis 0 only" if rank else "no axes"
        raise Unsharded(f"{d.type} has {has}: nothing is split along axis {axis}", at)
    names = {name.text for name in d.sharding.over}
    group = Group(mesh, tuple(n for n in mesh.names if n in names))
    if d.type.is_concrete and d.type.shape[axis] % group.size:
        dim = d.type.shape[axis]
        others = [k for k, n in enumerate(d.type.shape) if n and not n % group.size]
        hint = f"axis {others[0]} has {d.type.shape[others[0]]} elements" if others else ""
        message = f"{group} cannot share axis {axis} of {d.type} evenly: it has {dim} elements"
        raise Unsharded(message, over, hint)
    return Shard(d.type, axis, group)


def on_mesh(
    declared: Iterable[tuple[str, Declaration]], mesh: Mesh
) -> tuple[dict[str, Declaration], dict[str, Shard]]:
    """Declarations as ranks know them, with the types of their parts, of which they say no more;
    and how those are shared out that several ranks have parts of. What is declared wrongly stays.
    """
    tensors: dict[str, Declaration] = {}
    shards: dict[str, Shard] = {}
    for name, d in declared:
        tensors[name] = d
        if not can_be_shared(d, mesh):  # reported where the declaration is checked
            continue
        shard = shard_of(d, mesh)
        if shard is not None and shard.group.size > 1 and d.type.is_concrete:
            tensors[name] = replace(d, type=shard.type, sharding=None)
            shards[name] = shard
    return tensors, shards


def can_be_shared(d: Declaration, mesh: Mesh) -> bool:
    """Whether what a declaration says about shards is right; so is one that says nothing."""
    try:
        shard_of(d, mesh)
    except Unsharded:
        return False
    return True


def replicas(shards: Mapping[str, Shard], name: str, axes: Iterable[str]) -> tuple[str, ...]:
    """Of some axes of the mesh those along which ranks should have the same of a tensor."""
    apart = shards[name].group.axes if name in shards else ()
    return tuple(axis for axis in axes if axis not in apart)
