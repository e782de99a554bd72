"""Tables made to fit a graph: a column for each input, of its shape and element type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.diagnostics import did_you_mean, names_listed
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.types import DType, TensorType, dtype_of
from opstep.runtime.ir.wording import Argument, Wording
from opstep.training.data import Dataset
from opstep.training.files import (
    ARROW,
    KINDS,
    TRAINED,
    VALIDATED,
    Read,
    Table,
    column_of,
    split,
    table_of,
)

CHECKED = 1 << 22  # elements that are looked at together


class Origin(NamedTuple):
    """What a data set was made of: tables, and columns and numbers that were given by name."""

    tables: tuple[Table, ...]
    columns: Mapping[str, tuple[str, Read]]  # where it is, how it is read
    numbers: Mapping[str, float]
    whole: tuple[Table, ...] = ()  # those that the tables are parts of

    @property
    def source(self) -> str:
        """For messages."""
        return " and ".join([t.source for t in self.tables] or ["the data"])


def origin_of(data: Any) -> Origin:
    """What is said of data: a file or folder (``FILE``, ``FILE:PART``), a column or a number by
    name (``x=FILE.npy``, ``x=FILE.npz:KEY``, ``x=0.5``), several of these; or arrays by name.
    """
    given: list[Any] = [data] if isinstance(data, (str, Path, Mapping)) else list(data)
    tables: list[Table] = []
    whole: list[Table] = []
    columns: dict[str, tuple[str, Read]] = {}
    numbers: dict[str, float] = {}
    named: list[tuple[str, Any]] = []
    for one in given:
        if isinstance(one, Mapping):
            named += one.items()
            continue
        name, equals, spec = str(one).partition("=")
        if equals and name.isidentifier() and not Path(str(one)).exists():
            named.append((name, spec))
        else:
            tables.append(table_of(one))
            whole.append(table_of(split(str(one))[0]))
    for name, value in named:
        if name in columns or name in numbers:
            raise InputError(f"{name} is given twice")
        number = _number(value)
        if number is not None:
            numbers[name] = number
        elif isinstance(value, (str, Path)):
            columns[name] = (str(value), column_of(value, name))
        else:
            array = value if isinstance(value, np.memmap) else _as_array(name, value)
            columns[name] = (name, lambda t, array=array: array)
    return Origin(tuple(tables), columns, numbers, tuple(whole))


def _as_array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{name} is no array: its rows differ in length") from None


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return value
    try:
        return float(value) if isinstance(value, str) and not Path(value).exists() else None
    except ValueError:
        return None


def fitted(
    origin: Origin, types: Mapping[str, TensorType], parts: Sequence[str] = TRAINED,
    rounded: bool = False,
) -> Dataset:  # fmt: skip
    """The columns that inputs of these types are named after, as they take them. `parts`: where not
    all of the names are there, ``train_x`` is x. `rounded`: floats may lose digits. Raises
    `InputError`.
    """
    for name in (*origin.columns, *origin.numbers):
        if name not in types:
            raise UnknownName(f"there is no input {name}", name, types, "the inputs are")
    wanted = [n for n in types if n not in origin.columns and n not in origin.numbers]
    tables = [table.part_with(wanted, parts) for table in origin.tables]
    columns, constants, sources = {}, {}, {}
    _check_used(origin, tables, wanted)
    for name, t in types.items():
        if name in origin.numbers:
            constants[name] = _constant(name, t, origin.numbers[name])
            continue
        sources[name], read = _found(name, t, origin, tables)
        columns[name] = _Fitting(sources[name], name, t, rounded).column(read(t))
    if not columns:
        raise InputError("the graph has no input that rows of data go to")
    where = " and ".join(t.source for t in tables) or origin.source
    classes = {
        name: known
        for table in tables
        for name, known in table.classes.items()
        if known and sources.get(name) == f"{table.source}: {name}"
    }
    return Dataset(columns, where, constants, sources, classes=classes)


def _found(name: str, t: TensorType, origin: Origin, tables: Sequence[Table]) -> tuple[str, Read]:
    """Where the column of an input is, and how it is read."""
    if name in origin.columns:
        return origin.columns[name]
    for table in tables:
        if name in table.columns:
            return f"{table.source}: {name}", table.columns[name]
    there = [column for table in tables for column in table.columns]
    if not there:
        hint = Wording("give ", Argument("data", {name: "FILE.npy"}))
    else:
        near = did_you_mean(name, there)
        example = origin.tables[0].source.rpartition(":")[0] or origin.tables[0].source
        path, _ = split(example)
        many = path.suffix.lower() in ARROW and t.rank == 2  # a number in each
        columns = "COLUMN,COLUMN,…" if many else "COLUMN"
        which = Wording(Argument("data", {name: f"{path}:{columns}"}), " says which is meant")
        hint = Wording(f"{near}; " if near else "", *which.ways[0],
                       f", of {names_listed(there)}")  # fmt: skip
    raise InputError(f"{origin.source}: there is no column for input {name}: {t}", hint=hint)


def _check_used(origin: Origin, tables: Sequence[Table], wanted: Sequence[str]) -> None:
    """Complains of a table that no input has a column of, unless a validation may have."""
    taken: dict[str, str] = {}
    for table, part in zip(origin.tables, tables, strict=True):
        mine = [name for name in wanted if name in part.columns]
        first = next((taken[name] for name in mine if name in taken), None)
        if first and all(name in taken for name in mine):
            hint = f"{names_listed(mine)}: from {first}, which is named first; put them in one file"
            raise InputError(f"{table.source}: it has no rows that are used", hint=hint)
        if not mine and not any(table.part(name) for name in VALIDATED):
            there = names_listed(part.columns)
            raise InputError(
                f"{table.source}: no input of the loss is called {there}",
                hint=f"data is wanted for {names_listed(wanted) or 'none'}",
            )
        taken |= dict.fromkeys(mine, table.source)


def _constant(name: str, t: TensorType, number: float) -> np.ndarray:
    if t.rank:
        raise InputError(f"input {name} is {t}: a number is no data for it", hint=f"give {KINDS}")
    value = np.asarray(number).astype(t.dtype.numpy)
    if not t.dtype.is_float and value != number:
        raise InputError(f"input {name} is {t}: it cannot be {number}")
    return value


class _Column:
    """Rows of an array, converted when they are taken."""

    def __init__(self, array: Any, row: tuple[int, ...], dtype: np.dtype):
        self.array = array
        self.shape = (len(array), *row)
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> np.ndarray:
        taken = np.asarray(self.array[rows])
        return taken.astype(self.dtype, copy=False).reshape(len(taken), *self.shape[1:])


class _Fitting(NamedTuple):
    """A column on its way to the input `name` of type `type`; `where` it comes from."""

    where: str
    name: str
    type: TensorType
    rounded: bool

    def column(self, array: Any) -> Any:
        t = self.type
        if not t.rank:
            raise InputError(
                f"input {self.name} is {t}, which takes no rows",
                hint=Wording("give a number: ", Argument("data", {self.name: 0.5})),
            )
        try:
            actual = dtype_of(array.dtype)
        except KeyError:
            raise InputError(
                f"{self.where} has elements of type {array.dtype}, which no tensor has"
            ) from None
        row = self._row(TensorType(actual, array.shape))
        if actual is t.dtype and array.shape[1:] == row:
            return array
        if actual is not t.dtype and not _always_exact(actual, t.dtype):
            self._check_values(array, actual)
        return _Column(array, row, t.dtype.numpy)

    def _row(self, actual: TensorType) -> tuple[int, ...]:
        """The shape that a row is to have; axes of one element may be left out, or be added."""
        wanted: Any = self.type.shape[1:]
        row: Any = actual.shape[1:]
        if actual.rank and len(row) == len(wanted) and _fits(row, wanted):
            return row
        rest = [d for d in row if d != 1]
        if actual.rank and _fits(rest, [d for d in wanted if d != 1]):
            sizes = iter(rest)
            return tuple(1 if d == 1 else next(sizes) for d in wanted)
        raise InputError(f"{self.where} is {actual}, and input {self.name} takes {self.type}")

    def _check_values(self, array: Any, actual: DType) -> None:
        """Complains of the first value that the input's element type does not have."""
        target, per_row = self.type.dtype, max(1, int(np.prod(array.shape[1:], dtype=int)))
        if self.rounded and actual.is_float and target.is_float:
            return
        at_once = max(1, CHECKED // per_row)
        for first in range(0, len(array), at_once):
            part = np.asarray(array[first : first + at_once])
            with np.errstate(all="ignore"):
                back = part.astype(target.numpy).astype(part.dtype)
            lost = (back != part) & ~((part != part) & (back != back))
            if not target.is_float and actual.is_float:
                lost |= ~np.isfinite(part.astype(np.float64))
            if lost.any():
                at = tuple(int(k) for k in np.argwhere(lost)[0])
                self._complain(first + at[0], part[at], actual)

    def _complain(self, row: int, value: Any, actual: DType) -> None:
        target = self.type.dtype
        told = f"{self.where} is {actual}, and input {self.name} is {target}"
        if actual.is_float and target.is_float:
            raise InputError(
                f"{told}: row {row} has {value!s}, which {target} holds only as "
                f"{target.numpy.type(value)!s}",
                hint=Wording(Argument("round", True), f" takes the nearest {target} of each value"),
            )
        raise InputError(f"{told}: row {row} has {value!s}, which no {target} is")


def _fits(row: Sequence[int], wanted: Sequence[Any]) -> bool:
    return len(row) == len(wanted) and all(
        not isinstance(w, int) or d == w for d, w in zip(row, wanted, strict=True)
    )


def _always_exact(actual: DType, target: DType) -> bool:
    """Whether each value of a type is one of the other."""
    digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
    if actual.kind == "b":
        return True
    if target.is_float:
        if actual.is_float:
            return target.itemsize > actual.itemsize
        return actual.bits - (actual.kind == "i") <= digits[target.name]
    return bool(actual.is_integer and target.is_integer
                and np.can_cast(actual.numpy, target.numpy, "safe"))  # fmt: skip


def oddities(dataset: Dataset) -> Iterator[str]:
    """What may be meant, and is told: floats of the data that are not finite."""
    for name, column in dataset.columns.items():
        if column.dtype.kind in "iub":
            continue
        count, where = 0, -1
        per_row = max(1, int(np.prod(column.shape[1:], dtype=int)))
        at_once = max(1, CHECKED // per_row)
        for first in range(0, len(column), at_once):
            part = np.asarray(column[first : first + at_once])
            part = part if part.dtype.kind == "f" else part.astype(np.float32)
            bad = ~np.isfinite(part.reshape(len(part), -1)).all(axis=1)
            if bad.any() and where < 0:
                where = first + int(bad.argmax())
            count += int(bad.sum())
        if count:
            rows = "row has" if count == 1 else "rows have"
            told = f"{count:,} {rows} a NaN or an infinity, first row {where}"
            yield f"{dataset.sources[name]}: {told}"
