"""Tables that data comes from: columns by name, read when they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from opstep.runtime.ir.types import TensorType

Read = Callable[[TensorType], Any]  # the column for an input of that type, as an array or like one

TRAINED = ("train", "training")
VALIDATED = ("validation", "valid", "val", "test", "dev")


class Table:
    """Columns by name. `source`: where they are, in messages; `classes`: what the numbers of a
    column stand for, of those that are numbered here.
    """

    def __init__(
        self, source: str, columns: Mapping[str, Read],
        classes: Mapping[str, Sequence[str]] | None = None,
    ):  # fmt: skip
        self.source = source
        self.columns = dict(columns)
        self.classes = dict(classes or {})

    def part(self, name: str) -> Table | None:
        """The columns of a part, such as ``train``: ``train_x`` and ``x_train`` are its x. None
        where it has none.
        """
        found = {}
        for column, read in self.columns.items():
            for mark in "_./-":
                if column.startswith(name + mark):
                    found[column[len(name) + 1 :]] = read
                elif column.endswith(mark + name):
                    found[column[: -len(name) - 1]] = read
        return Table(f"{self.source}:{name}", found) if found else None

    def part_with(self, wanted: Collection[str], parts: Sequence[str]) -> Table:
        """This table, or the first of these parts that has all columns that are wanted, where the
        table itself does not.
        """
        if not self.columns.keys() >= set(wanted):
            for name in parts:
                part = self.part(name)
                if part is not None and part.columns.keys() >= set(wanted):
                    return part
        return self
