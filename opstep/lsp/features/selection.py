"""Selection ranges: name, operand or attribute, list, call, statement, block, graph, file."""

from __future__ import annotations

from itertools import pairwise

from lsprotocol import types

from opstep.lsp.completions.cursor import statement_span, tokens_between
from opstep.lsp.file import File
from opstep.lsp.item import Item
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.graph import Graph

Part = tuple[int, int]


@feature(types.TEXT_DOCUMENT_SELECTION_RANGE)
def selection_range(
    project: Project, params: types.SelectionRangeParams
) -> list[types.SelectionRange]:
    """For each position the parts around it, from the smallest to the whole file."""
    file = project.file(params.text_document.uri)
    return [_ranges(file, file.offset(position)) for position in params.positions]


def _ranges(file: File, offset: int) -> types.SelectionRange:
    parts = [(0, len(file.text))]
    item = file.item_at(offset)
    if item is not None:
        parts += _of_item(file, item, offset)
    selected: types.SelectionRange | None = None
    for part in _nested(parts, offset):
        selected = types.SelectionRange(file.range(*part), selected)
    return selected or types.SelectionRange(file.range(offset, offset))


def _of_item(file: File, item: Item, offset: int) -> list[Part]:
    """The parts of a graph or declaration around an offset, the larger ones first."""
    text, node = file.text, item.node
    parts = [_trimmed(text, item.start, item.end)]
    if node is not None:
        parts.append((item.start + node.span.start, item.start + node.span.end))
    if isinstance(node, Graph):
        opened = text.find("{", item.start + node.results_span.start)
        end = item.start + node.span.end
        if 0 <= opened < offset < end:
            body = _trimmed(text, opened + 1, end - 1)
            parts += [body, _block(text, body, offset)]
        else:
            parts.append((item.start + node.span.start, opened))
    start, end = statement_span(file, offset)
    parts.append((start, end))
    return parts + _of_statement(text, start, end, offset)


def _of_statement(text: str, start: int, end: int, offset: int) -> list[Part]:
    """What brackets and commas make of a statement, the larger parts first."""
    tokens = tokens_between(text, start, end)
    if not tokens:
        return []
    parts: list[Part] = [(start, tokens[-1].end)]
    equals = next((k for k, t in enumerate(tokens) if t.kind in ("=", "<-")), None)
    if equals is not None and equals + 1 < len(tokens):
        if tokens[equals].end <= offset:  # the right side, and the call without `at`
            parts.append((tokens[equals + 1].start, tokens[-1].end))
        else:
            parts.append((start, tokens[equals - 1].end if equals else tokens[0].end))
    open_at: list[int] = []
    for k, t in enumerate(tokens):
        if t.kind in ("(", "["):
            open_at.append(k)
        elif t.kind in (")", "]") and open_at:
            first = open_at.pop()
            if not (tokens[first].start <= offset <= t.end):
                continue
            named = first > 0 and tokens[first - 1].kind == "name"
            parts.append((tokens[first - named].start, t.end))
            if tokens[first].end <= offset <= t.start and first + 1 < k:
                parts.append((tokens[first + 1].start, tokens[k - 1].end))
                parts += _between_commas(tokens[first + 1 : k], offset)
    parts += [
        (t.start, t.end) for t in tokens if t.start <= offset <= t.end and t.kind not in "()[],"
    ]
    return parts


def _between_commas(tokens: list, offset: int) -> list[Part]:
    """The item of a list that an offset is in."""
    depth, first, parts = 0, 0, []
    for k, t in enumerate([*tokens, None]):
        if t is None or (t.kind == "," and depth == 0):
            if first < k and tokens[first].start <= offset <= tokens[k - 1].end:
                parts.append((tokens[first].start, tokens[k - 1].end))
                if k - first > 2 and tokens[first + 1].kind in ("=", ":"):
                    value = (tokens[first + 2].start, tokens[k - 1].end)
                    parts += [value] if value[0] <= offset else []
            first = k + 1
        else:
            depth += (t.kind in ("(", "[")) - (t.kind in (")", "]"))
    return parts


def _block(text: str, body: Part, offset: int) -> Part:
    """The statements around an offset that no blank line parts."""
    start, end = body
    for k, (before, after) in enumerate(_gaps(text, body)):
        del k
        if after <= offset:
            start = after
        elif before >= offset:
            end = before
            break
    return _trimmed(text, start, end)


def _gaps(text: str, body: Part) -> list[Part]:
    """Where blank lines are: the end of what stands above and the start of what stands below."""
    gaps = []
    position = text.find("\n", body[0], body[1])
    ends = []
    while position >= 0:
        ends.append(position)
        position = text.find("\n", position + 1, body[1])
    for first, second in pairwise(ends):
        if not text[first:second].strip():
            gaps.append((first, second))
    return gaps


def _trimmed(text: str, start: int, end: int) -> Part:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def _nested(parts: list[Part], offset: int) -> list[Part]:
    """Those around the offset, from the largest on, each inside the one before."""
    around = sorted({p for p in parts if p[0] <= offset <= p[1] and p[0] < p[1]},
                    key=lambda p: (p[0] - p[1], p[0]))  # fmt: skip
    chain: list[Part] = []
    for part in around:
        if not chain or (chain[-1][0] <= part[0] and part[1] <= chain[-1][1]):
            chain.append(part)
    return chain
