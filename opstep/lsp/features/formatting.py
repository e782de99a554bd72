"""Formatting of a file, and of a range of it."""

from __future__ import annotations

from lsprotocol import types

from opstep.lsp.file import File
from opstep.lsp.formatting import Change, changes, changes_within
from opstep.lsp.project import Project
from opstep.lsp.registry import feature


@feature(types.TEXT_DOCUMENT_FORMATTING)
def formatting(project: Project, params: types.DocumentFormattingParams) -> list[types.TextEdit]:
    """The standard layout; the options that the editor sends do not change it."""
    file = project.file(params.text_document.uri)
    return [_edit(file, change) for change in changes(file)]


@feature(types.TEXT_DOCUMENT_RANGE_FORMATTING)
def range_formatting(
    project: Project, params: types.DocumentRangeFormattingParams
) -> list[types.TextEdit]:
    """The same, for the lines of a range, and what belongs to them."""
    file = project.file(params.text_document.uri)
    start = file.offset(types.Position(params.range.start.line, 0))
    end = file.offset(params.range.end)
    return [_edit(file, change) for change in changes_within(file, start, end)]


def _edit(file: File, change: Change) -> types.TextEdit:
    return types.TextEdit(file.range(change.start, change.end), change.text)
