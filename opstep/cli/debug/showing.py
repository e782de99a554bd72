"""How source lines, frames and stops look in a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opstep.runtime.ir.diagnostics import visible

if TYPE_CHECKING:
    from opstep.runtime.debugger.frames import Frame

AROUND = 2  # lines shown above and below the one where it stands
WIDTH = 160  # columns of a source line that are shown

_STYLES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
    "magenta": "35", "cyan": "36",
}  # fmt: skip
_TOKENS = re.compile(
    r"(?P<name>`[^`]*`)"
    r"|(?P<comment>#.*)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<keyword>\b(?:graph|param|state|return|assert|at|import|from|as)\b(?!\s*[(=])"
    r'|\bin(?= "))'
    r"|(?P<type>\b(?:f64|f32|f16|bf16|i64|i32|i16|i8|u8|bool)\b)"
    r"|(?P<op>\b[A-Za-z_][\w.]*(?=\())"
    r"|(?P<number>(?<![\w.])-?\d[\w.]*)"
)
_TOKEN_STYLES = {
    "comment": "dim", "string": "green", "keyword": "magenta", "type": "cyan", "op": "blue",
    "number": "yellow", "name": "bold",
}  # fmt: skip


class Paint:
    """Colours, where there are any."""

    def __init__(self, on: bool):
        self.on = on

    def __call__(self, text: str, style: str) -> str:
        if not self.on or not text or not style:
            return text
        codes = ";".join(_STYLES[s] for s in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"

    def source(self, line: str) -> str:
        """A line of a program."""
        line = visible(line.expandtabs(4))
        if len(line) > WIDTH:
            line = line[: WIDTH - 1] + "…"
        if not self.on:
            return line
        return _TOKENS.sub(lambda m: self(m[0], _TOKEN_STYLES[str(m.lastgroup)]), line)


def excerpt(paint: Paint, lines: list[str], first: int, last: int, current: int = 0) -> list[str]:
    """Lines `first` to `last` of a text, from 1, with a marker at `current`."""
    shown = []
    width = max(len(str(last)), 3)
    for number in range(max(first, 1), min(last, len(lines)) + 1):
        marker = paint("=>", "bold green") if number == current else "  "
        line = f"{marker} {paint(f'{number:>{width}}', 'dim')}  {paint.source(lines[number - 1])}"
        shown.append(line.rstrip())
    return shown


def text_lines(frame: Frame) -> list[str]:
    """Of a frame's text."""
    return frame.source.text.splitlines() if frame.source else []


def shown_path(path: str) -> str:
    """Relative to where one stands, if it is below."""
    import os

    try:
        short = os.path.relpath(path)
    except (OSError, ValueError):
        return visible(path)
    return visible(path if short.startswith("..") else short)


def frame_line(paint: Paint, frame: Frame, arguments: str | None = None) -> str:
    """``features (x=f32[8, 1, 8, 8]) at lenet.opg:19``; no `arguments`: no parentheses."""
    location = f"{shown_path(frame.path)}:{frame.line}"
    at = paint(location, "cyan")
    if frame.python:
        if frame.python.at.changed:
            at += " (changed since it was imported)"
        return f"{paint(visible(frame.name), 'bold')} at {at}"
    in_parentheses = f" ({arguments})" if arguments is not None else ""
    return f"{paint(visible(frame.name), 'bold')}{in_parentheses} at {at}"


def arguments_of(frame: Frame) -> str:
    """A frame's inputs with their types."""
    return ", ".join(f"{name}={node.type}" for name, node in frame.inputs().items())
