"""The syntax tree: what a file says, immutable, with a span on every name.

Two trees are equal when they say the same: spans are not compared, comments are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, dataclass_transform

from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.types import TensorType, TypeVariable, type_variable

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _node(cls: type[_T]) -> type[_T]:
    """A dataclass that the type checker holds immutable.

    ``frozen=True`` would hold it at run time too, but makes construction four times slower, and a
    file of 100,000 statements has a million nodes.
    """
    return dataclass(slots=True, unsafe_hash=cls.__dict__.get("__hash__") is None)(cls)


def same_value(a, b) -> bool:
    """Whether two attribute values or literals say the same: 1, 1.0 and true differ, nan is nan."""
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(same_value, a, b))
    return repr(a) == repr(b) if type(a) is float else a == b


class Span(NamedTuple):
    """Half-open range of character offsets in the source text."""

    start: int
    end: int


NOWHERE = Span(0, 0)


@_node
class Name:
    """A use or a definition of a name; names of params may be dotted."""

    text: str
    span: Span = field(default=NOWHERE, compare=False)


@_node
class Literal:
    """A number used as an operand. `value` is int or float (inf and nan included)."""

    value: int | float
    span: Span = field(default=NOWHERE, compare=False)

    def __eq__(self, other) -> bool:
        return isinstance(other, Literal) and same_value(self.value, other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))  # nan has no hash of its own


@_node
class Attr:
    """``name=value``. Values: int, float, bool, None, str, Expr, `op.Ref`, or a tuple of these."""

    name: Name
    value: Any
    span: Span = field(default=NOWHERE, compare=False)  # of the value

    def __eq__(self, other) -> bool:
        return (
            isinstance(other, Attr)
            and self.name == other.name
            and same_value(self.value, other.value)
        )

    def __hash__(self) -> int:
        return hash((self.name, repr(self.value)))


class SourceLine(NamedTuple):
    """A line of a source file."""

    file: str
    line: int


@_node
class Provenance:
    """``at "model.py":33, "train.py":10 in "encoder.0"``: what an importer took a statement from.

    The lines are those of a call stack, innermost first; at least one. `module` is "" where no
    module is named. Its last word is ``backward`` where a derivative of the line is computed.
    """

    frames: tuple[SourceLine, ...]
    module: str = ""

    @property
    def file(self) -> str:
        return self.frames[0].file

    @property
    def line(self) -> int:
        return self.frames[0].line

    @property
    def is_backward(self) -> bool:
        return self.module.rpartition(" ")[2] == "backward"

    @property
    def owner(self) -> str:
        """The module, without that word."""
        return self.module.rpartition(" ")[0] if self.is_backward else self.module

    def of_derivative(self) -> Provenance:
        """The same lines for a statement that computes a derivative of them."""
        module = self.module if self.is_backward else f"{self.module} backward".strip()
        return Provenance(self.frames, module)


@_node
class Comments:
    """Comment lines above a statement (without ``# ``) and the one behind it.

    Above, "" is a blank line and " " an empty comment.
    """

    above: tuple[str, ...] = ()
    trailing: str | None = None


NO_COMMENTS = Comments()


@_node
class Binding:
    """A name with its type, where one is written: an input, or the result of an op."""

    name: Name
    type: TensorType | None
    type_span: Span = field(default=NOWHERE, compare=False)


class DerivedFrom(NamedTuple):
    """The statement that a statement of a gradient was made for, as the file has it; `backward`
    where it is part of that one's derivative.
    """

    statement: Apply
    source: Source | None
    backward: bool


@_node
class Apply:
    """``a, b = op(x, 2, key=value) at "f.py":3``: an op or a graph applied to operands.

    Without results it is written ``op(x)``: a call of a graph that only updates named tensors.
    """

    results: tuple[Binding, ...]
    callee: Name
    operands: tuple[Name | Literal, ...]
    attrs: tuple[Attr, ...] = ()
    at: Provenance | None = None
    comments: Comments = NO_COMMENTS
    span: Span = field(default=NOWHERE, compare=False)
    derived_from: DerivedFrom | None = field(default=None, compare=False)


@_node
class Assert:
    """``assert fine, "message"``"""

    condition: Name
    message: str
    at: Provenance | None = None
    comments: Comments = NO_COMMENTS
    span: Span = field(default=NOWHERE, compare=False)


@_node
class Update:
    """``conv1.w <- w``: takes effect when the graph that holds it ends."""

    target: Name
    value: Name | Literal
    at: Provenance | None = None
    comments: Comments = NO_COMMENTS
    span: Span = field(default=NOWHERE, compare=False)


@_node
class Return:
    """``return a, b``: the last statement of every graph that has results."""

    values: tuple[Name, ...]
    at: Provenance | None = None
    comments: Comments = NO_COMMENTS
    span: Span = field(default=NOWHERE, compare=False)


Statement = Apply | Assert | Update | Return


def names_read(statement: Statement) -> list[str]:
    """The values and named tensors that a statement reads."""
    match statement:
        case Apply(operands=names) | Return(values=names):
            return [n.text for n in names if isinstance(n, Name)]
        case Update(value=Name(text=text)) | Assert(condition=Name(text=text)):
            return [text]
    return []


@_node
class Sharding:
    """``over model axis 1``: of a named tensor each rank has a part along a dim, the first unless
    it is named, in the order of the ranks along these axes of the mesh.
    """

    over: tuple[Name, ...]
    axis: int = 0
    axis_span: Span = field(default=NOWHERE, compare=False)


@_node
class Declaration:
    """``param w: f32[6] over model = zeros()``, ``state step: i32[] = 0``: a named tensor, whole,
    and its start.
    """

    kind: str  # "param" or "state"
    name: Name
    type: TensorType
    init: (
        Name | None
    )  # the initialising op; None where `value` is given, or nothing is (loaded, then)
    attrs: tuple[Attr, ...] = ()
    value: Literal | None = None
    comments: Comments = NO_COMMENTS
    span: Span = field(default=NOWHERE, compare=False)
    type_span: Span = field(default=NOWHERE, compare=False)
    sharding: Sharding | None = None


@_node
class MeshAxis:
    """``data: 4``"""

    name: Name
    extent: int
    extent_span: Span = field(default=NOWHERE, compare=False)


@_node
class MeshDeclaration:
    """``mesh data: 4, model: 2``: how the ranks of the program are arranged."""

    axes: tuple[MeshAxis, ...]
    comments: Comments = NO_COMMENTS
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def name(self) -> Name:
        """Of the first axis: what the item is found by."""
        return self.axes[0].name

    @property
    def mesh(self) -> Mesh:
        return Mesh(tuple((a.name.text, a.extent) for a in self.axes), True)


@_node
class TypeParameter:
    """``T: float``"""

    name: Name
    family: Name  # see `generic.FAMILIES`

    @property
    def variable(self) -> TypeVariable:
        return type_variable(self.name.text, self.family.text)


@_node
class Graph:
    """``graph name<T: float>(x: T[N]) -> T[N] { … }``"""

    name: Name
    inputs: tuple[Binding, ...]
    results: tuple[TensorType, ...]
    body: tuple[Statement, ...]
    comments: Comments = NO_COMMENTS
    closing: Comments = NO_COMMENTS  # comments above and behind the closing brace
    span: Span = field(default=NOWHERE, compare=False)
    results_span: Span = field(default=NOWHERE, compare=False)
    type_parameters: tuple[TypeParameter, ...] = ()


Item = Declaration | MeshDeclaration | Graph


@_node
class Module:
    """A file: named tensors, meshes and graphs in the order written."""

    items: tuple[Item, ...]
    closing: Comments = NO_COMMENTS  # comments after the last item
    source: Source | None = field(default=None, compare=False)

    @property
    def tensors(self) -> dict[str, Declaration]:
        """The params and states by name; the first where several have one."""
        found: dict[str, Declaration] = {}
        for item in self.items:
            if isinstance(item, Declaration):
                found.setdefault(item.name.text, item)
        return found

    @property
    def mesh(self) -> Mesh | None:
        """The first that is declared."""
        found = (i.mesh for i in self.items if isinstance(i, MeshDeclaration))
        return next(found, None)

    @property
    def graphs(self) -> dict[str, Graph]:
        """Likewise."""
        found: dict[str, Graph] = {}
        for item in self.items:
            if isinstance(item, Graph):
                found.setdefault(item.name.text, item)
        return found


class Source:
    """A text and where it came from; turns offsets into lines and columns."""

    def __init__(self, text: str, path: str = "<text>"):
        self.text = text
        self.path = path
        self._starts: list[int] | None = None

    def _line_starts(self) -> list[int]:
        if self._starts is None:
            starts, position = [0], self.text.find("\n")
            while position >= 0:
                starts.append(position + 1)
                position = self.text.find("\n", position + 1)
            self._starts = starts
        return self._starts

    def locate(self, offset: int) -> tuple[int, int]:
        """(line, column), both from 1."""
        from bisect import bisect_right

        starts = self._line_starts()
        line = bisect_right(starts, offset)
        return line, offset - starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, from 1, without its end."""
        starts = self._line_starts()
        end = starts[number] - 1 if number < len(starts) else len(self.text)
        return self.text[starts[number - 1] : end].rstrip("\r")
