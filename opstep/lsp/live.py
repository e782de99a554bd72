"""Values of the run that a debug session stands in, told by the editor's extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.project import Project

_MOST_TEXT = 200  # characters of one value


class LiveValue(NamedTuple):
    """What a value is: ``f32[8, 10] mean 0.1``; `tooltip` says when that was."""

    text: str
    tooltip: str | None


LiveValues = dict[tuple[str, str], LiveValue]  # by graph ("" of named tensors) and name


def live_values(project: Project, file: File) -> LiveValues:
    """What is known of the values of a file."""
    return project.live.get(file.path, {})


def read_values(values: Any) -> LiveValues:
    """The values of an `opstep/live` notification. Raises `InputError` where they are none."""
    if not isinstance(values, list):
        raise InputError("opstep/live: values is a list of {name, graph, text, step}")
    found: LiveValues = {}
    for value in values:
        fields = value if isinstance(value, dict) else {}
        name, graph, text = fields.get("name"), fields.get("graph") or "", fields.get("text")
        if not (isinstance(name, str) and isinstance(graph, str) and isinstance(text, str)):
            raise InputError("opstep/live: a value has a name, a graph or null, and a text")
        if not text.strip():
            continue
        step = fields.get("step")
        tooltip = f"as of step {step}" if isinstance(step, int) else None
        found[graph, name] = LiveValue(" ".join(text.split())[:_MOST_TEXT], tooltip)
    return found
