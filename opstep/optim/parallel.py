"""Data parallel training: the ranks along an axis of the mesh have parts of every batch.

What each finds is made that of all of them in the text of the gradient: gradients and what the
program keeps of batches become means. Small ones go in buckets, each as soon as its gradients are
there, while the rest of the backward pass is computed, as PyTorch's DistributedDataParallel has it
(Li et al. 2020, arXiv:2006.15704). Large ones go alone: to put them together and take them apart
would copy them twice. Sums are divided where gradients are used, by what computes with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from opstep.optim.checks import flag
from opstep.optim.sharding import Part, buckets, over, scattered
from opstep.optim.writing import Body, local_names, statements
from opstep.runtime.ir.amounts import parse_size
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.graph import Apply, Declaration, Graph, Name, Return, Statement, Update
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import DType, TensorType

BUCKET = 25 << 20  # bytes of gradients that go together; as in PyTorch
_FIRST = 1 << 20  # of the first: so it is soon under way
_ALONE = 1 << 20  # of a gradient that is worth a call of its own
MEAN = ', reduction="mean"'
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
    mesh: Mesh,
    axis: str | bool | None,
    bucket: str | int | None,
    shares_states: bool = False,
    shards: Collection[str] = (),
) -> Parallel | None:
    """What was asked for; None where nothing was, and ranks have all of each param that is trained:
    `shards` are the others. Raises `InputError`.
    """
    if axis is None or axis is False:
        if not (flag("shard_optimizer", shares_states) or shards) or mesh.ranks == 1:
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

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


def together(
    gradient: Graph, loss: Graph, trained: Sequence[Declaration], tensors: dict[str, Declaration],
    parallel: Parallel, parts: Mapping[str, Shard], shards: Mapping[str, Shard],
) -> Graph:  # fmt: skip
    """`gradient` with what all ranks find in place of what one does: derivatives by `trained`,
    which are its last results; before these, of those of `loss`, scalars; and states. `parts`: of
    derivatives by these params ranks get a part; `shards`: these are declared as such.
    """
    return _Writing(gradient, tensors, parallel).written(loss, trained, parts, shards)


class _Writing:
    def __init__(self, graph: Graph, tensors: dict[str, Declaration], parallel: Parallel):
        self.graph = graph
        self.tensors = tensors
        self.bucket = parallel.bucket
        self.group = parallel.over
        self.unpacking = Body(local_names(graph) | set(tensors))
        results = [s.results for s in graph.body if isinstance(s, Apply)]
        self.at = {b.name.text: k for k, bindings in enumerate(results) for b in bindings}
        self.behind: dict[int, list[Statement]] = {}  # by number of a statement: what follows it
        self.new: dict[str, str] = {}  # by name of a value: of what it is on all ranks
        self.derived: list[str] = []  # what the last results are
        self.extents: dict[tuple[Group, DType], str] = {}  # numbers of ranks, as values

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
        comment = "What the whole batch gives."
        self._reduce([v for v in scalars if v.type.dtype.is_float], "mean", comment)
        self._reduce([v for v in scalars if v.type.dtype.is_integer], "sum", comment)
        derivatives = dict(zip((d.name.text for d in trained), names[-len(trained) :], strict=True))
        self.derived = self._derivatives(derivatives, dict(zip(names, types, strict=True)), parts,
                                         shards)  # fmt: skip
        self._states([s for s in body if isinstance(s, Update)])
        before = self.graph.results[: -len(trained)]
        results = [parts[d.name.text].type if d.name.text in parts else d.type for d in trained]
        written = tuple(self._body(count))
        return replace(self.graph, body=written, results=(*before, *results))

    def _derivatives(
        self, names: Mapping[str, str], types: Mapping[str, TensorType], parts: Mapping[str, Shard],
        shards: Mapping[str, Shard],
    ) -> list[str]:  # fmt: skip
        """The derivatives of the mean of all ranks' losses, given those of their sum by what this
        rank has of each param.

        Ranks that have the same of a param add theirs up. By a shard it is the sum's then, over the
        ranks that have other shards: so all are divided by the number of both.
        """
        by_group: dict[tuple[Group, str], dict[str, TensorType]] = {}
        groups, divisors = {}, {}
        for param, name in names.items():
            if param in parts:
                continue
            shard = shards.get(param)
            group = self._others(shard.group.axes if shard else ())
            # a sum of halves that is divided later would be rounded twice
            how = "mean" if types[name].dtype.is_half else "sum"
            by_group.setdefault((group, how), {})[name] = types[name]
            groups[param] = group, how
            axes = group.axes if how == "sum" else ()
            divisors[param] = (*axes, *(shard.group.axes if shard else ()))
        reduced = {
            (group, how): self._reduce(
                self._places(some), how, f"The {how} of these gradients over the ranks.", group
            )
            for (group, how), some in by_group.items()
        }
        found = self._scatter({names[n]: shard for n, shard in parts.items()})
        derived = []
        for param, name in names.items():
            if param in parts:
                derived.append(found[name])
            else:
                whole = reduced[groups[param]].get(name, name)
                derived.append(self._divided(whole, name, divisors[param], types[name].dtype))
        return derived

    def _others(self, axes: Collection[str]) -> Group:
        """Along the axes of the mesh that are not among these."""
        mesh = self.group.mesh
        long = [n for n, extent in mesh.axes if extent > 1 or n in self.group.axes]
        return Group(mesh, tuple(n for n in long if n not in axes))

    def _divided(self, whole: str, name: str, axes: Collection[str], dtype: DType) -> str:
        """By the number of ranks along these axes, whatever that is where the text is run."""
        mesh = self.group.mesh
        group = Group(mesh, tuple(n for n in mesh.names if n in axes))
        if not group.axes:
            return whole
        if (group, dtype) not in self.extents:
            extent = f"extent(dtype={dtype.name}{over(group)})"
            self.extents[group, dtype] = self.unpacking.value("ranks", extent)
        return self.unpacking.value(f"mean_{name}", f"div({whole}, {self.extents[group, dtype]})")

    def _scatter(self, shards: Mapping[str, Shard]) -> dict[str, str]:
        """Of the means of these values over the ranks this one's parts, by name."""
        how, comment = f"{over(self.group)}{MEAN}", "This rank's part of the mean of gradients."
        others = self._others(self.group.axes)
        rest = f"{over(others)}{MEAN}" if others.axes else ""
        ordered = sorted(shards, key=lambda n: self.at.get(n, -1))
        found: dict[str, str] = {}
        for bucket in buckets([Part(n, n, shards[n]) for n in ordered], self.bucket, _FIRST):
            body = self._body_of(comment)
            names = scattered(body, self.unpacking, bucket, how, rest)
            self._insert(max(self.at.get(p.value, -1) for p in bucket), body)
            found |= {p.value: name for p, name in zip(bucket, names, strict=True)}
        return found

    def _body(self, count: int) -> Iterator[Statement]:
        """All statements; the last `count` results are those of all ranks."""
        body = self.graph.body
        applied = sum(isinstance(s, Apply) for s in body)
        yield from self.behind.get(-1, ())
        number = 0
        unpacking: Iterable[Statement] = statements(self.unpacking.lines)
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
        return self._places({n: t for n, t in found if n not in self.new})

    def _places(self, types: Mapping[str, TensorType]) -> list[_Value]:
        return [_Value(n, t, self.at.get(n, -1)) for n, t in types.items()]

    def _states(self, updates: Sequence[Update]) -> None:
        """What the program itself keeps of batches: means of floats, of others that of rank 0."""
        named = [(u.value.text, u.target.text) for u in updates if isinstance(u.value, Name)]
        values = self._values((v, self.tensors[t].type) for v, t in named)
        comment = "What is kept of the whole batch."
        self._reduce([v for v in values if v.type.dtype.is_float], "mean", comment)
        others = [v for v in values if not v.type.dtype.is_float]
        self._bucketed(others, f"broadcast_from({{}}, root=0{over(self.group)})", comment, self.new)

    def _reduce(
        self, values: Collection[_Value], reduction: str, comment: str, group: Group | None = None
    ) -> dict[str, str]:
        """Values of all ranks of a group in place of these, in buckets; of those of a batch, unless
        it is given, in place of these in all that follows.
        """
        new = self.new if group is None else {}
        group = group or self.group
        if not group.axes:
            return new
        how = "" if reduction == "sum" else f', reduction="{reduction}"'
        call = f"all_reduce({{}}{over(group)}{how})"
        self._bucketed(values, call, comment, new)
        return new

    def _bucketed(
        self, values: Collection[_Value], call: str, comment: str, new: dict[str, str]
    ) -> None:
        """Puts what `call` gives for values, in buckets of one type, in their place."""
        values = sorted(values, key=lambda v: v.place)
        for bucket in buckets(values, self.bucket, _FIRST, min(_ALONE, self.bucket)):
            new |= self._called(bucket, call, comment)

    def _called(self, bucket: Sequence[_Value], call: str, comment: str) -> dict[str, str]:
        place = max(v.place for v in bucket)
        body, later = self._body_of(comment), self.unpacking
        if len(bucket) == 1:
            (v,) = bucket
            new = {v.name: body.value(f"all_{v.name}", call.format(v.name))}
            self._insert(place, body)
            return new
        flat = [
            body.value(f"flat_{v.name}", f"reshape({v.name}, shape=[{v.size}])") for v in bucket
        ]
        joined, reduced = body.name("bucket"), body.name("all_bucket")
        body.line(f"{joined} = concat({', '.join(flat)})")
        body.line(f"{reduced} = {call.format(joined)}")
        self._insert(place, body)
        parts = [later.name(f"part_{v.name}") for v in bucket]
        sizes = ", ".join(str(v.size) for v in bucket)
        later.line(f"{', '.join(parts)} = split({reduced}, sizes=[{sizes}])")
        new = {v.name: later.name(f"all_{v.name}") for v in bucket}
        for v, part in zip(bucket, parts, strict=True):
            shape = ", ".join(map(str, v.type.shape))
            later.line(f"{new[v.name]} = reshape({part}, shape=[{shape}])")
        return new

    def _body_of(self, comment: str) -> Body:
        """Statements for another place of the graph, below a comment."""
        body = Body(self.unpacking.taken)
        body.line(f"# {comment}")
        return body

    def _insert(self, place: int, body: Body) -> None:
        """Statements behind the one of that number; they belong to what it belongs to."""
        applied = [s for s in self.graph.body if isinstance(s, Apply)]
        origin = applied[place].derived_from if place >= 0 else None
        new = (
            replace(s, derived_from=origin) if isinstance(s, Apply) else s
            for s in statements(body.lines)
        )
        self.behind.setdefault(place, []).extend(new)
