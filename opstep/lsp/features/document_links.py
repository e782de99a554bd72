"""Document links: files that a text names and that are there, to be opened from it."""

from __future__ import annotations

import re
from pathlib import Path

from lsprotocol import types

from opstep.lsp.project import Project, uri_of
from opstep.lsp.registry import feature
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.lexer import unescape

_MOST = 20_000  # links of a file: an imported program names a line of its origin on each of its own
_STRING = r'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"'
_LINE = rf"(?P<string>{_STRING})[ \t]*:[ \t]*(?P<line>\d+)"
_ORIGIN = re.compile(rf"\bat[ \t]+(?={_STRING}[ \t]*:)")
_FRAME = re.compile(rf"(?:,[ \t]*)?{_LINE}[ \t]*")
_COMMENT = re.compile(rf"(?:{_STRING}|[^#\n\"])*(?P<comment>#[^\n]*)?")
# A path in a comment: an ending that says it is a file, then maybe an array's name or a line. It is
# looked for where a run of its characters begins: from each of them would take a long line hours.
_PATH = re.compile(
    r"(?<![\w.~/-])(?P<path>/?(?:[\w.~-]+/)*[\w.-]+\.(?:opg|py|safetensors|npz|npy|onnx|db|pftrace|json|toml|md|txt))"
    r"(?::(?P<key>[\w.]+))?(?![\w/])"
)


@feature(types.TEXT_DOCUMENT_DOCUMENT_LINK, types.DocumentLinkOptions(resolve_provider=False))
def document_link(project: Project, params: types.DocumentLinkParams) -> list[types.DocumentLink]:
    """The lines of origins (``at "model.py":12, "train.py":3``), and files that comments name, as
    far as they exist.
    """
    file = project.file(params.text_document.uri)
    found = _Links(file, Path(file.path).parent)
    text = file.text
    if '"' in text:
        for origin in _ORIGIN.finditer(text):
            position = origin.end()
            while frame := _FRAME.match(text, position):
                found.frame(frame)
                position = frame.end()
    position = text.find("#")
    while position >= 0:
        start = text.rfind("\n", 0, position) + 1
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        match = _COMMENT.match(text, start, end)
        if match is not None and match["comment"]:
            found.comment(match.start("comment"), end)
        position = text.find("#", end)
    return found.links[:_MOST]


class _Links:
    """The links so far. A path is looked for on disk once."""

    def __init__(self, file, folder: Path):
        self.file = file
        self.folder = folder
        self.links: list[types.DocumentLink] = []
        self._targets: dict[str, str | None] = {}

    def frame(self, match: re.Match[str]) -> None:
        try:
            path = unescape(match["string"], match.start("string"))
        except (OpstepError, Exception):
            return
        target = self._target(path)
        if target is not None:
            line = int(match["line"][:9])
            start, end = match.span("string")[0] + 1, match.end("line")
            self._add(start, end, f"{target}#L{max(1, line)}", f"{path}, line {line}")

    def comment(self, start: int, end: int) -> None:
        for match in _PATH.finditer(self.file.text, start, end):
            target = self._target(match["path"])
            if target is None:
                continue
            key = match["key"]
            at_line = bool(key) and key.isdigit()
            tooltip = match["path"] + (f", line {key}" if at_line else f", {key}" if key else "")
            self._add(*match.span(), f"{target}#L{key}" if at_line else target, tooltip)

    def _add(self, start: int, end: int, target: str, tooltip: str) -> None:
        range_ = self.file.range(start, end)
        self.links.append(types.DocumentLink(range_, target, tooltip))

    def _target(self, path: str) -> str | None:
        """The URI of a file; None where there is none."""
        if path not in self._targets:
            location = self.folder / path
            try:
                exists = location.is_file()
            except (OSError, ValueError):  # a path that cannot be one
                exists = False
            self._targets[path] = uri_of(str(location)) if exists else None
        return self._targets[path]
