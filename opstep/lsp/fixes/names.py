"""Names that are wrong, taken, missing or not used."""

from __future__ import annotations

import re
from collections.abc import Iterator

from opstep.lsp.fixes.fix import Edit, Fix, MessageSite, makes
from opstep.lsp.unused import UNUSED
from opstep.runtime.ir.diagnostics import Suggestion
from opstep.runtime.ir.graph import Apply, Name, Return
from opstep.runtime.ir.lexer import DOTTED, QUOTED, bare_name, quote_name

_WORD = re.compile(f"{DOTTED}|{QUOTED}", re.ASCII)


@makes("")
def suggested(site: MessageSite) -> Iterator[Fix]:
    """Each name that the hint offers."""
    hint = site.message.hint
    if not isinstance(hint, Suggestion):
        return
    start, end = site.span
    if not _WORD.fullmatch(site.text):  # a list of graphs: the wrong one is named at the end
        wrong = site.message.message.rpartition(" ")[2]
        match = re.search(rf"(?<![\w.]){re.escape(wrong)}(?![\w.])", site.text)
        if match is None:
            return
        start, end = start + match.start(), start + match.end()
    alone = len(hint.names) == 1
    for k, name in enumerate(hint.names):
        yield Fix(f"Change to {name}", (Edit(start, end, name),), likely=k == 0, safe=alone)


@makes("redefined")
def rename(site: MessageSite) -> Iterator[Fix]:
    """Another name for what has one that is taken; uses below go with it."""
    old = site.text
    new = _free(site, old)
    edits = [Edit(*site.span, new)]
    if site.statement is not None and site.graph is not None:
        for s in site.graph.body[site.number + 1 :]:
            if isinstance(s, Apply):
                uses = [o for o in s.operands if isinstance(o, Name)]
            else:
                uses = list(s.values) if isinstance(s, Return) else []
            edits += [Edit(*use.span, new) for use in uses if use.text == old]
            if isinstance(s, Apply) and any(b.name.text == old for b in s.results):
                break
    yield Fix(f"Rename to {new}", tuple(edits), likely=True)


def _free(site: MessageSite, name: str) -> str:
    if site.statement is not None:
        return site.fresh(name)
    name = bare_name(name)
    file = site.item.file
    used = {*file.graphs, *file.tensors, *file.environment.applier.ops}
    number = 2
    while f"{name}{number}" in used:
        number += 1
    return quote_name(f"{name}{number}")


@makes(UNUSED)
def remove(site: MessageSite) -> Iterator[Fix]:
    """Without the statement whose results nothing uses, or the named tensor."""
    item, s = site.item, site.statement
    if site.message.severity == "warning" and (s is not None or item.kind in ("param", "state")):
        start, end = (s.span if s is not None else item.node.span) if item.node else site.span
        start = item.text.rfind("\n", 0, start) + 1
        end = item.text.find("\n", end) + 1 or len(item.text)
        if s is None or site.is_only_on_line():
            what = "Remove this statement" if s is not None else f"Remove {item.kind} {item.name}"
            yield Fix(what, (Edit(start, end, ""),))
    if isinstance(s, Apply):
        name = f"_{site.text}"
        yield Fix(f"Rename to {name}: it is meant not to be used", (Edit(*site.span, name),))
