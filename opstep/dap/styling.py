"""Colour in the texts of values: what is not finite, or was never written, is to be seen first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.expressions.tree import Tree

BEGIN, END = "\x1b[91m", "\x1b[0m"  # bright red: clients have a shade for each of their themes
_TROUBLE = re.compile(
    r"[\d,]+ (?:NaN|-?inf)(?:, [\d,]+ -?inf)* of [\d,]*\d|all (?:NaN|-?inf)"
    r"|[\d,]+ unwritten|(?<![\w.])(?:nan|-?inf)(?![\w.])"
)


def is_troubled(text: str) -> bool:
    """Whether the text of a tensor tells of NaNs, infinities or elements never written."""
    return _TROUBLE.search(text) is not None


def coloured(text: str) -> str:
    """The text of a tensor, with that in colour."""
    return _TROUBLE.sub(lambda found: f"{BEGIN}{found[0]}{END}", text)


def figures_first(type: str, figures: str) -> str:
    """A tensor's line. What is wrong comes first: a narrow view cuts off what is at the end."""
    return f"{figures}  {type}" if is_troubled(figures) else f"{type}  {figures}"


def why_not_finite(frame: Frame, expression: str, text: str) -> str:
    """``, as h has 7 NaN of 20, mean of the rest 0.1``, behind ``nan``, which ``mean(h)`` is; ""
    behind what is finite, and where no tensor of the expression tells why.
    """
    from opstep.runtime.expressions.parser import parse_tree
    from opstep.runtime.expressions.text import figures_text

    if text not in ("nan", "inf", "-inf"):
        return ""
    for name in dict.fromkeys(_names(parse_tree(expression))):
        node = frame.lookup(name)
        if node is None or not node.type.shape or not node.type.dtype.is_float:
            continue
        figures = frame.machine.executor.statistics(node)
        if figures.finite < figures.count:
            return f", as {name} has {figures_text(node.type, figures)}"
    return ""


def _names(tree: Tree) -> Iterator[str]:
    """The names in a tree, from left to right."""
    from opstep.runtime.expressions.tree import Name, parts

    if isinstance(tree, Name):
        yield tree.text
    for part in parts(tree):
        yield from _names(part)
