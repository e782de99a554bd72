"""Operands of another type than is wanted: cast or transposed ones, and params to declare."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from opstep.lsp.fixes.fix import Edit, Fix, MessageSite, makes, operand_at, with_operand
from opstep.runtime.ir.graph import Apply, Graph, Name, Return, Span, Update
from opstep.runtime.ir.types import DType, TensorType, boolean, f32, i32, i64

_KINDS = (i64, i32, f32, boolean)  # what an op may want that is not the type of another operand
_MOST = 4  # fixes of one message


@makes("operands")
def mend(place: MessageSite) -> Iterator[Fix]:
    """The operand in another form, where the statement is right with it: each is tried."""
    s = place.statement
    if not isinstance(s, Apply) or not place.stands_alone():
        return
    yield from islice(_forms(place, s), _MOST)


def _forms(place: MessageSite, s: Apply) -> Iterator[Fix]:
    blamed = operand_at(s, place.span)
    others = [k for k, o in enumerate(s.operands) if isinstance(o, Name) and k != blamed]
    order = others if blamed is None else [blamed, *others]
    for k in order:
        o = s.operands[k]
        t = place.types.get(o.text) if isinstance(o, Name) else None
        if t is None or not isinstance(o, Name):
            continue
        for dtype in _dtypes(place, s, k):
            if dtype is not t.dtype:
                call = f"cast({o.text}, dtype={dtype})"
                title = f"Cast {o.text} to {dtype}"
                fix = _tried(place, s, k, f"{o.text}_{dtype}", t.with_dtype(dtype), call, title)
                if fix is not None:
                    yield fix
                    break
        if t.rank >= 2:
            swapped = TensorType(t.dtype, (*t.shape[:-2], t.shape[-1], t.shape[-2]))
            perm = [*range(t.rank - 2), t.rank - 1, t.rank - 2]
            call = f"transpose({o.text})" if t.rank == 2 else f"transpose({o.text}, perm={perm})"
            title = f"Transpose {o.text}"
            fix = _tried(place, s, k, f"{o.text}_t", swapped, call, title)
            if fix is not None and swapped != t:
                yield fix


def _dtypes(place: MessageSite, s: Apply, number: int) -> list[DType]:
    """The element types that an operand could be meant to have, likely ones first."""
    wanted: list[DType] = []
    graph = place.item.file.environment.graphs.get(s.callee.text)
    if isinstance(graph, Graph):
        declared = graph.inputs[number].type if number < len(graph.inputs) else None
        return [declared.dtype] if declared is not None else []
    for k, o in enumerate(s.operands):
        if k != number and isinstance(o, Name) and (t := place.types.get(o.text)) is not None:
            wanted.append(t.dtype)
    return list(dict.fromkeys([*wanted, *_KINDS]))


def _tried(
    place: MessageSite, s: Apply, number: int, name: str, t: TensorType, call: str, title: str
) -> Fix | None:
    """A line above that makes the operand what it should be, where that helps."""
    name = place.fresh(name.replace(".", "_"))
    if place.tried(with_operand(s, number, name), {name: t}) is None:
        return None
    where: Span = s.operands[number].span
    edits = (place.line_above(f"{name} = {call}"), Edit(*where, name))
    return Fix(title, edits, likely=operand_at(s, place.span) == number)


@makes("update-type", "return-type")
def cast_value(place: MessageSite) -> Iterator[Fix]:
    """The value cast to what is wanted, where only its element type is another."""
    s, t = place.statement, place.types.get(place.text)
    wanted = _wanted(place)
    if s is None or t is None or wanted is None or not place.stands_alone():
        return
    if t.shape == wanted.shape:
        name = place.fresh(f"{place.text}_{wanted.dtype}".replace(".", "_"))
        line = place.line_above(f"{name} = cast({place.text}, dtype={wanted.dtype})")
        edits = (line, Edit(*place.span, name))
        yield Fix(f"Cast {place.text} to {wanted.dtype}", edits, likely=True)


def _wanted(place: MessageSite) -> TensorType | None:
    s = place.statement
    if isinstance(s, Update):
        declared = place.item.file.environment.tensors.get(s.target.text)
        return declared.type if declared is not None else None
    if isinstance(s, Return) and place.graph is not None:
        for value, t in zip(s.values, place.graph.results, strict=False):
            if value.span == place.span:
                return t
    return None


@makes("condition")
def one_bool(place: MessageSite) -> Iterator[Fix]:
    """``all`` or ``any`` of a condition that has several elements."""
    t = place.types.get(place.text)
    if t is None or t.dtype is not boolean or not place.stands_alone():
        return
    for op in ("all", "any"):
        name = place.fresh(f"{op}_{place.text}".replace(".", "_"))
        edits = (place.line_above(f"{name} = {op}({place.text})"), Edit(*place.span, name))
        yield Fix(f"Assert {op} of {place.text}", edits, likely=op == "all")


@makes("undefined")
def declare(place: MessageSite) -> Iterator[Fix]:
    """A param of that name, where a type is found with which the statement is right."""
    s, name = place.statement, place.text
    if not isinstance(s, Apply):
        return
    known = [
        t for o in s.operands if isinstance(o, Name) and (t := place.types.get(o.text)) is not None
    ]
    for t in dict.fromkeys(_likely_types(known)):
        if t.is_concrete and place.tried(s, {name: t}) is not None:
            text = place.item.text
            at = place.item.node.span.start if place.item.node is not None else 0
            at = text.rfind("\n", 0, at) + 1
            while at > 0 and text[:at].rstrip(" \t").endswith("\n"):  # above its comments
                line = text.rfind("\n", 0, at - 1) + 1
                if not text[line : at - 1].lstrip().startswith("#"):
                    break
                at = line
            yield Fix(f"Declare param {name}: {t}", (Edit(at, at, f"param {name}: {t}\n\n"),))
            return


def _likely_types(known: list[TensorType]) -> Iterator[TensorType]:
    yield from known
    for t in known:
        if t.rank:
            yield TensorType(t.dtype, (t.shape[-1], t.shape[-1]))
            yield TensorType(t.dtype, (t.shape[-1],))
        yield TensorType(t.dtype, ())
    yield TensorType(f32, ())
