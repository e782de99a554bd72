"""Renaming: what can be renamed, to what, and where the edits are.

A rename changes nothing but names. What would change what the program means (a name that is taken,
one that another graph would then call) is refused, and so is one in a text that cannot be read at a
place that may mean the thing. In the end the new text is looked at: the thing stands exactly where
it was edited, and there is nothing new to complain of.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lsprotocol import types

from opstep.lsp.diagnostics import diagnostics_json
from opstep.lsp.file import File
from opstep.lsp.launches import mentions
from opstep.lsp.locations import graph_item, is_library
from opstep.lsp.occurrences import (
    DEFINES,
    Occurrence,
    Thing,
    at,
    definition,
    occurrences,
    op_named,
)
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import NOWHERE, Declaration, Graph
from opstep.runtime.ir.lexer import (
    DOTTED,
    KEYWORDS,
    NUMBER_NAMES,
    RESERVED,
    SyntaxFault,
    bare_name,
    quote_name,
    unquote_name,
)

if TYPE_CHECKING:
    from opstep.lsp.project import Project

_NAME = re.compile(DOTTED, re.ASCII)
_WHAT = {
    "value": "value", "symbol": "symbol", "tensor": "param or state", "graph": "graph",
}  # fmt: skip
_NEVER = {
    "op": "{name} is an op: its name is part of the language",
    "attribute": "{name} is an attribute of {owner}: its name is part of the language",
    "dtype": "{name} is an element type: its name is part of the language",
    "family": "{name} is a family of element types: its name is part of the language",
    "keyword": "{name} is a keyword",
    "constant": "{name} is a constant of the language",
    "number": "a number has no name",
    "string": "a string has no name",
    "comment": "a comment has no name",
}
_TEXT = ("comment", "string")


class Renaming(NamedTuple):
    """Edits of the program, and those of other files by their URI."""

    edits: list[types.TextEdit]
    others: dict[str, list[types.TextEdit]]


# --- what can be renamed --------------------------------------------------------------------------


def renamable(project: Project, found: Occurrence | None) -> Occurrence:
    """`found`, if it can be renamed; raises `InputError` that says why it cannot."""
    if found is None:
        raise InputError("there is no name here: put the cursor on a value, a graph or a param")
    name, kind = found.name, found.kind
    if kind in _NEVER:
        raise InputError(_NEVER[kind].format(name=name, owner=found.mark.owner))
    if is_library(project, found.file):
        raise InputError(f"{name} belongs to the standard library, which is not edited")
    if kind not in ("value", "param", "state", "graph", "symbol"):
        raise InputError(f"{name} cannot be renamed: it is not known what it is")
    if kind == "graph" and name not in found.file.graphs:
        library_item = graph_item(project, found.file, name)
        if library_item is None:
            raise InputError(f"there is no graph {name} in this file")
        raise InputError(
            f"{name} is a graph of the standard library, which is not edited",
            hint=f"a graph of your own called {name} would go before it",
        )
    if kind == "graph" and name in project.library_graphs:
        raise InputError(
            f"{name} goes before the standard library's graph of that name, and would no longer"
        )
    if definition(found.file, found.thing) is None:
        what = _WHAT[found.thing.kind]
        raise InputError(f"{name} is defined nowhere: there is no {what} of that name to rename")
    return found


# --- the edits ------------------------------------------------------------------------------------


def rename(project: Project, found: Occurrence, new: str) -> Renaming:
    """The edits that give a thing a new name. Raises `InputError` where that cannot be."""
    file, thing = renamable(project, found).file, found.thing
    new = new.strip()
    _check_name(thing, new)
    new = bare_name(new)
    if new == thing.name:
        return Renaming([], {})
    _check_free(project, file, thing, new)
    _check_read(file, thing, thing.name)
    spans = [(o.start, o.end) for o in occurrences(file, thing)]
    _check_result(project, file, thing, spans, new)
    written = quote_name(new) if thing.kind == "tensor" else new
    edits = [types.TextEdit(file.range(start, end), written) for start, end in spans]
    others: dict[str, list[types.TextEdit]] = {}
    for mention in mentions(project, file, thing, _is_input(file, thing)):
        others.setdefault(mention.uri, []).append(types.TextEdit(mention.range, new))
    return Renaming(edits, others)


def _is_input(file: File, thing: Thing) -> bool:
    if thing.kind != "value":
        return False
    defined = definition(file, thing)
    return defined is not None and isinstance(defined.part, Graph)


def _check_name(thing: Thing, new: str) -> None:
    """Whether it is a name at all, of this kind of thing."""
    what = _WHAT[thing.kind]
    if thing.kind == "tensor" and len(new) > 1 and new[0] == new[-1] == "`":
        try:
            unquote_name(new, NOWHERE)
        except SyntaxFault as fault:
            raise InputError(fault.message) from None
        return
    if not _NAME.fullmatch(new):
        others = "; any other stands in `backquotes`" if thing.kind == "tensor" else ""
        raise InputError(
            f"{new!r} is not a name" if new else "a name is wanted",
            hint=f"a name is a letter or _, then letters, digits and _{others}",
        )
    if "." in new and thing.kind != "tensor":
        raise InputError(f"{new} cannot name a {what}: only params and states have dots")
    if new in RESERVED:
        kind = "keyword" if new in KEYWORDS else "number" if new in NUMBER_NAMES else "constant"
        raise InputError(f"{new} is a {kind}, and cannot name a {what}")


def _check_free(project: Project, file: File, thing: Thing, new: str) -> None:
    """Whether nothing else has the name, or would be meant by it."""
    if thing.kind == "graph":
        if op_named(new) is not None:
            raise InputError(f"{new} is the name of an op, and cannot name a graph")
        if new in project.library_graphs:
            raise InputError(
                f"{new} is a graph of the standard library: one of that name would go before it"
            )
        _refuse_name_in_use(file, Thing("graph", new))
        return
    if thing.kind == "symbol":
        _refuse_name_in_use(file, Thing("symbol", new, thing.scope))
        return
    _refuse_name_in_use(file, Thing("tensor", new))
    scopes = [thing.scope] if thing.kind == "value" else list(file.graphs)
    for scope in scopes:
        if "." not in new:
            _refuse_name_in_use(file, Thing("value", new, scope))


def _refuse_name_in_use(file: File, other: Thing) -> None:
    used = next(occurrences(file, other), None)
    if used is None:
        return
    line = file.position(used.start).line + 1
    what = used.kind if other.kind == "tensor" else _WHAT[other.kind]
    inside = f" in graph {other.scope}" if other.scope else ""
    if used.mark.role == DEFINES or used.kind == "symbol":
        raise InputError(f"{other.name} is taken: there is a {what} of that name{inside}, "
                         f"line {line}")  # fmt: skip
    raise InputError(f"{other.name} is taken: line {line} names a {what} so{inside}")


def _check_read(file: File, thing: Thing, name: str) -> None:
    """Whether all that may name the thing could be read."""
    for item in file.items:
        if thing.scope and item.name != thing.scope:
            continue
        word = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.])", re.ASCII)
        for match in word.finditer(item.text) if item.syntax else ():
            found = at(file, item.start + match.start())
            if found is not None and found.part is None and found.kind not in _TEXT:
                line = file.position(item.start + match.start()).line + 1
                raise InputError(
                    f"line {line} cannot be read, and may mean {name}",
                    hint="rename it when the syntax errors are gone",
                )


def _check_result(
    project: Project, file: File, thing: Thing, spans: list[tuple[int, int]], new: str
) -> None:
    """Looks at the new text as a file: are the names right, and is nothing newly wrong?"""
    text, pieces, last = file.text, [], 0
    expected = []
    written = quote_name(new) if thing.kind == "tensor" else new
    longer = 0
    for start, end in spans:
        pieces += [text[last:start], written]
        expected.append(start + longer)
        longer += len(written) - (end - start)
        last = end
    pieces.append(text[last:])
    after = File(project, file.uri, file.path, "".join(pieces))
    scope = new if thing.kind == "graph" else thing.scope
    renamed = Thing(thing.kind, new, scope if thing.scope else "")
    if [o.start for o in occurrences(after, renamed)] != expected:
        raise InputError(f"{new} would mean something else where {thing.name} stands now")
    if next(occurrences(after, thing), None) is not None:
        raise InputError(f"{thing.name} would be left without its definition")
    found = diagnostics_json(after)
    if len(found) > len(diagnostics_json(file)):
        line, message = found[0]["range"]["start"]["line"] + 1, found[0]["message"]
        raise InputError(f"as {new} it would be wrong: line {line}: {message}")


def draws_by_name(file: File, thing: Thing) -> bool:
    """Whether a named tensor begins with random numbers whose seed comes from its name."""
    item = file.tensors.get(thing.name) if thing.kind == "tensor" else None
    d = item.node if item is not None else None
    if not isinstance(d, Declaration) or d.init is None:
        return False
    op = op_named(d.init.text)
    has_seed = op is not None and any(a.name == "seed" for a in op.attrs)
    return has_seed and all(a.name.text != "seed" for a in d.attrs)
