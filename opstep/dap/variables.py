"""Scopes, tensors and tables as the protocol's variables: who has which children."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.dap.facts import (
    READ_ONLY,
    VIRTUAL,
    Fields,
    declared,
    producer_fields,
    statistics_fields,
)
from opstep.dap.frames import FrameHandle
from opstep.dap.styling import coloured, figures_first
from opstep.dap.tensor_origins import (
    ComputedTensor,
    NamedTensor,
    Opened,
    Origin,
    Variable,
    VariableWriter,
    indexed,
    target_of,
)
from opstep.runtime.ir.lexer import quote_name

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.activation import Node

EAGER_S = 0.005  # of a request, in which statistics are taken of tensors that it shows
SMALL_ELEMENTS, SMALL_COUNT = 1 << 16, 50  # of so many small ones they are taken in any case
EAGER_ELEMENTS = 1 << 22  # of a tensor whose statistics are taken unasked
GROUP = 100  # values and rows that are shown together
MOST = 10_000  # children of one response
ROWS_COPIED = 1 << 18  # elements of a page of rows that are copied to say what is in them


LAZY: dict[str, Any] = {"lazy": True}


class Writer:
    """Of one response. `hex`: integers in hexadecimal, floats with all their bits. `styled`: with
    colours, where the client shows them.
    """

    def __init__(self, session: Session, hex: bool = False, styled: bool = False):
        self.session = session
        self.hex = hex
        self.styled = styled and session.client.supports_ansi_styling
        self._until = time.perf_counter() + EAGER_S
        self._small_budget = SMALL_COUNT

    def children(self, of: Opened, kind: str | None, start: int, count: int) -> list[Variable]:
        """A page of children; `count` 0 stands for all. Named ones come before indexed ones."""
        found: list[Variable] = []
        left, skipped = min(count or MOST, MOST), start
        for each, available in (("named", of.named), ("indexed", of.indexed)):
            if kind not in (None, each):
                continue
            first, last = min(skipped, available), min(skipped + left, available)
            if last > first:
                found += of.page(self, each, first, last)
            left, skipped = left - (last - first), max(skipped - available, 0)
        return found

    # --- one variable ---

    def plain(self, name: str, value: str, type: str = "", **more: Any) -> Variable:
        """One without children."""
        found: Variable = {"name": name, "value": value, "variablesReference": 0, **more}
        if type and self.session.client.supports_variable_type:
            found["type"] = type
        return found

    def opening(self, name: str, value: str, of: Opened, type: str = "", **more: Any) -> Variable:
        """One with children."""
        return self.plain(name, value, type, **more) | self.counts(of)

    def counts(self, of: Opened, key: Any = None) -> dict[str, Any]:
        """What is told of something that can be opened, in variables, scopes and results."""
        number = self.session.references.add(of, key)
        if not getattr(of, "counted", True):
            return {"variablesReference": number}
        return {
            "variablesReference": number,
            "namedVariables": of.named,
            "indexedVariables": of.indexed,
        }

    def tensor(self, name: str, origin: Origin, **more: Any) -> Variable:
        """A tensor in one line. What would take long to say is said when it is opened."""
        from opstep.runtime.expressions.text import type_text

        handle = origin.handle()
        nodes, type, shown = origin.nodes(), handle.type, type_text(handle)
        found: Variable = {"evaluateName": origin.expression} if origin.expression else {}
        if self.session.client.supports_memory_references:
            found["memoryReference"] = memory_reference(self.session, origin)
        found |= more
        if self.session.client.has_menus:
            found["__vscodeVariableMenuContext"] = "tensor" if type.shape else "scalar"
        text = self._now(origin, nodes)
        if text is not None and self.styled:
            found, text = self._styled(found, type, text)
        if text is None:
            hint = found.pop("presentationHint", {}) | LAZY
            waits = shown if all(node.present for node in nodes) else f"{shown}  dropped"
            of = Later(name, origin)
            return self.opening(name, waits, of, shown, presentationHint=hint, **found)
        if not type.shape:
            return self.plain(name, text, shown, **found)
        return self.opening(name, text, Tensor(origin, type.shape), shown, **found)

    def _styled(self, found: Variable, type: Any, text: str) -> tuple[Variable, str]:
        """What an edit box would show in place of the elements, figures or codes of colours, is not
        to be edited there: the extension has a box of its own.
        """
        from opstep.runtime.expressions.text import FEW

        shown = coloured(text)
        if self.session.client.has_menus and (shown != text or type.size > FEW):
            hint = found.get("presentationHint", {})
            found = found | {"presentationHint": hint | READ_ONLY}
        return found, shown

    def _now(self, origin: Origin, nodes: Sequence[Node]) -> str | None:
        """The line, where it takes little."""
        for node in nodes:
            if node.figures is not None:
                continue
            size: Any = node.type.size
            if not node.present or size > EAGER_ELEMENTS:
                return None
            if size <= SMALL_ELEMENTS and self._small_budget > 0:
                self._small_budget -= 1
            elif time.perf_counter() > self._until:
                return None
        return described(origin, self.hex)

    def element(self, name: str, value: Any, expression: str = "") -> Variable:
        """One number of a tensor."""
        from opstep.runtime.ir.types import dtype_of

        more = {"evaluateName": expression} if expression else {}
        type = f"{dtype_of(value.dtype).name}[]"
        return self.plain(name, element_text(value, self.hex), type, **more)

    def row(
        self, name: str, array: np.ndarray, origin: Origin, indices: tuple[int, ...]
    ) -> Variable:
        """A part of a tensor, of which the elements are here."""
        from opstep.runtime.expressions.text import value_text

        expression = indexed(origin.expression, indices)
        more = {"evaluateName": expression} if expression else {}
        of = Tensor(origin, _shape(origin), indices)
        return self.opening(name, value_text(array), of, "", **more)

    def location(self, variable: Variable, find: Callable[[], Any]) -> Variable:
        """Adds where the variable is declared, which is looked up when it is asked for."""
        number = self.session.references.add(Location(find))
        return variable | {"declarationLocationReference": number}


class Location:
    """What a location reference stands for: gives source and span, or None."""

    __slots__ = ("find",)

    def __init__(self, find: Callable[[], Any]):
        self.find = find


def described(origin: Origin, hex: bool = False) -> str:
    """A tensor in one line, with statistics; few elements as they are."""
    from opstep.runtime.expressions.text import FEW, figures_text, type_text, value_text

    handle = origin.handle()
    if not handle.type.shape:
        return element_text(handle.array()[()], hex)
    if 0 < handle.type.size <= FEW:
        return value_text(handle)
    return figures_first(type_text(handle), figures_text(handle.type, handle.statistics()))


def element_text(value: Any, hex: bool = False) -> str:
    """One element."""
    from opstep.runtime.expressions.text import number_text

    if hex and value.dtype.kind in "iu":
        return f"{int(value):#x}"
    if hex and value.dtype.kind != "b":
        return float(value).hex()
    return number_text(value)


def memory_reference(session: Session, origin: Origin) -> str:
    """Under which a client reads and writes the bytes of a tensor, while the stop lasts."""
    return f"tensor:{session.references.add(origin)}"


def _shape(origin: Origin) -> tuple[Any, ...]:
    return tuple(origin.handle().type.shape)  # concrete here


# --- what can be opened ---------------------------------------------------------------------------


class Later(Opened):
    """A tensor whose line is written when it is asked for: has it as the one child."""

    named, indexed = 1, 0

    def __init__(self, name: str, origin: Origin):
        self.name = name
        self.origin = origin

    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        self.origin.handle().statistics()
        return [w.tensor(self.name, self.origin)]

    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        return target_of(self.origin, ())


class Tensor(Opened):
    """A tensor, or the part of it that leading indices leave: rows, and what is known of it."""

    def __init__(self, origin: Origin, shape: Sequence[Any], indices: tuple[int, ...] = ()):
        self.origin = origin
        self.shape: tuple[int, ...] = tuple(shape)
        self.indices = indices
        self.rows: int = self.shape[len(indices)]
        self.named = 0 if indices else 1 + len(origin.nodes())

    @property
    def indexed(self) -> int:
        return self.rows

    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        if kind == "named":
            return self._properties(w)[start:stop]
        everything = self.rows > GROUP and (start, stop) == (0, min(self.rows, MOST))
        if everything and not w.session.client.supports_variable_paging:
            return ranges(w, self, self.rows)
        return self._rows(w, start, stop)

    def _rows(self, w: VariableWriter, start: int, stop: int) -> list[Variable]:
        handle, indices = self.origin.handle(), self.indices
        inner = self.shape[len(indices) + 1 :]
        size = int(np.prod(inner, dtype=np.int64))
        if inner and (stop - start) * size > ROWS_COPIED:
            return [self._unseen(w, k, inner) for k in range(start, stop)]
        part = handle.part((*indices, slice(start, stop)))
        if inner:
            rows = zip(range(start, stop), part, strict=True)
            return [w.row(f"[{k}]", a, self.origin, (*indices, k)) for k, a in rows]
        name = self.origin.expression
        return [
            w.element(f"[{k}]", part[k - start], indexed(name, (*indices, k)))
            for k in range(start, stop)
        ]

    def _unseen(self, w: VariableWriter, k: int, inner: tuple[int, ...]) -> Variable:
        """A row that is too large to be looked at unasked."""
        from opstep.runtime.ir.types import TensorType

        indices = (*self.indices, k)
        text = str(TensorType(self.origin.handle().type.dtype, inner))
        of = Tensor(self.origin, self.shape, indices)
        expression = indexed(self.origin.expression, indices)
        more = {"evaluateName": expression} if expression else {}
        return w.opening(f"[{k}]", text, of, "", **more)

    def _properties(self, w: VariableWriter) -> list[Variable]:
        figures = Fields(lambda: statistics_fields(self.origin.handle().statistics()))
        found = [w.opening("statistics", "", figures, presentationHint=VIRTUAL)]
        found += self._shards(w)
        node = self.origin.node()
        if node is not None:
            producer, how = producer_fields(node, w.session.debugger.machine.executor)
            text = how or "given from outside"
            if producer is None:
                found.append(w.plain("made by", text, presentationHint=VIRTUAL))
            else:
                found.append(w.opening("made by", text, producer, presentationHint=VIRTUAL))
        return found

    def _shards(self, w: VariableWriter) -> list[Variable]:
        """What each rank has of the whole."""
        whole: Any = self.origin.handle()
        if self.origin.node() is not None or not self.origin.nodes():
            return []
        name, members = self.origin.expression, whole.members
        own = [ComputedTensor(p, f"{name}@{r}") for r, p in zip(members, whole.parts, strict=True)]
        return [w.tensor(one.expression, one) for one in own]

    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        if not (name.startswith("[") and name[1:-1].isdigit()):
            return None
        return target_of(self.origin, (*self.indices, int(name[1:-1])))


class Range(Opened):
    """Some of the indexed children of something, for clients that do not ask for pages."""

    named = 0

    def __init__(self, of: Tensor, start: int, stop: int):
        self.of, self.start, self.stop = of, start, stop

    @property
    def indexed(self) -> int:
        return self.stop - self.start

    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        if self.indexed > GROUP:
            return ranges(w, self.of, self.stop, self.start)
        return self.of._rows(w, self.start + start, self.start + stop)

    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        return self.of.target(name)


def ranges(w: VariableWriter, of: Tensor, stop: int, start: int = 0) -> list[Variable]:
    """``[0..99]``, ``[100..199]`` …, at most a hundred of them."""
    size = GROUP
    while (stop - start) > size * GROUP:
        size *= GROUP
    cuts = [(k, min(k + size, stop)) for k in range(start, stop, size)]
    return [w.opening(f"[{a}..{b - 1}]", "", Range(of, a, b)) for a, b in cuts]


class Names(Opened):
    """Tensors by name. Where there are very many, the older ones stand in groups."""

    indexed = 0

    def __init__(
        self, frame_handle: FrameHandle, names: Sequence[str], nodes: Callable[[str], Node | None],
        shadowed: Collection[str] = (),
    ):  # fmt: skip
        """`shadowed`: names that mean something else in an expression."""
        self.frame_handle = frame_handle
        self.names = names
        self.nodes = nodes
        self.shadowed = shadowed
        ungrouped = len(names) if len(names) <= 2 * GROUP else len(names) % GROUP or GROUP
        self.groups = (len(names) - ungrouped) // GROUP
        self.ungrouped = ungrouped

    @property
    def named(self) -> int:
        return self.groups + self.ungrouped

    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        found = [self._group(w, k) for k in range(start, min(stop, self.groups))]
        first = max(start, self.groups) - self.groups + self.groups * GROUP
        last = stop - self.groups + self.groups * GROUP
        for name in self.names[first : max(last, first)]:
            node = self.nodes(name)
            if node is not None:
                shown = w.tensor(name, NamedTensor(self.frame_handle, name))
                if name in self.shadowed:
                    shown.pop("evaluateName", None)
                found.append(
                    w.location(shown, lambda n=node, k=name: declared(self.frame_handle, k, n))
                )
        return found

    def _group(self, w: VariableWriter, k: int) -> Variable:
        names = self.names[k * GROUP : (k + 1) * GROUP]
        of = Names(self.frame_handle, names, self.nodes, self.shadowed)
        title = f"{names[0]} … {names[-1]}"
        return w.opening(title, f"{len(names)} values", of, presentationHint=VIRTUAL)

    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        return (self.frame_handle, quote_name(name)) if name in self.names else None
