"""Operands of another type than is wanted: cast or transposed ones, and params to declare."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from opstep.lsp.fixes.fix import Edit, Fix, MessageSite, makes, operand_at, with_operand
from opstep.runtime.ir.graph import Apply, Graph, Name, Return, Span, Update
from opstep.runtime.ir.lexer import bare_name, quote_name
from opstep.runtime.ir.types import DType, TensorType, boolean, f32, i32, i64

_KINDS = (i64, i32, f32, boolean)  # what an op may want that is not the type of another operand
_MOST = 4  # fixes of one message


@makes("operands")
def mend(site: MessageSite) -> Iterator[Fix]:
    """The operand in another form, where the statement is right with it: each is tried."""
    s = site.statement
    if not isinstance(s, Apply) or not site.is_only_on_line():
        return
    yield from islice(_forms(site, s), _MOST)


def _forms(site: MessageSite, s: Apply) -> Iterator[Fix]:
    blamed = operand_at(s, site.span)
    others = [k for k, o in enumerate(s.operands) if isinstance(o, Name) and k != blamed]
    order = others if blamed is None else [blamed, *others]
    for k in order:
        o = s.operands[k]
        t = site.types.get(o.text) if isinstance(o, Name) else None
        if t is None or not isinstance(o, Name):
            continue
        for dtype in _dtypes(site, s, k):
            if dtype is not t.dtype:
                call = f"cast({quote_name(o.text)}, dtype={dtype})"
                title = f"Cast {o.text} to {dtype}"
                fix = _tried(site, s, k, f"{o.text}_{dtype}", t.with_dtype(dtype), call, title)
                if fix is not None:
                    yield fix
                    break
        if t.rank >= 2:
            swapped = TensorType(t.dtype, (*t.shape[:-2], t.shape[-1], t.shape[-2]))
            perm = [*range(t.rank - 2), t.rank - 1, t.rank - 2]
            x = quote_name(o.text)
            call = f"transpose({x})" if t.rank == 2 else f"transpose({x}, perm={perm})"
            title = f"Transpose {o.text}"
            fix = _tried(site, s, k, f"{o.text}_t", swapped, call, title)
            if fix is not None and swapped != t:
                yield fix


def _dtypes(site: MessageSite, s: Apply, number: int) -> list[DType]:
    """The element types that an operand could be meant to have, likely ones first."""
    dtypes: list[DType] = []
    graph = site.item.file.environment.graphs.get(s.callee.text)
    if isinstance(graph, Graph):
        declared = graph.inputs[number].type if number < len(graph.inputs) else None
        if declared is None or not declared.dtype.is_generic:
            return [declared.dtype] if declared is not None else []
    for k, o in enumerate(s.operands):
        if k != number and isinstance(o, Name) and (t := site.types.get(o.text)) is not None:
            dtypes.append(t.dtype)
    return list(dict.fromkeys([*dtypes, *_KINDS]))


def _tried(
    site: MessageSite, s: Apply, number: int, name: str, t: TensorType, call: str, title: str
) -> Fix | None:
    """A line above that makes the operand what it should be, where that helps."""
    name = site.fresh(name)
    if site.tried(with_operand(s, number, name), {name: t}) is None:
        return None
    where: Span = s.operands[number].span
    edits = (site.line_above(f"{name} = {call}"), Edit(*where, name))
    return Fix(title, edits, likely=operand_at(s, site.span) == number)


@makes("update-type", "return-type")
def cast_value(site: MessageSite) -> Iterator[Fix]:
    """The value cast to what is wanted, where only its element type is another."""
    s, t = site.statement, site.types.get(bare_name(site.text))
    expected = _expected_type(site)
    if s is None or t is None or expected is None or not site.is_only_on_line():
        return
    if t.shape == expected.shape:
        name = site.fresh(f"{bare_name(site.text)}_{expected.dtype}")
        line = site.line_above(f"{name} = cast({site.text}, dtype={expected.dtype})")
        edits = (line, Edit(*site.span, name))
        yield Fix(f"Cast {site.text} to {expected.dtype}", edits, likely=True)


def _expected_type(site: MessageSite) -> TensorType | None:
    s = site.statement
    if isinstance(s, Update):
        declared = site.item.file.environment.tensors.get(s.target.text)
        return declared.type if declared is not None else None
    if isinstance(s, Return) and site.graph is not None:
        for value, t in zip(s.values, site.graph.results, strict=False):
            if value.span == site.span:
                return t
    return None


@makes("condition")
def one_bool(site: MessageSite) -> Iterator[Fix]:
    """``all`` or ``any`` of a condition that has several elements."""
    t = site.types.get(bare_name(site.text))
    if t is None or t.dtype is not boolean or not site.is_only_on_line():
        return
    for op in ("all", "any"):
        name = site.fresh(f"{op}_{bare_name(site.text)}")
        edits = (site.line_above(f"{name} = {op}({site.text})"), Edit(*site.span, name))
        yield Fix(f"Assert {op} of {site.text}", edits, likely=op == "all")


@makes("undefined")
def declare(site: MessageSite) -> Iterator[Fix]:
    """A param of that name, where a type is found with which the statement is right."""
    s, name = site.statement, site.text
    if not isinstance(s, Apply):
        return
    operand_types = [
        t for o in s.operands if isinstance(o, Name) and (t := site.types.get(o.text)) is not None
    ]
    for t in dict.fromkeys(_likely_types(operand_types)):
        if t.is_concrete and site.tried(s, {bare_name(name): t}) is not None:
            text = site.item.text
            at = site.item.node.span.start if site.item.node is not None else 0
            at = text.rfind("\n", 0, at) + 1
            while at > 0 and text[:at].rstrip(" \t").endswith("\n"):  # above its comments
                line = text.rfind("\n", 0, at - 1) + 1
                if not text[line : at - 1].lstrip().startswith("#"):
                    break
                at = line
            yield Fix(f"Declare param {name}: {t}", (Edit(at, at, f"param {name}: {t}\n\n"),))
            return


def _likely_types(operand_types: list[TensorType]) -> Iterator[TensorType]:
    yield from operand_types
    for t in operand_types:
        if t.rank:
            yield TensorType(t.dtype, (t.shape[-1], t.shape[-1]))
            yield TensorType(t.dtype, (t.shape[-1],))
        yield TensorType(t.dtype, ())
    yield TensorType(f32, ())
