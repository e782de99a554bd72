"""``textDocument/rename``: values, inputs, graphs, params, states and symbols.

Programs do not refer to each other, so a rename is one of a file, and of the launch configurations
that run it.
"""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from opstep.lsp.file import File
from opstep.lsp.occurrences import at
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.lsp.renaming import draws_by_name, renamable, rename
from opstep.runtime.ir.lexer import quote_name


@feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
def prepare(project: Project, params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder:
    """The name under the cursor; an error that says why, where it cannot be renamed."""
    file = project.file(params.text_document.uri)
    found = renamable(project, at(file, file.offset(params.position)))
    return types.PrepareRenamePlaceholder(
        file.range(found.start, found.end), quote_name(found.name)
    )


@feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
def edits(project: Project, params: types.RenameParams) -> types.WorkspaceEdit:
    """What is to be changed, in the program and in ``launch.json``."""
    file = project.file(params.text_document.uri)
    found = renamable(project, at(file, file.offset(params.position)))
    done = rename(project, found, params.new_name)
    if done.edits and draws_by_name(file, found.thing):
        note = (
            f"{found.name} draws its first numbers from its name: as {params.new_name} it begins "
            "with others, where nothing is loaded. seed=… in its initialiser would fix them."
        )
        message = types.ShowMessageParams(types.MessageType.Info, note)
        project.notify(types.WINDOW_SHOW_MESSAGE, message)
    return _workspace_edit(project, file, {file.uri: done.edits, **done.others})


def _workspace_edit(
    project: Project, file: File, changes: dict[str, list[types.TextEdit]]
) -> types.WorkspaceEdit:
    """With the version that the edits are of, where the client reads that."""
    if not _reads_versions(project.capabilities):
        return types.WorkspaceEdit(changes=changes)
    documents = [
        types.TextDocumentEdit(
            types.OptionalVersionedTextDocumentIdentifier(
                uri, file.version if uri == file.uri else None
            ),
            list(edits),
        )
        for uri, edits in changes.items()
    ]
    return types.WorkspaceEdit(document_changes=documents)


def _reads_versions(capabilities: Any) -> bool:
    workspace = getattr(capabilities, "workspace", None)
    return bool(getattr(getattr(workspace, "workspace_edit", None), "document_changes", None))
