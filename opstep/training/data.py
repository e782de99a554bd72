"""Data to train on: columns by the names of a graph's inputs, and batches of their rows, which are
made ready while a step is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty, Full, Queue
from typing import Any, NamedTuple, TypeVar

import numpy as np

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Wording

Rows = Mapping[str, np.ndarray]


class Part(NamedTuple):
    """What one rank has of each batch: the part of that number, of so many."""

    index: int = 0
    count: int = 1

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The own part of the rows of a batch, which has been checked to be shared evenly."""
        size = len(rows) // self.count
        return rows[self.index * size : (self.index + 1) * size]


_SPLIT = 0x5EED  # begins the seed of a split, whatever the epochs' are


class Dataset:
    """Columns by name: arrays whose first axis are the rows, all of one length. `constants`: what
    is the same in each batch. `source` and `sources`: where all and each come from, in messages.
    `classes`: of a column of labels, what each number stands for, where that is known.
    """

    def __init__(
        self, columns: Mapping[str, Any], source: str = "the data", constants: Rows | None = None,
        sources: Mapping[str, str] | None = None, chosen: np.ndarray | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
    ):  # fmt: skip
        self.columns = dict(columns)
        self.source = source
        self.constants = dict(constants or {})
        self.sources = {name: f"{source}: {name}" for name in self.columns} | dict(sources or {})
        self.classes = dict(classes or {})
        self.chosen = chosen  # the rows that count, by number; None: all
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {n:,}" for name, n in lengths.items())
            raise InputError(f"{source}: columns have different numbers of rows: {told}")
        self._length = next(iter(lengths.values()), 0) if chosen is None else len(chosen)

    def __len__(self) -> int:
        return self._length

    def rows(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """These rows of each column, in this order, and the constants."""
        if self.chosen is not None:
            indices = self.chosen[indices]
        found = {name: np.asarray(column[indices]) for name, column in self.columns.items()}
        return found | self.constants

    def split(self, share: float, seed: int) -> tuple[Dataset, Dataset]:
        """All rows but a share of them, and that share: drawn with the seed, at least one."""
        order = np.random.default_rng([_SPLIT, seed]).permutation(len(self))
        count = max(1, round(share * len(self)))
        if count >= len(self):
            raise InputError(
                f"{self.source}: {share:g} of {len(self):,} rows leaves none to train on"
            )
        kept = order if self.chosen is None else self.chosen[order]
        return self._of(np.sort(kept[count:])), self._of(np.sort(kept[:count]))

    def _of(self, chosen: np.ndarray) -> Dataset:
        sources, classes = self.sources, self.classes
        return Dataset(self.columns, self.source, self.constants, sources, chosen, classes)


@dataclass(frozen=True, order=True)
class Position:
    """The next batch to be taken: number `batch` of epoch `epoch`, both from 0."""

    epoch: int = 0
    batch: int = 0


class Batches:
    """A data set in batches of `size` rows. The order of the rows depends on `seed` and the epoch
    alone; without a seed it is that of the data. The last batch of an epoch has what is left, or,
    with `drop_last`, is left out if it is smaller. Of each batch one rank has a `part`.
    """

    def __init__(
        self, dataset: Dataset, size: int, seed: int | None = 0, drop_last: bool = False,
        part: Part = Part(),
    ):  # fmt: skip
        if not len(dataset):
            raise InputError(f"{dataset.source} has no rows")
        if size > len(dataset):
            raise InputError(
                f"a batch of {size:,} rows is larger than the data: {dataset.source} has "
                f"{len(dataset):,}"
            )
        self.dataset = dataset
        self.size = size
        self.seed = seed
        self.drop_last = drop_last
        self.part = part
        self._check_shares()

    def _check_shares(self) -> None:
        ranks, last = self.part.count, 0 if self.drop_last else len(self.dataset) % self.size
        if self.size % ranks:
            raise InputError(
                f"{ranks} ranks cannot share batches of {self.size:,} rows evenly",
                hint=Wording("give them ", Argument("batch", -(-self.size // ranks) * ranks)),
            )
        if last % ranks:
            raise InputError(
                f"{ranks} ranks cannot share the last batch of an epoch evenly: of the "
                f"{len(self.dataset):,} rows of {self.dataset.source}, {last:,} are left for it",
                hint=Wording(Argument("drop_last", True), " leaves it out"),
            )

    @property
    def per_epoch(self) -> int | None:
        """Batches of an epoch; None where only the end of an epoch tells."""
        n = len(self.dataset)
        return n // self.size if self.drop_last else -(-n // self.size)

    def order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch by number, in the order in which they are taken."""
        if self.seed is None:
            return np.arange(len(self.dataset))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.dataset))

    def rows(self, position: Position) -> np.ndarray:
        """Numbers of the rows of one batch, or of the part of it, as the data has them."""
        first = position.batch * self.size
        chosen = self.dataset.chosen
        rows = self.part.of(self.order(position.epoch)[first : first + self.size])
        return rows if chosen is None else chosen[rows]

    def rest(self, position: Position) -> Iterator[tuple[Position, Rows]]:
        """What is left of an epoch, from `position` on: batches, each with the position after."""
        order, count = self.order(position.epoch), self.per_epoch
        assert count is not None
        for k in range(position.batch, count):
            last = k + 1 == count
            after = Position(position.epoch + 1) if last else Position(position.epoch, k + 1)
            rows = order[k * self.size : (k + 1) * self.size]
            yield after, self.dataset.rows(self.part.of(rows))


class Stream(Batches):
    """Batches that an iterable gives, each a mapping of arrays by the names of inputs; an epoch is
    one iteration. A run that begins in the middle of an epoch skips what is before.
    """

    def __init__(self, batches: Iterable[Rows]):
        self.dataset = Dataset({})
        self.size = 0
        self.seed = None
        self.drop_last = False
        self.part = Part()
        self._batches = batches

    @property
    def per_epoch(self) -> int | None:
        try:
            return len(self._batches)  # pyright: ignore[reportArgumentType]
        except TypeError:
            return None

    def rows(self, position: Position) -> np.ndarray:
        raise InputError("batches of an iterable have no rows with numbers")

    def rest(self, position: Position) -> Iterator[tuple[Position, Rows]]:
        epoch, k = position.epoch, position.batch
        batches = islice(map(_mapping, self._batches), k, None)
        batch = next(batches, None)
        if batch is None:
            what = f"batch {k + 1}" if k else "batches"
            raise InputError(
                f"the data has no {what} in epoch {epoch + 1}",
                hint="give an object that can be iterated over again, such as a list; an iterator "
                "is done after one epoch",
            )
        while batch is not None:
            following, k = next(batches, None), k + 1
            yield (Position(epoch, k) if following is not None else Position(epoch + 1)), batch
            batch = following


def _mapping(batch: Any) -> Rows:
    if not isinstance(batch, Mapping):
        raise InputError(
            f"a batch of the data is a {type(batch).__name__}; it is to be arrays by name"
        )
    return batch


T = TypeVar("T")
DEPTH = 2  # batches that wait
WORTH = 1 << 18  # bytes of a batch, from which on making it takes longer than handing it over
_TICK_S = 0.5  # between two looks at whether the other side is still there


def is_worth_it(batches: Batches, on_cpu: bool) -> bool:
    """Whether making a batch takes longer than another thread costs. While a GPU works the host has
    nothing else to do; on the CPU the kernels have all cores, and a thread takes them away.
    """
    columns = batches.dataset.columns.values()
    rows = (int(np.prod(c.shape[1:], dtype=int)) * c.dtype.itemsize for c in columns)
    return not on_cpu and sum(rows) * batches.size >= WORTH


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, made by a thread of their own, `DEPTH` ahead. What the iterator raises is
    raised here, in its place.
    """
    queue: Queue[tuple[str, Any]] = Queue(DEPTH)
    left = threading.Event()  # nobody takes any more

    def put(kind: str, value: Any) -> bool:
        while not left.is_set():
            try:
                queue.put((kind, value), timeout=_TICK_S)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, daemon=True, name="opstep batches")
    thread.start()
    try:
        while True:
            try:
                kind, value = queue.get(timeout=_TICK_S)
            except Empty:
                if thread.is_alive() or not queue.empty():
                    continue
                return
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        left.set()
