"""A graph of primitives as work on rows: what is computed of each element of a row, and what of the
row as a whole.

A row is what the reductions of the graph fold; all fold the same axes of one shape. Without one,
all elements are a row. A value is *inner* if it has an element for each of a row's, else it is a
number of the row. Values are registers of a `Body`: what is read, literals and reductions come
first, then elementwise ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from opstep.kernels.move.creation import iota
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.rules.axes import axis_of
from opstep.runtime.ir.graph import Apply, Name, Return
from opstep.runtime.ir.interfaces import per_channel_of
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import DType, TensorType, f32, f64
from opstep.runtime.ir.verified import Application, VerifiedGraph
from opstep.runtime.plan.fusing import Body, Member

FOLDS = (reductions.sum, reductions.mean, reductions.max, reductions.min)
PICKS = ("gather", "gather_elements")  # ops, of a family above this one


class Unfit(Exception):
    """The graph is not one of rows."""


class Read(NamedTuple):
    """An input of the graph, in a shape that the graph sees it in."""

    slot: int


class Number(NamedTuple):
    """A literal; as text, in which 0.0 is not -0.0."""

    text: str

    def of(self, dtype: DType) -> Any:
        """As a number of this type."""
        return dtype.numpy.type(float(self.text) if dtype.is_float else int(self.text))


@dataclass(frozen=True)
class Table:
    """An input with one axis, of which elements are picked."""

    slot: int


@dataclass(frozen=True)
class Place:
    """An element's place in its row."""


class Folded(NamedTuple):
    """A reduction of a register."""

    op: type[Op]
    axes: tuple[int, ...]


class _Seen(NamedTuple):
    """A result in another shape."""


class _Picked(NamedTuple):
    """The element of a table, or of a row, at an index."""

    op: type[Op]


class _Node(NamedTuple):
    type: TensorType
    what: Read | Number | Table | Place | Folded | _Seen | _Picked | Member
    operands: tuple[int, ...] = ()


class Rows(NamedTuple):
    """The shape of what is folded, whose axes from `first` to `last`, without that, make a row; if
    those from `over` are folded, too, a row is as many runs of elements, which lie apart.
    """

    shape: tuple[int, ...]
    first: int
    last: int
    over: tuple[int, int] = (0, 0)

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes before a run that are not folded."""
        return tuple(k for k in range(self.first) if not self.over[0] <= k < self.over[1])

    @property
    def before(self) -> int:
        return prod(self.shape[k] for k in self.kept)

    @property
    def n(self) -> int:
        """Elements of a run."""
        return prod(self.shape[self.first : self.last])

    @property
    def runs(self) -> int:
        return prod(self.shape[slice(*self.over)])

    @property
    def count(self) -> int:
        """Elements of a row."""
        return self.n * self.runs

    @property
    def apart(self) -> bool:
        return self.over[0] < self.over[1]

    @property
    def step(self) -> int:
        """Between the beginnings of a row's runs."""
        return prod(self.shape[self.over[1] :])

    @property
    def after(self) -> int:
        return prod(self.shape[self.last :])

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a value that broadcasts to the rows, with all axes. Raises `Unfit`."""
        wide = (1,) * (len(self.shape) - len(shape)) + shape
        if len(wide) > len(self.shape) or any(
            d not in (1, whole) for d, whole in zip(wide, self.shape, strict=True)
        ):
            raise Unfit(f"{list(shape)} does not broadcast to {list(self.shape)}")
        return wide

    def is_inner(self, shape: tuple[int, ...]) -> bool:
        sizes = self.sizes(shape)
        return any(d != 1 for d in (*sizes[self.first : self.last], *sizes[slice(*self.over)]))


class RowGraph(NamedTuple):
    """`leaves` are the registers before the members, `shapes` those of all registers, `inner` says
    which are inner. `stages`: how many reductions a register comes after, one after the other.

    A member that picks an element (`picked_of`) has the index as its operand.
    """

    rows: Rows
    body: Body
    leaves: tuple[Read | Number | Table | Place | Folded, ...]
    shapes: tuple[tuple[int, ...], ...]
    inner: tuple[bool, ...]
    stages: tuple[int, ...]
    terms: Mapping[int, int]  # register of a reduction -> that of what it folds
    dtype: DType  # of all that is folded, or in which elements are computed

    def within(self, targets: Iterable[int], known: Iterable[int] = ()) -> set[int]:
        """The registers from which the targets are computed within a row, with those; not those
        from which `known` ones and numbers are.
        """
        count, known = len(self.leaves), set(known)
        found, left = set[int](), list(targets)
        while left:
            r = left.pop()
            if r not in found:
                found.add(r)
                if r >= count and self.inner[r] and r not in known:
                    left += self.body.members[r - count].operands
        return found


def picked_of(member: Member) -> int | None:
    """The register of which a member picks an element, if it is one that does."""
    return dict(member.attrs)["of"] if member.op.name in PICKS else None


def _is_read(node: _Node) -> bool:
    return isinstance(node.what, Read)


def row_graph(graph: VerifiedGraph) -> RowGraph:
    """Raises `Unfit` where the graph is not one of rows."""
    return _Reader(graph).made()


class _Reader:
    def __init__(self, graph: VerifiedGraph):
        self.nodes: list[_Node] = []
        self.places: dict[_Node, int] = {}
        names: dict[str, int] = {}
        for slot, binding in enumerate(graph.graph.inputs):
            t = graph.types[binding.name.text]
            names[binding.name.text] = self._add(_Node(t, Read(slot)))
        self.results: list[int] = []
        for statement, application in zip(graph.graph.body, graph.applications, strict=True):
            if isinstance(statement, Return):
                self.results = [names[name.text] for name in statement.values]
            elif isinstance(statement, Apply) and application is not None:
                names[statement.results[0].name.text] = self._applied(statement, application, names)
            else:
                raise Unfit("a statement is no op")

    def _add(self, node: _Node) -> int:
        if node not in self.places:
            self.places[node] = len(self.nodes)
            self.nodes.append(node)
        return self.places[node]

    def _applied(self, statement: Apply, application: Application, names) -> int:
        op, resolved = application.op, application.resolved
        if op is None or None in resolved.operands or len(resolved.results) != 1:
            raise Unfit(f"{statement.callee.text} is no primitive of rows")
        seen: list[TensorType] = list(resolved.operands)  # pyright: ignore[reportAssignmentType]
        operands = tuple(
            names[o.text]
            if isinstance(o, Name)
            else self._add(_Node(TensorType(t.dtype, ()), Number(repr(o.value))))
            for o, t in zip(statement.operands, seen, strict=True)
        )
        (result,) = resolved.results
        if op is iota:
            return self._place(result, **application.attrs)
        if op.name in PICKS:
            return self._picked(op, result, *operands, application.attrs)
        if op.traits.reinterprets:
            return self._seen(operands[0], result)
        if op in FOLDS:
            axes = reductions.reduced_axes(seen[0], application.attrs["axes"])
            if seen[0].dtype not in (f32, f64):
                raise Unfit(f"{op.name} of {seen[0].dtype.name}")
            return self._add(_Node(result, Folded(op, tuple(sorted(axes))), operands))
        attrs = dict(application.attrs)
        scalars = [TensorType(op.computed(t.dtype), ()) for t in seen]
        if op.element is None or per_channel_of(op) or op.element(*scalars, **attrs) is None:
            raise Unfit(f"{op.name} is not computed element by element")
        member = Member(op, (), tuple(t.dtype for t in seen), result.dtype, tuple(attrs.items()))
        return self._member(member, result, operands)

    def _place(self, t: TensorType, *, shape, axis: int, start, step, dtype) -> int:
        if (start, step) != (0, 1) or t.size != t.shape[axis] or not dtype.is_integer:
            raise Unfit("places are counted otherwise")
        if t.size == 1:
            return self._add(_Node(TensorType(dtype, ()), Number("0")))
        return self._add(_Node(t, Place()))

    def _picked(self, op: type[Op], t: TensorType, x: int, index: int, attrs) -> int:
        """An element of an input; of what is computed of it element by element that is computed of
        the element.
        """
        node, rank = self.nodes[x], self.nodes[x].type.rank
        if isinstance(node.what, Member) and len(node.operands) == 1:
            before = t.with_dtype(self.nodes[node.operands[0]].type.dtype)
            one = self._picked(op, before, node.operands[0], index, attrs)
            return self._add(_Node(t, node.what, (one,)))
        if not isinstance(node.what, Read) or (op.name == "gather" and rank != 1):
            raise Unfit(f"{op.name} picks of what is no input")
        if op.name == "gather":
            x = self._add(_Node(node.type, Table(node.what.slot)))
        elif t.shape != _without(node.type.shape, axis_of(attrs["axis"], rank)):
            raise Unfit("not one element of each row is picked")
        if attrs.get("missing") is not None:
            raise Unfit("what is missing is filled in")
        return self._add(_Node(t, _Picked(op), (x, index)))

    def _member(self, member: Member, result: TensorType, operands: tuple[int, ...]) -> int:
        """An elementwise op; of what is seen in another shape it is computed before that."""
        seen = [o for o in operands if isinstance(self.nodes[o].what, _Seen)]
        if not seen:
            return self._add(_Node(result, member, operands))
        sources = {o: self.nodes[o].operands[0] for o in seen}
        shapes = {self.nodes[o].type.shape for o in sources.values()}
        if len(shapes) > 1 or any(self.nodes[o].type.rank for o in operands if o not in sources):
            raise Unfit("what is seen in another shape meets others")
        before = result.with_shape(*shapes)
        k = self._add(_Node(before, member, tuple(sources.get(o, o) for o in operands)))
        return self._add(_Node(result, _Seen(), (k,)))

    def _seen(self, k: int, t: TensorType) -> int:
        """Value k in another shape: of what is computed of inputs alone these are seen so."""
        node = self.nodes[k]
        if node.type.shape == t.shape:
            return k
        to = node.type.with_shape(t.shape)
        if isinstance(node.what, _Seen):
            return self._seen(node.operands[0], t)
        if isinstance(node.what, Read):
            return self._add(_Node(to, node.what))
        if isinstance(node.what, Member) and self._is_of_inputs(k):
            operands = tuple(
                self._seen(o, self.nodes[o].type.with_shape(t.shape))
                if self.nodes[o].type.rank
                else o
                for o in node.operands
            )
            return self._add(_Node(to, node.what, operands))
        return self._add(_Node(to, _Seen(), (k,)))

    def _is_of_inputs(self, k: int) -> bool:
        """Whether value k is computed of inputs of its size, and of numbers."""
        node = self.nodes[k]
        if isinstance(node.what, Read | Number):
            return True
        return isinstance(node.what, Member) and all(
            (not self.nodes[o].type.rank or self.nodes[o].type.size == node.type.size)
            and self._is_of_inputs(o)
            for o in node.operands
        )

    # --- registers ---

    def made(self) -> RowGraph:
        results = [self._source(k) for k in self.results]
        reached = self._reached(results)
        rows = self._rows(reached)
        inner, stages = self._kinds(reached, rows)
        self._check_results(results, inner, rows)
        kinds = (Read, Number, Table, Place, Folded)
        leaves = [k for kind in kinds for k in reached if isinstance(self.nodes[k].what, kind)]
        order = [*leaves, *(k for k in reached if k not in leaves)]
        register = {k: r for r, k in enumerate(order)}
        nodes = [self.nodes[k] for k in order]
        members = [self._with_registers(node, register) for node in nodes[len(leaves) :]]
        leaves = nodes[: len(leaves)]
        outputs = tuple(register[k] for k in results)
        types: Any = [node.type for node in nodes]
        dtypes = tuple(node.type.dtype for node in leaves)
        terms = {
            r: register[node.operands[0]]
            for r, node in enumerate(leaves)
            if isinstance(node.what, Folded)
        }
        return RowGraph(
            rows,
            Body(dtypes, tuple(members), outputs, (False,) * len(outputs), -1),
            tuple(node.what for node in leaves),  # pyright: ignore[reportArgumentType]
            tuple(t.shape for t in types),
            tuple(inner[k] for k in order),
            tuple(stages[k] for k in order),
            terms,
            next(
                (t.dtype for t in [*(types[f] for f in terms), *types] if t.dtype in (f32, f64)),
                f32,
            ),
        )

    def _with_registers(self, node: _Node, register: dict[int, int]) -> Member:
        operands = tuple(register[o] for o in node.operands)
        if isinstance(node.what, _Picked):
            of, index = operands
            seen = (self.nodes[node.operands[1]].type.dtype,)
            return Member(node.what.op, (index,), seen, node.type.dtype, (("of", of),))
        assert isinstance(node.what, Member)
        return node.what._replace(operands=operands)

    def _source(self, k: int) -> int:
        """Value k as it was before it was seen in another shape."""
        return self.nodes[k].operands[0] if isinstance(self.nodes[k].what, _Seen) else k

    def _reached(self, results: list[int]) -> list[int]:
        found = set(results)
        for k in reversed(range(len(self.nodes))):
            if k in found:
                found.update(self.nodes[k].operands)
        return sorted(found)

    def _rows(self, reached: list[int]) -> Rows:
        """The rows that all reductions fold, or of which elements are picked."""
        found = set[tuple[Any, ...]]()
        if along := self._looked_along(reached):
            return along
        for node in (self.nodes[k] for k in reached):
            if isinstance(node.what, Folded):
                shape = self.nodes[node.operands[0]].type.shape
                wide = tuple(a for a in node.what.axes if shape[a] != 1)
                found.add((shape, wide, node.type.dtype))
        if not found:  # all of it is one row
            whole: Any = self.nodes[reached[-1]].type.shape
            return Rows(whole, 0, len(whole))
        if len(found) != 1:
            raise Unfit("reductions are not of the same axes of one shape and type")
        ((shape, axes, _),) = found
        if not axes:  # rows of one element: columns are quicker, if nothing repeats among them
            reads = [n.type.size for n in map(self.nodes.__getitem__, reached) if _is_read(n)]
            at = 0 if {*reads} <= {1, prod(shape)} else len(shape)
            return Rows(shape, at, at)
        (*others, (first, last)) = _together(shape, axes)
        if len(others) > 1 or (others and prod(shape[last:]) != 1):
            raise Unfit("what is folded does not lie together")
        return Rows(shape, first, last, *others)

    def _looked_along(self, reached: list[int]) -> Rows | None:
        """The rows of one axis in which elements are picked or have places, if there are any."""
        axes, shapes = set[int](), set[tuple[int, ...]]()
        for node in map(self.nodes.__getitem__, reached):
            if isinstance(node.what, _Picked) and node.what.op.name == "gather_elements":
                row: Any = self.nodes[node.operands[0]].type.shape
                axes.update(k for k, d in enumerate(node.type.shape) if d != row[k])
                shapes.add(row)
            elif isinstance(node.what, Place):
                axes.update(k for k, d in enumerate(node.type.shape) if d != 1)
                shapes.add(self.nodes[max(reached, key=self._size)].type.shape)
        if not shapes or not axes:
            return None
        if len(axes) != 1 or len(shapes) != 1:
            raise Unfit("rows of several axes are looked along")
        ((shape,), (axis,)) = shapes, axes
        if any(
            self.nodes[n.operands[0]].type.shape != shape
            or [a for a in n.what.axes if shape[a] != 1] != [axis]
            for n in map(self.nodes.__getitem__, reached)
            if isinstance(n.what, Folded)
        ):
            raise Unfit("what is folded is not what is looked along")
        return Rows(shape, axis, axis + 1)

    def _size(self, k: int) -> int:
        return self.nodes[k].type.size  # pyright: ignore[reportReturnType]

    def _kinds(self, reached: list[int], rows: Rows) -> tuple[dict[int, bool], dict[int, int]]:
        inner, stages = dict[int, bool](), dict[int, int]()
        for k in reached:
            node = self.nodes[k]
            stages[k] = max((stages[o] for o in node.operands), default=0)
            if isinstance(node.what, Read | Number | Place):
                inner[k] = rows.is_inner(node.type.shape)  # pyright: ignore[reportArgumentType]
            elif isinstance(node.what, Table):
                inner[k] = False
            elif isinstance(node.what, _Picked):
                inner[k] = inner[node.operands[1]]
                if inner[k] and node.what.op.name != "gather":
                    raise Unfit("elements of a row are picked along it")
            elif isinstance(node.what, Folded):
                inner[k] = False
                stages[k] += 1
                self._check_folded(node, inner, rows)
            else:
                inner[k] = any(inner[o] for o in node.operands)
                self._check(node, inner[k], inner, rows)
        return inner, stages

    def _check(self, node: _Node, is_inner: bool, inner: dict[int, bool], rows: Rows) -> None:
        shapes: Any = [self.nodes[o].type.shape for o in node.operands]
        if not is_inner and all(prod(s) == 1 or s == node.type.shape for s in shapes):
            return  # numbers of rows, whatever axes they have
        if any(rows.is_inner(s) != inner[o] for s, o in zip(shapes, node.operands, strict=True)):
            raise Unfit("a number of a row is seen along the row")

    def _check_folded(self, node: _Node, inner: dict[int, bool], rows: Rows) -> None:
        if rows.count != 1 and not inner[node.operands[0]]:
            raise Unfit("a number of a row is folded")

    def _check_results(self, results: list[int], inner: dict[int, bool], rows: Rows) -> None:
        for k in results:
            size = rows.before * rows.after * (rows.count if inner[k] else 1)
            if self.nodes[k].type.size != size:
                raise Unfit("a result is not of all rows")


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _together(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[tuple[int, int]]:
    """The first and the last of neighbouring axes, without that; axes of size 1 are no matter."""
    groups: list[tuple[int, int]] = []
    for k in axes:
        if groups and all(shape[j] == 1 for j in range(groups[-1][1], k)):
            groups[-1] = groups[-1][0], k + 1
        else:
            groups.append((k, k + 1))
    return groups
