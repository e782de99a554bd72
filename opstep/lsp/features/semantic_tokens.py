"""Semantic tokens: all of a file's, those of a range, and what has changed since the last time."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from lsprotocol import types

from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.lsp.tokens import LEGEND, tokens

_OPTIONS = types.SemanticTokensRegistrationOptions(
    legend=LEGEND, range=True, full=types.SemanticTokensFullDelta(delta=True)
)
_EVERYTHING = 1 << 31
_MOST_LINES = 30_000  # of a file that is coloured at once; of longer ones, what is in sight

# What each client has: by file, the number of the answer and its data.
_sent: WeakKeyDictionary[Project, dict[str, tuple[int, list[int]]]] = WeakKeyDictionary()


@feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, _OPTIONS)
def full(project: Project, params: types.SemanticTokensParams) -> types.SemanticTokens | None:
    """Those of the whole file. None where that would make everything else wait: editors then go on
    asking for the range that they show.
    """
    file = project.file(params.text_document.uri)
    if len(file.lines.starts) > _MOST_LINES:
        return None
    data = tokens(file, 0, _EVERYTHING)
    return types.SemanticTokens(data, _remember(project, params.text_document.uri, data))


@feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL_DELTA, _OPTIONS)
def delta(
    project: Project, params: types.SemanticTokensDeltaParams
) -> types.SemanticTokens | types.SemanticTokensDelta | None:
    """What has changed since an answer that the client still has; all, where it has another."""
    uri = params.text_document.uri
    if len(project.file(uri).lines.starts) > _MOST_LINES:
        return None
    number, before = _sent.get(project, {}).get(uri, (0, []))
    data = tokens(project.file(uri), 0, _EVERYTHING)
    name = _remember(project, uri, data)
    if str(number) != params.previous_result_id:
        return types.SemanticTokens(data, name)
    start, tail = _common(before, data)
    if start == len(before) == len(data):
        return types.SemanticTokensDelta([], name)
    edit = types.SemanticTokensEdit(
        start, len(before) - tail - start, data[start : len(data) - tail]
    )
    return types.SemanticTokensDelta([edit], name)


@feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE, _OPTIONS)
def of_range(project: Project, params: types.SemanticTokensRangeParams) -> types.SemanticTokens:
    """Those of some lines: what an editor shows first."""
    file = project.file(params.text_document.uri)
    return types.SemanticTokens(tokens(file, params.range.start.line, params.range.end.line))


def _remember(project: Project, uri: str, data: list[int]) -> str:
    answers = _sent.setdefault(project, {})
    number = answers.get(uri, (0, []))[0] + 1
    answers[uri] = number, data
    return str(number)


def _common(before: list[int], data: list[int]) -> tuple[int, int]:
    """How many integers two answers share at the start, and how many behind that at the end."""
    least = min(len(before), len(data))
    start = _largest(least, lambda k: before[:k] == data[:k])
    end = _largest(least - start, lambda k: before[len(before) - k :] == data[len(data) - k :])
    return start - start % 5, end - end % 5


def _largest(limit: int, holds) -> int:
    """The largest k up to `limit` for which `holds`, which holds for 0 and for all below that."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
