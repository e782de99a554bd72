"""Meshes: how the ranks of a program are arranged, and the groups of them that talk to each other.

    mesh data: 4, model: 2

Ranks are numbered along the mesh, its last axis first: rank 3 of this one is `data` 1, `model` 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

WORLD = "ranks"  # the one axis where no mesh is declared
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Mesh:
    """Axes with their extents, in order. `declared`: somebody gave them these names."""

    axes: tuple[tuple[str, int], ...] = ((WORLD, 1),)
    declared: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name}: {extent}" for name, extent in self.axes)

    @cached_property
    def ranks(self) -> int:
        return prod(extent for _, extent in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each axis."""
        found = {}
        for name, extent in reversed(self.axes):
            rank, found[name] = divmod(rank, extent)
        return found

    def alone(self) -> Mesh:
        """The same axes around one rank."""
        return Mesh(tuple((name, 1) for name, _ in self.axes), self.declared)


@dataclass(frozen=True)
class Group:
    """The ranks that differ along some axes of a mesh only: who takes part in a collective."""

    mesh: Mesh
    axes: tuple[str, ...]  # in the order of the mesh

    @cached_property
    def size(self) -> int:
        return prod(extent for name, extent in self.mesh.axes if name in self.axes)

    @property
    def is_whole(self) -> bool:
        return self.axes == self.mesh.names

    @property
    def name(self) -> str:
        """As an attribute has it: its axes, or `none` where nobody has given them names."""
        if not self.mesh.declared:
            return "none"
        names = ", ".join(self.axes)
        return names if len(self.axes) == 1 else f"[{names}]"

    def __str__(self) -> str:
        along = f" along {' and '.join(self.axes)}" if self.mesh.declared else ""
        return f"{self.size} ranks{along}"

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks of the group that a rank is in, in order."""
        at = self.mesh.coordinates(rank)
        ranges = [range(n) if axis in self.axes else (at[axis],) for axis, n in self.mesh.axes]
        return tuple(map(self._number, product(*ranges)))

    def index(self, rank: int) -> int:
        """The place of a rank in its group."""
        at, index = self.mesh.coordinates(rank), 0
        for axis, extent in self.mesh.axes:
            if axis in self.axes:
                index = index * extent + at[axis]
        return index

    def groups(self) -> Iterator[tuple[int, ...]]:
        """All groups along these axes: together they are the mesh."""
        ranges = [(0,) if axis in self.axes else range(n) for axis, n in self.mesh.axes]
        for first in product(*ranges):
            yield self.members(self._number(first))

    def _number(self, place: Sequence[int]) -> int:
        number = 0
        for at, (_, extent) in zip(place, self.mesh.axes, strict=True):
            number = number * extent + at
        return number


ONE_RANK = Mesh()
ALONE = Group(ONE_RANK, (WORLD,))
