"""`opstep/live`: the editor's extension tells at each stop what the values of the frame are."""

from __future__ import annotations

from typing import Any

from opstep.lsp.live import read_values
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.errors import InputError


@feature("opstep/live")
def live(project: Project, params: dict[str, Any]) -> None:
    """Takes over the values of a file, which hovers show; none, or null, clears them.

    `params`: ``{uri, values: [{name, graph, text, step}]}``. `graph` is null for a named tensor.
    """
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise InputError("opstep/live: uri is the file's URI")
    path = project.file(uri).path
    if found := read_values(params.get("values") or []):
        project.live[path] = found
    else:
        project.live.pop(path, None)
