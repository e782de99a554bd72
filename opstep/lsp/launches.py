"""Where ``launch.json`` names things of a program: its graphs, their inputs and symbols.

A configuration says which program it runs; only those that run this one are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.lsp.jsonc import Text, read
from opstep.lsp.lines import Lines
from opstep.lsp.occurrences import Thing
from opstep.lsp.project import uri_of
from opstep.runtime.ir.graph import Graph

if TYPE_CHECKING:
    from lsprotocol import types

    from opstep.lsp.file import File
    from opstep.lsp.project import Project

_MOST_BYTES = 1 << 20


class Mention(NamedTuple):
    """A place of a ``launch.json`` that names a thing, without its quotes."""

    uri: str
    range: types.Range


def mentions(project: Project, file: File, thing: Thing, is_input: bool) -> Iterator[Mention]:
    """Where the launch configurations of the file's folders name a graph, an input or a symbol."""
    if not file.path:
        return
    for folder in _folders(project, file):
        path = folder / ".vscode" / "launch.json"
        text = _text(path)
        if thing.name not in text:
            continue
        lines = Lines(text)
        settings = read(text)
        configurations = settings.get("configurations") if isinstance(settings, dict) else None
        for configuration in configurations if isinstance(configurations, list) else ():
            if isinstance(configuration, dict) and _runs(configuration, folder, file):
                for node in _named(configuration, file, thing, is_input):
                    yield Mention(uri_of(str(path)), lines.range(node.start + 1, node.end - 1))


def _folders(project: Project, file: File) -> list[Path]:
    """The workspace folders that hold the file; its own, where none is open."""
    path = Path(file.path)
    folders = [Path(f) for f in project.folders if path.is_relative_to(f)]
    return folders or [path.parent]


def _text(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # a pipe would make us wait
            return ""
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _runs(configuration: dict[str, Any], folder: Path, file: File) -> bool:
    """Whether a configuration runs the file."""
    program, cwd = configuration.get("program"), configuration.get("cwd")
    if configuration.get("type") != "opstep" or not isinstance(program, str) or not program:
        return False
    base = _resolved(cwd, folder, folder) if isinstance(cwd, str) else folder
    return _resolved(program, folder, base) == Path(file.path)


def _resolved(text: str, folder: Path, base: Path) -> Path:
    text = text.replace("${workspaceFolder}", str(folder))
    text = text.replace("${workspaceFolderBasename}", folder.name)
    path = Path(text)
    path = path if path.is_absolute() else base / path
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):  # a path that cannot be one, links in a circle
        return path


def _named(
    configuration: dict[str, Any], file: File, thing: Thing, is_input: bool
) -> Iterator[Text]:
    if thing.kind == "graph":
        graph = configuration.get("graph")
        if isinstance(graph, Text) and graph == thing.name:
            yield graph
        return
    if _graph_of(configuration, file) != thing.scope:
        return
    named = configuration.get("symbols" if thing.kind == "symbol" else "inputs")
    if isinstance(named, dict) and (is_input or thing.kind == "symbol"):
        yield from (name for name in named if name == thing.name)


def _graph_of(configuration: dict[str, Any], file: File) -> str:
    """The graph that a configuration runs: the one it names, the only one, or main."""
    if "graph" in configuration:
        return configuration["graph"] or ""
    names = [name for name, item in file.graphs.items() if isinstance(item.node, Graph)]
    return names[0] if len(names) == 1 else "main"
