"""Where a recorded line stands in the script's loops and its training: "step 12, iteration 2 of 3".

A step ends with that of an optimizer; steps count from 0, as in reports. Iterations are those of
the innermost ``for`` around the line, or around the call that led to it, and count from 1; where
lines of the loop are not kept, nothing is said.
"""

from __future__ import annotations

import ast
import dis
import linecache
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Loop(NamedTuple):
    """Its lines, and the first instructions of what it loops over and of its body."""

    first: int
    last: int
    entry: int
    body: int


class Turn(NamedTuple):
    """`number` counts from 1; `total` is 0 while the loop runs."""

    loop: Loop
    number: int
    total: int


class Moments:
    """`native`: the recorder's; `codes`: its code objects by number, as of now."""

    def __init__(self, native: Any, codes: Sequence[CodeType], steps: Sequence[int]):
        self._native, self._codes, self._steps = native, codes, steps
        self._known: dict[tuple[int, Loop], tuple[int, Sequence[int], bool]] = {}

    def text(self, position: int, loops: int = 1) -> str:
        """Of a position, with the number of the turn in as many loops."""
        turns = islice(self._around(position), loops)
        found = [self._step(position), *(self._text_of(*turn) for turn in turns)]
        return ", ".join(filter(None, found))

    def _step(self, position: int) -> str:
        done = bisect_left(self._steps, position)
        if not self._steps:
            return ""
        is_over = done == len(self._steps) and not any(
            _nodes(self._codes[code], line) for _, _, line, code in self._calls(position)
        )
        return f"after step {done - 1}" if is_over else f"step {done}"

    def _text_of(self, turn: Turn, is_here: bool) -> str:
        of = f" of {turn.total}" if turn.total else ""
        return f"iteration {turn.number}{of}{'' if is_here else f' (line {turn.loop.first})'}"

    def _around(self, position: int) -> Iterator[tuple[Turn, bool]]:
        """Turns in which a position is, the innermost first, and whether they are of its call."""
        is_here = True
        for frame, start, line, code in self._calls(position):
            for loop in _loops(self._codes[code], line):
                if (turn := self._turn(frame, start, loop)) is not None:
                    yield turn, is_here
            is_here = False

    def _calls(self, position: int) -> Iterator[tuple[int, int, int, int]]:
        """(frame, position, line, code's number) of the lines that run, the innermost first."""
        event = self._native.last(position, 0)
        while event is not None:
            start, frame, line = event
            known = self._native.frame(frame)
            if known is None:
                return
            yield frame, start, line, known[1]
            event = self._native.last(position, known[0]) if known[0] else None

    def _turn(self, frame: int, position: int, loop: Loop) -> Turn | None:
        asked, starts, has_ended = self._known.get((frame, loop), (0, (), False))
        if not (starts and starts[0] <= position <= asked):  # else the same run of the loop
            found = self._native.turns(frame, position, *loop)
            if found is None:
                return None
            starts, has_ended = found
            self._known[frame, loop] = position, starts, has_ended
        number = bisect_right(starts, position)
        return Turn(loop, number, len(starts) if has_ended else 0) if number else None


@cache
def _loops(code: CodeType, line: int) -> tuple[Loop, ...]:
    """Those of a code object around a line, the innermost first."""
    starts = [(k, n) for k, n in dis.findlinestarts(code) if n is not None]
    found = []
    for node in _nodes(code, line):
        if isinstance(node, ast.While):  # where it is entered cannot be seen in all Pythons
            continue
        inner = node.body[0].lineno
        entry = min((k for k, n in starts if node.lineno <= n < inner), default=None)
        body = min((k for k, n in starts if n == inner and k > (entry or 0)), default=None)
        if entry is not None and body is not None:
            found.append(Loop(node.lineno, node.end_lineno or line, entry, body))
    return tuple(found)


@cache
def _nodes(code: CodeType, line: int) -> list[ast.For | ast.AsyncFor | ast.While]:
    """Loops in whose bodies a line of the code is, the innermost first."""
    found: list[ast.For | ast.AsyncFor | ast.While] = []
    inside: ast.AST | None = _tree(code.co_filename)
    while inside is not None:
        if isinstance(inside, _SCOPES):
            found.clear()
        if isinstance(inside, ast.For | ast.AsyncFor | ast.While):
            body = inside.body
            if body[0].lineno <= line <= (body[-1].end_lineno or 0):
                found.insert(0, inside)
        inside = next((c for c in ast.iter_child_nodes(inside) if _has(c, line)), None)
    return found


@cache
def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _has(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:  # a case of match
        return any(_has(child, line) for child in ast.iter_child_nodes(node))
    return first <= line <= last
