"""Proposals inside the parentheses of a call, and wherever else a value can stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opstep.lsp.completions import snippets
from opstep.lsp.completions.cursor import Call
from opstep.lsp.completions.declarations import propose_mesh_axis
from opstep.lsp.completions.matching import (
    FITS,
    MAY,
    NOT,
    Site,
    accepts_number,
    rank_graphs,
    rank_operands,
)
from opstep.lsp.completions.proposals import MOST, Kind, Proposals
from opstep.lsp.completions.scope import head
from opstep.lsp.completions.snippets import values
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.lexer import quote_name
from opstep.runtime.ir.op import AttrSpec, Op
from opstep.runtime.ir.printer import print_value
from opstep.runtime.ir.types import TensorType, boolean

BEHIND_VALUE = (",", ")")  # what ends an operand, and takes the proposal with it
_CONDITION = TensorType(boolean, ())
_ATTRIBUTE = {
    "int": "an integer", "float": "a number", "number": "a number", "bool": "true or false",
    "str": "a text", "dim": "a dim", "dtype": "an element type", "graph": "a graph",
    "ints": "a list of integers", "floats": "a list of numbers", "dims": "a list of dims",
    "graphs": "a list of graphs", "axes": "axes of the mesh",
}  # fmt: skip


def propose_argument(out: Proposals) -> None:
    """Operands, those that type-check first, and attributes that are not given yet."""
    call, scope = out.cursor.call, out.scope
    entry = scope.entry(call.callee.value) if call is not None else None
    if call is None:
        return
    if entry is None:  # an unknown callee: whatever there is
        propose_values(out, lambda t: MAY)
        return
    site = Site.of(entry, call, scope)
    if not call.initialiser and _accepts_more(site, call):
        ranks = rank_operands(site, _types(out))
        propose_values(out, lambda t: MAY if t is None else ranks.get(t, MAY), BEHIND_VALUE)
        _propose_number(out, site)
    if not isinstance(entry, Graph) and site.operand >= sum(not o.optional for o in entry.operands):
        _propose_attributes(out, entry, call)


def propose_values(
    out: Proposals, rank: Callable[[TensorType | None], int], commit: Iterable[str] = ()
) -> None:
    """Values above the cursor and named tensors, by how well they fit."""
    scope = out.scope
    found: dict[int, list[str]] = {FITS: [], MAY: [], NOT: []}
    ranks: dict[int, int] = {}  # a type's id to its rank: most values share a few types
    fitting = found[FITS]
    for name in (*scope.values, *scope.tensors):
        if not out.wants(quote_name(name)):
            continue
        t = scope.types.get(name)
        fit = ranks.get(id(t))
        if fit is None:
            fit = ranks[id(t)] = rank(t)
        found[fit].append(name)
        if len(fitting) > MOST:
            break
    for fit, order in ((FITS, 1), (MAY, 3), (NOT, 7)):
        for name in found[fit]:
            t, d = scope.types.get(name), scope.tensors.get(name)
            detail = f"{d.kind} {t}" if d is not None else str(t) if t is not None else "a value"
            out.add(
                quote_name(name),
                Kind.Variable if d is None else Kind.Field,
                detail,
                rank=order,
                label_detail="" if t is None else f": {t}",
                commit=commit,
                preselect=fit == FITS and not out.items,
            )
            if out.cut:
                return


def propose_condition(out: Proposals) -> None:
    """What an assert can take, first; then other values."""
    propose_values(out, lambda t: MAY if t is None else FITS if t == _CONDITION else NOT)


def propose_returned(out: Proposals) -> None:
    """Values of the type that the signature has at this place, first."""
    node = out.scope.item.node if out.scope.item is not None else None
    results = node.results if isinstance(node, Graph) else ()
    declared = results[out.cursor.index] if out.cursor.index < len(results) else None
    propose_values(out, lambda t: MAY if t is None else FITS if t == declared else NOT, (",",))


def propose_update(out: Proposals) -> None:
    """Values of the type of the tensor that is updated, first."""
    target = out.scope.tensors.get(out.cursor.target)
    declared = target.type if target is not None else None
    propose_values(out, lambda t: MAY if t is None else FITS if t == declared else NOT)
    if declared is not None and not declared.rank:
        number = "false" if declared.dtype is boolean else "0.0" if declared.dtype.is_float else "0"
        if declared.dtype is not boolean:
            out.add(number, Kind.Value, str(declared), snippet=f"${{1:{number}}}", rank=6)


def propose_value(out: Proposals) -> None:
    """What the attribute at the cursor can be."""
    call, scope = out.cursor.call, out.scope
    entry = scope.entry(call.callee.value) if call is not None else None
    if call is None or entry is None or isinstance(entry, Graph):
        return
    spec = next((a for a in entry.attrs if a.name == out.cursor.attribute), None)
    if spec is None or (out.cursor.in_list and not spec.type.endswith("s")):
        return
    if spec.type.startswith("graph"):
        site = Site.of(entry, call, scope)
        many = spec.type == "graphs"
        if not many or out.cursor.in_list:
            _propose_graphs(out, site, spec, many)
    elif spec.type == "axes":
        propose_mesh_axis(out)
    elif not out.cursor.quoted or spec.type == "str":
        _propose_words(out, entry, spec)


def _accepts_more(site: Site, call: Call) -> bool:
    """Whether an operand can stand where the cursor is."""
    if any(a.name is not None for a in call.arguments[: call.active]):
        return False  # operands stand before the attributes
    if isinstance(site.entry, Graph):
        return site.operand < len(site.entry.inputs)
    operands = site.entry.operands
    return site.operand < len(operands) or bool(operands and operands[-1].variadic)


def _types(out: Proposals) -> list[TensorType]:
    """The types of what could be an operand, the nearest first."""
    scope = out.scope
    types = map(scope.types.get, (*scope.values, *scope.tensors))
    return [*{id(t): t for t in types if t is not None}.values()]


def _propose_number(out: Proposals, site: Site) -> None:
    for number in ("0.0", "0"):
        if accepts_number(site, float(number) if "." in number else int(number)):
            out.add(number, Kind.Value, "a number, of the element type of the other operands",
                    snippet=f"${{1:{number}}}", rank=4)  # fmt: skip
            return


def _propose_attributes(out: Proposals, op: type[Op], call: Call) -> None:
    """Names of attributes that are not given, those that must be first."""
    attributes = call.attributes()
    inferred = ("shape", "dtype") if call.initialiser else ()
    active = call.arguments[call.active].name
    named = out.scope.file.text[out.cursor.end : out.cursor.end + 1] == "="
    for spec in sorted(op.attrs, key=lambda a: not a.required):
        if (spec.name in attributes and spec.name != active) or spec.name in inferred:
            continue
        need = "needed" if spec.required else f"default {print_value(spec.default)}"
        out.add(
            f"{spec.name}=",
            Kind.Property,
            f"{spec.type}, {need}",
            spec.name if named else f"{spec.name}=",
            snippet="" if named else snippets.attribute(op, spec),
            rank=2 if spec.required else 5,
            data={"op": op.name, "attribute": spec.name},
        )


def _propose_graphs(out: Proposals, site: Site, spec: AttrSpec, many: bool) -> None:
    graphs = {g.name.text: g for g in out.scope.graphs() if g.results}
    ranks = rank_graphs(site, spec.name, graphs, many)
    for name in sorted(graphs, key=lambda n: ranks[n]):
        out.add(
            name,
            Kind.Class,
            head(graphs[name]),
            rank={FITS: 1, MAY: 3, NOT: 7}[ranks[name]],
            commit=(",", ")", "]") if many else BEHIND_VALUE,
            data={"graph": name, "uri": out.scope.file.uri},
            preselect=ranks[name] == FITS and not out.items,
        )


def _propose_words(out: Proposals, op: type[Op], spec: AttrSpec) -> None:
    words = values(op, spec)
    if spec.type == "dtype":
        words = [*out.scope.variables, *words]
    default = "" if spec.required else print_value(spec.default)
    for word in words:
        detail = "the default" if word == default else _ATTRIBUTE[spec.type]
        out.add(word, Kind.EnumMember, detail, rank=2, commit=BEHIND_VALUE)
    if spec.type in ("dim", "dims") and (out.cursor.in_list or spec.type == "dim"):
        propose_symbols(out, (",", "]") if out.cursor.in_list else BEHIND_VALUE)
    begins = out.cursor.tokens[-1].kind == "="  # else a sign of a number stands already
    if default and default not in words and begins and not out.cursor.quoted:
        out.add(default, Kind.Value, "the default", rank=3, commit=BEHIND_VALUE)


def propose_symbols(out: Proposals, commit: Iterable[str]) -> None:
    """Sizes that the inputs of the graph bind."""
    from opstep.lsp.completions.cursor import symbols

    item = out.scope.item
    for name in symbols(item) if item is not None and item.kind == "graph" else ():
        out.add(name, Kind.TypeParameter, "a dim", rank=1, commit=commit)


def describe(spec: AttrSpec) -> str:
    """``an integer, -1 by default``"""
    default = "needed" if spec.required else f"{print_value(spec.default)} by default"
    return f"{_ATTRIBUTE[spec.type]}, {default}"
