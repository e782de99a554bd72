"""What the editor tells of files and settings, beside the texts themselves."""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from opstep.lsp.project import Project
from opstep.lsp.registry import feature


@feature(types.TEXT_DOCUMENT_DID_SAVE, types.SaveOptions(include_text=False))
def did_save(project: Project, params: types.DidSaveTextDocumentParams) -> None:
    """Nothing more is to be done: what is on disk is what was typed."""


@feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
def did_change_watched_files(project: Project, params: types.DidChangeWatchedFilesParams) -> None:
    """Files that are not open are read again when they are looked at."""
    for change in params.changes:
        project.forget(change.uri)


@feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
def did_change_configuration(project: Project, params: types.DidChangeConfigurationParams) -> None:
    """The settings, whole: ``{"opstep": {…}}``, or what stands under ``opstep`` alone."""
    settings: Any = params.settings
    if isinstance(settings, dict):
        inner = settings.get("opstep", settings)
        if isinstance(inner, dict):
            project.settings = inner
            project.recheck()
            project.refresh_inlay_hints()
            project.refresh_code_lenses()
