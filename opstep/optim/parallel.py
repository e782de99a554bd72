"""Data parallel training: the ranks along an axis of the mesh have parts of every batch.

What each finds is made that of all of them in the text of the gradient: gradients and what the
program keeps of batches become means. They go in buckets, each as soon as its gradients are there,
while the rest of the backward pass is computed, as PyTorch's DistributedDataParallel has it (Li et
al. 2020, arXiv:2006.15704).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from opstep.optim.checks import flag
from opstep.optim.sharding import Part, buckets, over, scattered
from opstep.optim.writing import fresh, local_names, rebuilt
from opstep.runtime.ir.amounts import parse_size
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.graph import Apply, Declaration, Graph, Name, Return, Statement, Update
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import DType, TensorType

BUCKET = 25 << 20  # bytes of gradients that go together; as in PyTorch
_FIRST = 1 << 20  # of the first: so it is soon under way
_USUAL = ("data", "dp")  # what axes for it are called


@dataclass(frozen=True)
class Parallel:
    """The group whose ranks have parts of a batch; the bytes of a bucket; whether ranks share out
    the states of the optimizer, too.
    """

    over: Group
    bucket: int = BUCKET
    shares_states: bool = False


def data_axis(mesh: Mesh, axis: str | bool = True) -> Group:
    """The ranks along an axis of the mesh; along the one that is there for data, if none is named.
    Raises `InputError`.
    """
    names = mesh.names
    if isinstance(axis, str):
        if axis not in names or not mesh.declared:
            there = f"axes {', '.join(names)}" if mesh.declared else "no axes with names"
            raise InputError(f"data_parallel: the mesh has {there}, and none is called {axis}")
        return Group(mesh, (axis,))
    found = names if len(names) == 1 else [n for n in _USUAL if n in names]
    if not found:
        raise InputError(
            f"data_parallel: along which axis of the mesh ({mesh}) do ranks have parts of a batch?",
            hint=f"name it: one of {', '.join(names)}",
        )
    return Group(mesh, (found[0],))


def parallel_of(
    mesh: Mesh, axis: str | bool | None, bucket: str | int | None, shares_states: bool = False
) -> Parallel | None:
    """What was asked for; None where nothing was. Raises `InputError`."""
    if axis is None or axis is False:
        if not flag("shard_optimizer", shares_states) or mesh.ranks == 1:
            return None
        axis = True
    size = BUCKET if bucket is None else parse_size(bucket) if isinstance(bucket, str) else bucket
    if not isinstance(size, int) or size < 1:
        raise SettingError("bucket", bucket, "bytes, such as '25MiB'")
    over = data_axis(mesh, axis)
    return Parallel(over, size, flag("shard_optimizer", shares_states) and over.size > 1)


class _Value(NamedTuple):
    """A value that each rank has its own of, and the number of the statement that gives it."""

    name: str
    type: TensorType
    place: int

    @property
    def size(self) -> int:
        shape: tuple[int, ...] = self.type.shape  # pyright: ignore[reportAssignmentType]
        return prod(shape)


def together(
    gradient: Graph, loss: Graph, trained: Sequence[Declaration], tensors: dict[str, Declaration],
    parallel: Parallel, parts: Mapping[str, Shard], shards: Mapping[str, Shard],
) -> Graph:  # fmt: skip
    """`gradient` with what all ranks find in place of what one does: derivatives by `trained`,
    which are its last results; before these, of those of `loss`, scalars; and states. `parts`: of
    derivatives by these params ranks get a part; `shards`: these are declared as such.
    """
    return _Writing(gradient, tensors, parallel).written(loss, trained, parts, shards)


class _Later:
    """Lines that are put into a graph when all are there."""

    def __init__(self, name: Callable[[str], str], lines: list[str]):
        self.name = name
        self.lines = lines

    def line(self, text: str) -> None:
        self.lines.append(text)


class _Writing:
    def __init__(self, graph: Graph, tensors: dict[str, Declaration], parallel: Parallel):
        self.graph = graph
        self.tensors = tensors
        self.bucket = parallel.bucket
        self.group = parallel.over
        self.over = over(parallel.over)
        self.taken = local_names(graph) | set(tensors)
        results = [s.results for s in graph.body if isinstance(s, Apply)]
        self.at = {b.name.text: k for k, bindings in enumerate(results) for b in bindings}
        self.behind: dict[int, list[Statement]] = {}  # by number of a statement: what follows it
        self.unpacking: list[str] = []
        self.new: dict[str, str] = {}  # by name of a value: of what it is on all ranks
        self.derived: list[str] = []  # what the last results are

    def written(
        self, loss: Graph, trained: Sequence[Declaration], parts: Mapping[str, Shard],
        shards: Mapping[str, Shard],
    ) -> Graph:  # fmt: skip
        body = self.graph.body
        (returned,) = (s for s in body if isinstance(s, Return))
        count = len(loss.results) + len(trained)
        names = [v.text for v in returned.values][-count:]
        types = [*loss.results, *(d.type for d in trained)]
        of_loss = list(zip(names, types, strict=True))[: len(loss.results)]
        scalars = self._values((n, t) for n, t in of_loss if not t.rank)
        told = "What the whole batch gives."
        self._reduce([v for v in scalars if v.type.dtype.is_float], "mean", told)
        self._reduce([v for v in scalars if v.type.dtype.is_integer], "sum", told)
        params = [d.name.text for d in trained]
        derivatives = list(zip(names[-len(trained) :], types[-len(trained) :], strict=True))
        own = {n for n in shards if set(self.group.axes) <= set(shards[n].group.axes)}
        kept = [v for v, n in zip(derivatives, params, strict=True) if n not in {*parts, *own}]
        told = "The mean of these gradients over the ranks."
        self._reduce(self._values(kept), "mean", told)
        taken = {n: v for v, n in zip(derivatives, params, strict=True) if n in parts}
        found = self._scatter({v[0]: parts[n] for n, v in taken.items()})
        divided = {v: self._divided(v) for (v, _), n in zip(derivatives, params, strict=True)
                   if n in own}  # fmt: skip
        for (name, _), param in zip(derivatives, params, strict=True):
            of = found if param in parts else divided if param in own else self.new
            self.derived.append(of[name])
        self._states([s for s in body if isinstance(s, Update)])
        before = self.graph.results[: -len(trained)]
        results = [parts[d.name.text].type if d.name.text in parts else d.type for d in trained]
        written = tuple(self._body(count))
        return replace(self.graph, body=written, results=(*before, *results))

    def _divided(self, name: str) -> str:
        """The gradient by the part of a param that this rank has alone: all ranks have added to it
        by the time it is here.
        """
        new = self._name(f"mean_{name}")
        told = "# Of the shard that a rank has: the sum over the ranks, as a mean."
        self._insert(self.at.get(name, -1), [told, f"{new} = div({name}, {self.group.size}.0)"])
        return new

    def _scatter(self, shards: Mapping[str, Shard]) -> dict[str, str]:
        """Of the means of these values over the ranks this one's parts, by name."""
        how, told = f'{self.over}, reduction="mean"', "This rank's part of the mean of gradients."
        ordered = sorted(shards, key=lambda n: self.at.get(n, -1))
        found: dict[str, str] = {}
        for bucket in buckets([Part(n, n, shards[n]) for n in ordered], self.bucket, _FIRST):
            lines = [f"# {told}"]
            later = _Later(self._name, self.unpacking)
            names = scattered(_Later(self._name, lines), later, bucket, how)
            self._insert(max(self.at.get(p.value, -1) for p in bucket), lines)
            found |= {p.value: name for p, name in zip(bucket, names, strict=True)}
        return found

    def _body(self, count: int) -> Iterator[Statement]:
        """All statements; the last `count` results are those of all ranks."""
        body = self.graph.body
        applied = sum(isinstance(s, Apply) for s in body)
        yield from self.behind.get(-1, ())
        number = 0
        unpacking: Iterable[Statement] = self._parsed(self.unpacking)
        for statement in body:
            if isinstance(statement, Update | Return):
                yield from unpacking
                unpacking = ()
            if isinstance(statement, Return):
                values = statement.values
                kept, last = values[: len(values) - count], values[len(values) - count :]
                of_loss = map(self._renamed, last[: count - len(self.derived)])
                derived = map(Name, self.derived)
                yield replace(statement, values=(*kept, *of_loss, *derived))
            elif isinstance(statement, Update) and isinstance(statement.value, Name):
                yield replace(statement, value=self._renamed(statement.value))
            else:
                yield statement
            if isinstance(statement, Apply):
                yield from self.behind.get(number, ())
                number += 1
        assert number == applied

    def _renamed(self, name: Name) -> Name:
        return Name(self.new.get(name.text, name.text))

    def _values(self, found: Iterable[tuple[str, TensorType]]) -> list[_Value]:
        """Those that ranks may have own values of, each once."""
        known = dict(found)
        return [_Value(n, t, self.at.get(n, -1)) for n, t in known.items() if n not in self.new]

    def _states(self, updates: Sequence[Update]) -> None:
        """What the program itself keeps of batches: means of floats, of others that of rank 0."""
        named = [(u.value.text, u.target.text) for u in updates if isinstance(u.value, Name)]
        values = self._values((v, self.tensors[t].type) for v, t in named)
        told = "What is kept of the whole batch."
        self._reduce([v for v in values if v.type.dtype.is_float], "mean", told)
        for v in values:
            if not v.type.dtype.is_float:
                name = self._name(f"same_{v.name}")
                line = f"{name} = broadcast_from({v.name}, root=0{self.over})"
                self._insert(v.place, [line])
                self.new[v.name] = name

    def _reduce(self, values: Collection[_Value], reduction: str, told: str) -> None:
        """Values of all ranks in place of these, in buckets."""
        dtypes: dict[DType, list[_Value]] = {}
        for value in sorted(values, key=lambda v: v.place):
            dtypes.setdefault(value.type.dtype, []).append(value)
        for some in dtypes.values():
            for bucket in self._buckets(some):
                self._reduce_bucket(bucket, reduction, told)

    def _buckets(self, values: Sequence[_Value]) -> Iterator[list[_Value]]:
        bucket: list[_Value] = []
        held, limit = 0, min(_FIRST, self.bucket)
        for value in values:
            bucket.append(value)
            held += value.size * value.type.dtype.itemsize
            if held >= limit:
                yield bucket
                bucket, held, limit = [], 0, self.bucket
        if bucket:
            yield bucket

    def _reduce_bucket(self, bucket: Sequence[_Value], reduction: str, told: str) -> None:
        place = max(v.place for v in bucket)
        how = f'{self.over}, reduction="{reduction}"'
        if len(bucket) == 1:
            (v,) = bucket
            name = self.new[v.name] = self._name(f"all_{v.name}")
            self._insert(place, [f"# {told}", f"{name} = all_reduce({v.name}{how})"])
            return
        lines, flat = [f"# {told}"], []
        for v in bucket:
            flat.append(self._name(f"flat_{v.name}"))
            lines.append(f"{flat[-1]} = reshape({v.name}, shape=[{v.size}])")
        joined, reduced = self._name("bucket"), self._name("all_bucket")
        lines.append(f"{joined} = concat({', '.join(flat)})")
        lines.append(f"{reduced} = all_reduce({joined}{how})")
        self._insert(place, lines)
        parts = [self._name(f"part_{v.name}") for v in bucket]
        sizes = ", ".join(str(v.size) for v in bucket)
        self.unpacking.append(f"{', '.join(parts)} = split({reduced}, sizes=[{sizes}])")
        for v, part in zip(bucket, parts, strict=True):
            name = self.new[v.name] = self._name(f"all_{v.name}")
            shape = ", ".join(map(str, v.type.shape))
            self.unpacking.append(f"{name} = reshape({part}, shape=[{shape}])")

    def _name(self, stem: str) -> str:
        name = fresh(stem, self.taken)
        self.taken.add(name)
        return name

    def _insert(self, place: int, lines: Sequence[str]) -> None:
        """Statements behind the one of that number; they belong to what it belongs to."""
        applied = [s for s in self.graph.body if isinstance(s, Apply)]
        origin = applied[place].derived_from if place >= 0 else None
        new = (
            replace(s, derived_from=origin) if isinstance(s, Apply) else s
            for s in self._parsed(lines)
        )
        self.behind.setdefault(place, []).extend(new)

    def _parsed(self, lines: Sequence[str]) -> list[Statement]:
        text = "\n".join(f"  {line}" for line in lines)
        return [rebuilt(s, {}) for s in parse(f"graph g() {{\n{text}\n}}\n").graphs["g"].body]
