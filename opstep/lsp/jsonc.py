"""JSON with comments and trailing commas, as editors keep their settings: values with their places.

Text that is none gives as much as could be read: these files belong to the user, and are only read
to find a name in them.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

# What is not closed goes on to the end: from each place on again would take a long text hours.
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?://[^\n]*|/\*.*?(?:\*/|\Z)|(?P<string>"(?:[^"\\\n]|\\.)*"?)|(?P<sign>[{}\[\],:])
    |(?P<word>[^\s{}\[\],:"/]+)|(?P<bad>.))""",
    re.VERBOSE | re.DOTALL,
)
_DEEPEST = 64


class Node(NamedTuple):
    """A value. `value`: text, a list of nodes, or a dict of pairs (key, value) of nodes; None for
    anything else. `start` and `end` are offsets.
    """

    value: str | list[Node] | dict[str, tuple[Node, Node]] | None
    start: int
    end: int

    def get(self, key: str) -> Node | None:
        """A member of an object."""
        found = self.value.get(key) if isinstance(self.value, dict) else None
        return found[1] if found else None

    def entries(self) -> list[Node]:
        """The values of a list; none of anything else."""
        return self.value if isinstance(self.value, list) else []

    def members(self) -> dict[str, tuple[Node, Node]]:
        """The pairs of an object; none of anything else."""
        return self.value if isinstance(self.value, dict) else {}

    def text(self) -> str:
        """The text of a string; "" of anything else."""
        return self.value if isinstance(self.value, str) else ""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def read(text: str) -> Node:
    """The value of a text."""
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is not None and kind != "bad":
            tokens.append(_Token(kind, match[kind], *match.span(kind)))
    node, _ = _value([*tokens, _Token("end", "", len(text), len(text))], 0, 0)
    return node


def _value(tokens: list[_Token], k: int, depth: int) -> tuple[Node, int]:
    token = tokens[k]
    if token.kind == "string":
        return _string(token), k + 1
    if token.text in ("{", "[") and depth < _DEEPEST:
        return (_object if token.text == "{" else _list)(tokens, k, depth + 1)
    return Node(None, token.start, token.end), min(k + 1, len(tokens) - 1)


def _string(token: _Token) -> Node:
    try:
        return Node(json.loads(token.text), token.start, token.end)
    except ValueError:
        return Node(None, token.start, token.end)


def _list(tokens: list[_Token], k: int, depth: int) -> tuple[Node, int]:
    start = tokens[k].start
    found: list[Node] = []
    k += 1
    while tokens[k].text != "]" and tokens[k].kind != "end":
        if tokens[k].text == ",":
            k += 1
            continue
        node, k = _value(tokens, k, depth)
        found.append(node)
    return Node(found, start, tokens[k].end), min(k + 1, len(tokens) - 1)


def _object(tokens: list[_Token], k: int, depth: int) -> tuple[Node, int]:
    start = tokens[k].start
    found: dict[str, tuple[Node, Node]] = {}
    k += 1
    while tokens[k].text != "}" and tokens[k].kind != "end":
        if tokens[k].kind == "string" and tokens[k + 1].text == ":":
            key = _string(tokens[k])
            value, k = _value(tokens, k + 2, depth)
            if isinstance(key.value, str):
                found[key.value] = key, value
        else:
            k += 1
    return Node(found, start, tokens[k].end), min(k + 1, len(tokens) - 1)
