"""Proposals for types and dims, and for what stands outside of graphs."""

from __future__ import annotations

from opstep.api.catalogue import catalogue
from opstep.lsp.completions import snippets
from opstep.lsp.completions.callees import data_of, signature
from opstep.lsp.completions.cursor import Token, read
from opstep.lsp.completions.matching import Site, read_tokens
from opstep.lsp.completions.proposals import Kind, Proposals
from opstep.runtime.ir.graph import Graph, Return
from opstep.runtime.ir.op import Mismatch, Op, complete, resolve
from opstep.runtime.ir.types import DTYPES, FAMILIES, TensorType, boolean
from opstep.runtime.ir.values import parse_type

_MOST_TYPES = 12


def propose_item(out: Proposals) -> None:
    """What a file is made of."""
    out.add("graph", Kind.Keyword, "a graph", "graph ", snippet=snippets.GRAPH, rank=1)
    out.add("param", Kind.Keyword, "a weight", "param ", snippet=snippets.PARAM, rank=1)
    out.add("state", Kind.Keyword, "what lives from run to run", "state ",
            snippet=snippets.STATE, rank=1)  # fmt: skip
    out.add("mesh", Kind.Keyword, "how ranks are arranged", "mesh ", snippet=snippets.MESH, rank=2)


def propose_type(out: Proposals) -> None:
    """The type that the statement comes to, types that are in use, element types."""
    proposed: dict[TensorType, None] = {}
    inferred = _inferred(out)
    if inferred is not None and inferred.dtype.has_name:
        out.add(str(inferred), Kind.Struct, "what it is", rank=0, preselect=True)
        proposed[inferred] = None
    scope = out.scope
    plain = out.cursor.tokens and out.cursor.tokens[0].value in ("param", "state")
    for name in [*scope.values, *scope.tensors]:
        t = scope.types.get(name)
        if t is None or t in proposed or (plain and not t.is_concrete) or not t.dtype.has_name:
            continue
        proposed[t] = None
        out.add(str(t), Kind.Struct, f"as {name}", rank=3)
        if len(proposed) >= _MOST_TYPES:
            break
    open_already = scope.file.text.startswith("[", out.cursor.end)
    kinds = [(name, Kind.TypeParameter, "a type variable") for name in scope.variables]
    kinds += [(name, Kind.Keyword, "an element type") for name in DTYPES]
    for name, kind, about in kinds:
        new, snippet = (name, "") if open_already else (f"{name}[", f"{name}[$1]$0")
        out.add(name, kind, about, new, snippet=snippet, rank=2)


def propose_family(out: Proposals) -> None:
    """What a type variable may be."""
    for name, types in FAMILIES.items():
        out.add(name, Kind.Keyword, " ".join(t.name for t in types), rank=1)


def propose_results(out: Proposals) -> None:
    """Behind ``->``: the types of what the graph returns."""
    item = out.scope.item
    node, verified = (item.node, item.verified) if item is not None else (None, None)
    if isinstance(node, Graph) and verified is not None:
        last = next((s for s in node.body if isinstance(s, Return)), None)
        found = [verified.types.get(v.text) for v in last.values] if last else []
        if found and all(found):
            out.add(", ".join(map(str, found)), Kind.Struct, "what it returns", rank=0,
                    preselect=True)  # fmt: skip
    propose_type(out)


def propose_sharding(out: Proposals) -> None:
    """Behind the type of a param or state."""
    out.add("over", Kind.Keyword, "ranks have parts of it", "over ", rank=1)


def propose_mesh_axis(out: Proposals) -> None:
    """The axes of the mesh."""
    mesh = out.scope.file.mesh
    for axis, extent in mesh.axes if mesh else ():
        out.add(axis, Kind.EnumMember, f"{extent} ranks", rank=1)


def propose_initialiser(out: Proposals) -> None:
    """Numbers, and ops that make the declared type."""
    declared = _declared(out.cursor.tokens)
    if declared is None or declared.dtype is boolean:
        out.add("false", Kind.Value, rank=1)
        out.add("true", Kind.Value, rank=1)
    if declared is None or declared.dtype is not boolean:
        number = "0.0" if declared is not None and declared.dtype.is_float else "0"
        out.add(number, Kind.Value, "filled with a number", snippet=f"${{1:{number}}}", rank=1)
    for op in catalogue().values():
        if isinstance(op, Graph) or op.traits.host or not _makes(op, declared):
            continue
        out.call(
            op.name,
            snippets.call(op, inferred=("shape", "dtype"))[0] + "$0",
            kind=Kind.Function,
            detail=op.name + signature(op),
            rank=1,
            data=data_of(out.scope, op),
        )


def _declared(tokens: list[Token]) -> TensorType | None:
    """The type in ``param w: f32[8] =``, of which these are the tokens."""
    colon = next((k for k, t in enumerate(tokens) if t.kind == ":"), len(tokens))
    over = next((k for k, t in enumerate(tokens) if k > colon and t.value == "over"), len(tokens))
    return read_tokens(tokens[colon + 1 : over], parse_type)


def _makes(op: type[Op], declared: TensorType | None) -> bool:
    """Whether an op makes the declared type, by its shape rule where all that it needs is known."""
    inferred = {a.name: a.type for a in op.attrs if (a.name, a.type) in _INFERRED}
    if "shape" not in inferred or not all(o.optional for o in op.operands):
        return False
    if declared is None or any(a.required and a.name not in inferred for a in op.attrs):
        return True
    attributes = {"shape": declared.shape, "dtype": declared.dtype}
    try:
        resolved = resolve(
            op, (), complete(op, {k: v for k, v in attributes.items() if k in inferred})
        )
    except Mismatch:
        return False
    return resolved.results == (declared,)


_INFERRED = (("shape", "dims"), ("dtype", "dtype"))


def _inferred(out: Proposals) -> TensorType | None:
    """The type of the result whose type is being written, where its call stands already."""
    text, cursor, scope = out.scope.file.text, out.cursor, out.scope
    end = text.find("\n", cursor.end)
    equals = text.find("=", cursor.end, end if end >= 0 else len(text))
    opened = text.find("(", equals, end if end >= 0 else len(text)) if equals >= 0 else -1
    if opened < 0 or scope.item is None:
        return None
    inner = read(scope.file, opened + 1)
    entry = scope.entry(inner.call.callee.value) if inner.call is not None else None
    if inner.call is None or entry is None:
        return None
    site = Site.of(entry, inner.call, scope, complete=True)
    resolved = site.resolved(site.operands) if None not in site.operands else None
    index = sum(t.kind == "," for t in cursor.tokens)
    if resolved is None or index >= len(resolved.results):
        return None
    return resolved.results[index]
