"""The rows of a batch that bad elements were computed from.

From the elements that were born bad the way back to the inputs is followed through the ops that
gave them, with masks of elements. Where an element comes from its op's declaration says; of an op
that declares nothing it is tried whether the first axes of operand and result run along. Of sums
only the terms count that are not lost beside the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.rerun import is_float, rerun_of
from opstep.runtime.ir.faults import Site, all_elements
from opstep.runtime.nan.sources import harmless, moved
from opstep.runtime.nan.verdict import broken, parts_of, regions_of
from opstep.runtime.plan.plan import Step

FOLLOWED = 64  # elements of a result that are followed, of different rows where there are such
TOLD = 3  # rows that something is told of
SHARE = 1e-4  # of the largest term: what a term must have to count
FAR = 30  # times the largest element of the other rows: what stands out


class BatchRow(NamedTuple):
    """A row of the batch. `notes` say what is odd in it: ``labels[5] = 11, of 10 classes``."""

    row: int
    notes: tuple[str, ...] = ()


class BatchRows(NamedTuple):
    """Of a batch of `size` rows those that count."""

    size: int
    rows: tuple[BatchRow, ...]


def batch_size(inputs: Sequence[Node]) -> int:
    """The length of the first axis, which all inputs with axes share; else 0."""
    sizes: set[Any] = {node.type.shape[0] for node in inputs if node.type.rank}
    return next(iter(sizes)) if len(sizes) == 1 else 0


def rows_of(
    executor: Executor, inputs: Sequence[Node], node: Node, own: np.ndarray
) -> BatchRows | None:
    """The rows that the elements `own` of a node come from; None where they are most of the batch,
    or none can be told.
    """
    size = batch_size(inputs)
    if size < 2:
        return None
    search = _Search(executor, inputs)
    search.run(node, own)
    found: set[int] = set()
    for given in inputs:
        mask = search.masks.get(id(given))
        if mask is not None and mask.ndim:
            found.update(map(int, np.flatnonzero(mask.reshape(size, -1).any(axis=1))))
    if not found or 2 * len(found) > size:
        return None
    rows = sorted(found)
    told = [BatchRow(r, tuple(search.notes(r, found))) for r in rows[:TOLD]]
    return BatchRows(size, (*told, *map(BatchRow, rows[TOLD:])))


class _Search:
    def __init__(self, executor: Executor, inputs: Sequence[Node]):
        self.executor = executor
        self.inputs = inputs
        self.masks: dict[int, np.ndarray] = {}  # by id of a node: what counts
        self.blamed: dict[int, str] = {}  # by id of an integer input: of how many it chooses
        self._aligned: dict[tuple, bool] = {}

    def run(self, node: Node, own: np.ndarray) -> None:
        self.masks[id(node)] = own
        for producer in reversed(self._order(node)):
            for k, result in enumerate(producer.results):
                mask = self.masks.get(id(result))
                if mask is not None and mask.any():
                    self._back(producer, k, mask, result is node)

    def _order(self, node: Node) -> list[Producer]:
        """Executions that an input goes into, and that the node comes from, operands first."""
        given = {id(n) for n in self.inputs}
        leads: dict[int, bool] = {}
        order: list[Producer] = []
        todo: list[tuple[Node, bool]] = [(node, False)]
        while todo:
            at, done = todo.pop()
            producer = at.producer
            if producer is None:
                leads[id(at)] = id(at) in given
            elif done:
                there = [o for o in producer.operands if o is not None]
                lead = any(leads.get(id(o), False) for o in there)
                leads.update((id(r), lead) for r in producer.results)
                order += [producer] * lead
            elif id(at) not in leads:
                leads.update((id(r), False) for r in producer.results)
                todo.append((at, True))
                todo += [(o, False) for o in producer.operands if o is not None]
        self.leads = leads
        return order

    # --- one op ---

    def _back(self, producer: Producer, k: int, mask: np.ndarray, first: bool) -> None:
        """Marks what these elements of result k come from; of the `first` what its rules blame."""
        operands = self.executor.operands(producer)
        for j, found in self._parts(producer, k, mask, operands, first):
            operand = producer.operands[j] if j < len(producer.operands) else None
            if operand is None or not self.leads.get(id(operand), False):
                continue
            before = self.masks.get(id(operand))
            self.masks[id(operand)] = found if before is None else before | found

    def _parts(
        self, producer: Producer, k: int, mask: np.ndarray, operands, first: bool
    ) -> Iterator[tuple[int, np.ndarray]]:
        step = producer.step
        if step.op.family == "internal" or step.op.traits.reinterprets:
            yield 0, mask.reshape(operands[0].shape)
            return
        moves = None
        if step.op.traits.moves and not first:
            moves = moved(step, operands, k, mask.astype(np.uint8), True)
            yield from ((j, marked != 0) for j, marked in (moves or {}).items())
        results = self.executor.arrays(producer.results)
        masks: list[Any] = [None if a is None else np.zeros(a.shape, bool) for a in operands]
        done: set[str] = set()
        for place in _spread(mask):
            site = Site(place, k, operands, results, step.attrs)
            regions = self._regions(producer, site)
            if repr(regions) in done or (first and self._ruled(producer, site, regions, masks)):
                continue
            done.add(repr(regions))
            parts: list[Any] = [
                None if a is None or region is None else _size(a[region])
                for a, region in zip(operands, regions, strict=True)
            ]
            if step.op.vendor is not None:  # a sum of products, of the first two
                parts[:2] = _products(*parts[:2])
            for j, region in enumerate(regions):
                if region is not None and masks[j] is not None:
                    masks[j][region] |= _counts(parts[j])
        yield from ((j, m) for j, m in enumerate(masks) if m is not None and j not in (moves or {}))

    def _ruled(self, producer: Producer, site: Site, regions, masks) -> bool:
        """Marks the elements that a broken rule blames; whether there is one."""
        step = producer.step
        parts = parts_of(site, regions)
        text, blamed = broken(step, site, parts)
        found = False
        for j, (region, part) in enumerate(zip(regions, parts, strict=True)):
            one: Any = blamed[j] if j < len(blamed) else None
            if part is not None and text and part.dtype.kind in "iu" and part.size == 1:
                one = np.ones(part.shape, bool)  # the index itself
            if part is None or getattr(one, "shape", None) != part.shape or not one.any():
                continue
            found = True
            masks[j][region] |= one
            if part.dtype.kind in "iu":
                self._chooses(producer, j, text)
        return found

    def _chooses(self, producer: Producer, j: int, text: str) -> None:
        """Notes of an operand of indices or labels how many there are to choose from."""
        first, axis = producer.operands[0], producer.step.attrs.get("axis", 0)
        operand = producer.operands[j]
        if operand is None or not isinstance(axis, int):
            return
        chosen = first
        if operand is first:  # indices that come before the tensor
            chosen = producer.operands[1]
        if chosen is not None and chosen.type.rank:
            word = " classes" if "label" in text else ""
            self.blamed[id(operand)] = f"of {chosen.type.shape[axis]:,}{word}"

    # --- where an element comes from ---

    def _regions(self, producer: Producer, site: Site) -> list[tuple | None]:
        step = producer.step
        found = [None if r is None else tuple(r) for r in regions_of(step, site)]
        if step.op.faults.relation is all_elements:
            found = [self._undeclared(producer, site, j, region) for j, region in enumerate(found)]
        return found

    def _undeclared(self, producer: Producer, site: Site, j: int, region) -> tuple | None:
        a, result = site.operands[j], site.results[site.result]
        if a is None or not a.ndim or not site.index:
            return region
        if _by_elements(producer.step, site):
            index = site.index[len(site.index) - a.ndim :]
            return tuple(
                slice(p, p + 1) if n > 1 else slice(0, 1)
                for p, n in zip(index, a.shape, strict=True)
            )
        if a.shape[0] == result.shape[0] and self._along(producer, site, j):
            return (slice(site.index[0], site.index[0] + 1), *region[1:])
        return region

    def _along(self, producer: Producer, site: Site, j: int) -> bool:
        """Whether rows of the operand go to the same rows of the result, and to no others."""
        key = (id(producer.step), site.result, j)
        if key not in self._aligned:
            self._aligned[key] = not is_float(site.operands[j]) or self._tried(producer, site, j)
        return self._aligned[key]

    def _tried(self, producer: Producer, site: Site, j: int) -> bool:
        again = rerun_of(self.executor, producer)
        plain, finite = harmless(again, list(site.operands), site.result)
        if not finite:
            return False
        for row in {0, len(site.operands[j]) - 1}:
            marked = np.array(plain[j])
            marked[row] = np.nan
            result = np.asarray(again(plain | {j: marked})[site.result])
            if result.dtype.kind in "iub":
                return True
            spread: Any = np.isnan(result.reshape(len(result), -1)).any(axis=1)
            if spread.sum() > 1 or not spread[row]:
                return False
        return True

    # --- words ---

    def notes(self, row: int, found: set[int]) -> Iterator[str]:
        """Oddities in a row of the inputs that bad elements come from."""
        others: list[int] | None = None
        for node in self.inputs:
            mask: Any = self.masks.get(id(node))
            if mask is None or not mask.ndim or not mask[row].any():
                continue
            array = self.executor.array(node)
            if id(node) in self.blamed:
                place = _first(mask, row)
                yield f"{_element(node, array, place)}, {self.blamed[id(node)]}"
            elif is_float(array):
                others = others or [r for r in range(len(array)) if r not in found]
                yield from _odd(node, array, mask, row, others)


def _odd(node: Node, array: np.ndarray, mask: np.ndarray, row: int, others) -> Iterator[str]:
    with np.errstate(all="ignore"):
        size = np.abs(array.astype(np.float64))
    size: Any = np.where(np.isnan(size), np.inf, size)
    rest = size[others][np.isfinite(size[others])]
    usual = float(rest.max()) if rest.size else 0.0
    most = np.unravel_index(int(np.argmax(size[row])), size[row].shape) if array.ndim > 1 else ()
    place = (row, *map(int, most))
    if not np.isfinite(size[place]):
        yield _element(node, array, place)
    elif size[place] == 0 and usual:
        what = "" if array.ndim == 1 else " everywhere"
        yield f"{node.name}[{row}] is 0{what}"
    elif usual and size[place] > FAR * usual:
        yield f"{_element(node, array, place)}; in other rows none is beyond {usual:.3g}"


def _element(node: Node, array: np.ndarray, place: tuple[int, ...]) -> str:
    return f"{node.name}[{', '.join(map(str, place))}] = {float(array[place]):g}"


def _first(mask: np.ndarray, row: int) -> tuple[int, ...]:
    places = np.argwhere(mask[row]) if mask.ndim > 1 else np.zeros((1, 0), int)
    return (row, *map(int, places[0]))


def _by_elements(step: Step, site: Site) -> bool:
    """Whether an op goes by elements, as far as shapes and attributes tell."""
    result = site.results[site.result].shape
    shapes = [a.shape for a in site.operands if a is not None]
    if step.attrs.keys() & {"axis", "axes"}:
        return False
    try:
        return np.broadcast_shapes(*shapes) == result
    except ValueError:
        return False


def _size(terms: np.ndarray) -> np.ndarray:
    """Magnitudes, that of a NaN infinite; of integers and bools 1: they are no terms."""
    if terms.dtype.kind in "iub":
        return np.ones(terms.shape)
    with np.errstate(all="ignore"):
        return _finite_or_inf(np.abs(terms.astype(np.float64)))


def _finite_or_inf(size: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(size), np.inf, size)


def _products(a: np.ndarray | None, b: np.ndarray | None) -> tuple[Any, Any]:
    """Magnitudes of the products that are summed, in the place of those of the factors, as far as
    it is known which go together: all, or rows along the first axes.
    """
    if a is None or b is None:
        return a, b
    with np.errstate(all="ignore"):
        if a.size == b.size:
            both = _finite_or_inf(a.reshape(-1) * b.reshape(-1))
            return both.reshape(a.shape), both.reshape(b.shape)
        if a.ndim == b.ndim and a.shape[0] == b.shape[0]:
            rest = tuple(range(1, a.ndim))
            most = [x.max(axis=rest, keepdims=True) for x in (a, b)]
            return a * _finite_or_inf(most[1]), b * _finite_or_inf(most[0])
    return a, b


def _counts(size: np.ndarray) -> np.ndarray:
    """A mask of the terms that are not lost beside the largest, by their magnitudes."""
    size = _finite_or_inf(size)
    most = size.max(initial=0.0)
    return np.isinf(size) if np.isinf(most) else size >= SHARE * most


def _spread(mask: np.ndarray) -> list[tuple[int, ...]]:
    """Places of true elements, some of each row before more of any."""
    flat = np.flatnonzero(mask)
    if flat.size > FOLLOWED:
        rows = flat // max(1, mask.size // mask.shape[0])
        turn = np.arange(flat.size) - np.searchsorted(rows, rows)
        flat = flat[np.argsort(turn, kind="stable")[:FOLLOWED]]
    if not mask.ndim:
        return [()] * flat.size
    places = np.stack(np.unravel_index(flat, mask.shape), axis=-1)
    return [tuple(map(int, p)) for p in places]
