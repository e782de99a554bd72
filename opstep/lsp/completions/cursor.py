"""What stands before the cursor, read so tolerantly that a line may be half typed.

The parser wants whole statements; while one types there are none. Here only the tokens of the
statement around the cursor are looked at, and what could stand where the cursor is follows from
those before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from opstep.runtime.ir.graph import Graph, Source
from opstep.runtime.ir.lexer import LIKE_STATEMENT, NUMBER_NAMES, QUOTED, Lexer, bare_name
from opstep.runtime.ir.types import DEFAULT_FAMILY, FAMILIES, TypeVariable, type_variable

_MOST_LINES = 80  # of one statement
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_NEW = re.compile(
    rf"[ \t]*(?:return|assert|{QUOTED}[ \t]*<-|[\w., \t:\[\]]+?<-"
    r"|(\w+)[ \t]*(?:=|:[^=]*=)[ \t]*\w*[ \t]*$)"
)
_TYPE_PARAMETERS = re.compile(r"^[ \t]*graph[ \t]+\w+[ \t]*<([^>\n]*)>", re.MULTILINE)
_BRACKETS = re.compile(r"\[([^\]\n]*)")
_REST = re.compile(r"\w*`?")
_OPERATORS = ("+", "-", "*", "//", "%")


class Token(NamedTuple):
    """A token and where it stands in the file."""

    kind: str
    value: str
    start: int
    end: int


@dataclass(slots=True)
class Argument:
    """What stands between two commas of a call. `name` is that of an attribute."""

    start: int
    tokens: list[Token] = field(default_factory=list)

    @property
    def name(self) -> str | None:
        tokens = self.tokens
        return tokens[0].value if len(tokens) > 1 and tokens[1].kind == "=" else None

    @property
    def value(self) -> list[Token]:
        """The tokens of an operand, or those behind the = of an attribute."""
        return self.tokens[2:] if self.name is not None else self.tokens


@dataclass(slots=True)
class Call:
    """``callee(…)`` around the cursor. `active` is the argument that the cursor stands in."""

    callee: Token
    arguments: list[Argument]
    active: int
    initialiser: bool = False  # of a param or state: there are attributes only

    def operands(self) -> list[Argument]:
        """The arguments that are not attributes, the empty one of the cursor among them."""
        return [a for k, a in enumerate(self.arguments)
                if a.name is None and (a.tokens or k == self.active)]  # fmt: skip

    def attributes(self) -> dict[str, Argument]:
        """The attributes that are written, by name; that of the cursor too."""
        return {a.name: a for a in self.arguments if a.name is not None}


@dataclass(slots=True)
class Cursor:
    """Where the cursor stands.

    `context` is one of: item, statement, callee, argument, value, operand, condition, returned,
    type, dim, family, results, sharding, mesh axis, initialiser, and "" where nothing can be
    proposed. `word` is what
    has been typed of the word at the cursor, `start` and `end` are where the whole word stands,
    `statement` is where the statement begins.
    """

    context: str
    word: str
    start: int
    end: int
    statement: int
    tokens: list[Token]  # of the statement, before the word
    call: Call | None = None
    attribute: str = ""  # whose value is typed
    in_list: bool = False
    target: str = ""  # of an update; the name of a declaration
    index: int = 0  # of a returned value
    quoted: bool = False  # inside a string


def read(file, offset: int) -> Cursor:
    """What the cursor at an offset of a file stands in."""
    text, item = file.text, file.item_at(offset)
    low = item.start if item is not None else 0
    line = text.rfind("\n", 0, offset) + 1
    ahead = text.find("\n", offset)
    last, comment = _line(text, line, len(text) if ahead < 0 else ahead, offset)
    if comment:
        return Cursor("", "", offset, offset, line, [])
    quoted = last is not None and last.kind in ("string", "bad") and last.value[0] != "`"
    start, end = (last.start, last.end) if last is not None else (offset, offset)
    body = item is not None and in_body(item, offset)
    begin = _begin(text, min(low, line), line)
    tokens = tokens_between(text, begin, start)
    cursor = Cursor("", text[start:offset], start, end, begin, tokens, quoted=quoted)
    if tokens and tokens[0].kind == "name" and tokens[0].value == "graph":
        opened = _body_on_line(tokens)
        if opened is None:
            _header(cursor, tokens)
            return cursor
        cursor.tokens = tokens = tokens[opened:]
        body = body and not any(t.kind == "}" for t in tokens)
    elif tokens and tokens[0].value in ("param", "state") and len(tokens) > 1:
        _declaration(cursor, tokens)
    if body:
        _statement(cursor, cursor.tokens)
    elif not tokens:
        cursor.context = "item"
    if cursor.call is not None:
        _complete(cursor.call, text, offset)
    if quoted and cursor.context != "value":
        cursor.context = ""
    return cursor


def in_body(item, offset: int) -> bool:
    """Whether an offset of the file is between the braces of a graph."""
    text, at = item.text, offset - item.start
    node = item.node
    if isinstance(node, Graph):
        opened = text.find("{", node.results_span.start)
        closed = text[node.span.end - 1 : node.span.end] == "}"
        return 0 <= opened < at and (at < node.span.end or not closed)
    opened = text.find("{")
    return text.startswith("graph") and 0 <= opened < at and text.find("\n}", opened, at) < 0


def symbols(item) -> list[str]:
    """The symbols in the head of a graph, in their order."""
    head = item.text[: max(item.text.find("{"), 0) or item.text.find("\n")]
    found = {}
    for inside in _BRACKETS.findall(head):
        for name in _IDENTIFIER.findall(inside):
            found[name] = None
    return list(found)


def type_variables(item) -> dict[str, TypeVariable]:
    """The type variables in the head of a graph by name, however broken that is."""
    head = _TYPE_PARAMETERS.search(item.text)
    found = {}
    for part in head[1].split(",") if head else ():
        name, _, family = (word.strip() for word in part.partition(":"))
        if _IDENTIFIER.fullmatch(name) and (family or DEFAULT_FAMILY) in FAMILIES:
            found[name] = type_variable(name, family or DEFAULT_FAMILY)
    return found


# --- tokens ---------------------------------------------------------------------------------------


def _line(text: str, start: int, end: int, offset: int) -> tuple[Token | None, bool]:
    """The word or string that the cursor is in or right behind, and whether it is in a comment."""
    lex = Lexer(Source(text[start:end] + "\n"))
    cursor = offset - start
    before: Token | None = None
    while lex.kind not in ("newline", "end") and lex.start < cursor:
        token = Token(lex.kind, lex.value, start + lex.start, start + lex.end)
        if lex.kind == "comment":
            return None, True
        if lex.kind == "bad" and lex.value == "." and before is not None and lex.end == cursor:
            return before._replace(value=f"{before.value}.", end=offset), False  # `conv1.`
        open_string = lex.kind == "bad" and lex.value[0] in '"`'
        if lex.end >= cursor and lex.kind in ("name", "quoted", "int", "float"):
            return token, False
        if lex.kind == "string" and lex.end > cursor:
            return token, False
        if open_string and lex.end >= cursor:  # it runs to the end of the line
            word = _REST.match(text, offset)
            return token._replace(end=word.end() if word else offset), False
        before = token if lex.kind == "name" else None
        lex.advance()
    return None, False


def _begin(text: str, low: int, line: int) -> int:
    """Where the statement begins that the line at `line` belongs to."""
    start = line
    for _ in range(_MOST_LINES):
        if start <= low:
            return line
        before = text.rfind("\n", low, start - 1) + 1 or low
        row = text[before:start].strip()
        if row and row[0] != "#" and LIKE_STATEMENT(text, before):
            opened = tokens_between(text, before, line)
            return before if _depth(opened) > 0 and not _is_new(text, line, opened) else line
        start = before
    return line


def _is_new(text: str, line: int, opened: list[Token]) -> bool:
    """Whether a line begins a statement, though a parenthesis above it is still open."""
    if LIKE_STATEMENT(text, line) and text[line : text.find("\n", line)].strip():
        return text[line:].lstrip()[:1] != "#"
    end = text.find("\n", line)
    match = _NEW.match(text[line : end if end >= 0 else len(text)])
    # `axis=1` in a broken list and `y = re` under a line that was left open look alike; the form
    # that the formatter writes tells them apart.
    return match is not None and (match[1] is None or " =" in match[0])


def tokens_between(text: str, start: int, end: int) -> list[Token]:
    """The tokens of a piece of text, comments and line ends left out."""
    lex = Lexer(Source(text[start:end]))
    found = []
    while lex.kind != "end":
        if lex.kind not in ("newline", "comment"):
            found.append(Token(lex.kind, lex.value, start + lex.start, start + lex.end))
        lex.advance()
    return found


def statement_span(file, offset: int) -> tuple[int, int]:
    """Where the statement, or the head of an item, around an offset begins and ends."""
    text, item = file.text, file.item_at(offset)
    line = text.rfind("\n", 0, offset) + 1
    start = _begin(text, min(item.start if item is not None else 0, line), line)
    end, position = start, start
    for _ in range(_MOST_LINES):
        following = text.find("\n", position)
        end = following if following >= 0 else len(text)
        tokens = tokens_between(text, start, end)
        if end >= offset and (_depth(tokens) <= 0 or LIKE_STATEMENT(text, end + 1)):
            break
        position = end + 1
        if position >= len(text):
            break
    lead = len(text[start:end]) - len(text[start:end].lstrip())
    return start + lead, max(end, start + lead)


def _depth(tokens: list[Token]) -> int:
    """How many brackets are open at the end."""
    depth = 0
    for t in tokens:
        depth += (t.kind in ("(", "[")) - (t.kind in (")", "]"))
    return depth


def _outside(tokens: list[Token], *kinds: str) -> int | None:
    """The first token of a kind that stands in no brackets."""
    depth = 0
    for k, t in enumerate(tokens):
        if depth == 0 and t.kind in kinds:
            return k
        depth += (t.kind in ("(", "[")) - (t.kind in (")", "]"))
    return None


def _body_on_line(tokens: list[Token]) -> int | None:
    """Behind the { of a graph whose body is on the line of its head."""
    opened = _outside(tokens, "{")
    return None if opened is None else opened + 1


# --- what stands before the cursor ----------------------------------------------------------------


def _header(cursor: Cursor, tokens: list[Token]) -> None:
    arrow = _outside(tokens, "->")
    if arrow is not None:
        rest = tokens[arrow + 1 :]
        last = max((k for k, t in enumerate(rest) if t.kind == "," and not _depth(rest[:k])),
                   default=-1)  # fmt: skip
        cursor.context = "results" if not rest else _type(rest[last + 1 :])
    elif len(tokens) > 2 and _depth(tokens) > 0:
        opened = next(k for k, t in enumerate(tokens) if t.kind == "(")
        _typed(cursor, tokens[opened + 1 :])
    elif len(tokens) > 4 and tokens[2].kind == "<" and tokens[-1].kind == ":":
        cursor.context = "family"


def _declaration(cursor: Cursor, tokens: list[Token]) -> None:
    equals = _outside(tokens, "=")
    cursor.target = bare_name(tokens[1].value)
    if equals is None:
        over = next((k for k, t in enumerate(tokens) if k > 2 and t.value == "over"), None)
        if over is not None:
            last = tokens[-1]
            cursor.context = "mesh axis" if last.value in ("over", "[", ",") else ""
        elif _depth(tokens) == 0 and tokens[-1].kind == "]":
            cursor.context = "sharding"
        else:
            _typed(cursor, tokens[1:])
        return
    rest = tokens[equals + 1 :]
    if not rest:
        cursor.context = "initialiser"
    elif len(rest) > 1 and rest[1].kind == "(":
        _call(cursor, rest)
        if cursor.call is not None:
            cursor.call.initialiser = True


def _typed(cursor: Cursor, tokens: list[Token]) -> None:
    """Names with types: the place behind the last colon."""
    colon = next((k for k in reversed(range(len(tokens))) if tokens[k].kind == ":"), None)
    if colon is not None:
        rest = tokens[colon + 1 :]
        depth = _depth(rest)
        if not any(t.kind == "," and depth <= 0 for t in rest):
            cursor.context = _type(rest)


def _type(tokens: list[Token]) -> str:
    """What can come next in a type of which these are the tokens."""
    if not tokens:
        return "type"
    starts = tokens[-1].kind in ("[", ",", "(", *_OPERATORS)
    return "dim" if starts and _depth(tokens) > 0 else ""


def _statement(cursor: Cursor, tokens: list[Token]) -> None:
    if not tokens:
        cursor.context = "statement"
        return
    first = tokens[0].value
    equals = _outside(tokens, "=", "<-")
    if first == "return":
        if tokens[-1].kind in ("name", ",") and (len(tokens) == 1 or tokens[-1].kind == ","):
            cursor.context, cursor.index = "returned", sum(t.kind == "," for t in tokens)
    elif first == "assert":
        cursor.context = "condition" if len(tokens) == 1 else ""
    elif equals is not None and tokens[equals].kind == "<-":
        cursor.target = bare_name(first)
        cursor.context = "operand" if equals == len(tokens) - 1 else ""
    elif equals is not None:
        rest = tokens[equals + 1 :]
        if not rest:
            cursor.context = "callee"
        elif len(rest) > 1 and rest[1].kind == "(":
            _call(cursor, rest)
    elif len(tokens) > 1 and tokens[1].kind == "(":
        _call(cursor, tokens)
    elif any(t.kind == ":" for t in tokens):
        _typed(cursor, tokens)


def _call(cursor: Cursor, tokens: list[Token]) -> None:
    """``callee ( …``: which argument the cursor is in, and what it can be."""
    arguments = [Argument(tokens[1].end)]
    depth = 1
    for t in tokens[2:]:
        depth += (t.kind in ("(", "[")) - (t.kind in (")", "]"))
        if depth == 0:
            return
        if t.kind == "," and depth == 1:
            arguments.append(Argument(t.end))
        else:
            arguments[-1].tokens.append(t)
    active = arguments[-1]
    cursor.call = Call(tokens[0], arguments, len(arguments) - 1)
    if not active.tokens:
        cursor.context = "argument"
    elif active.name is not None:
        cursor.attribute = active.name
        cursor.in_list = depth > 1
        if active.tokens[-1].kind in ("=", "[", ",", "(", *_OPERATORS):
            cursor.context = "value"


def _complete(call: Call, text: str, offset: int) -> None:
    """Adds what stands of the call behind the cursor, so that it is seen whole."""
    end = offset - 1
    for _ in range(_MOST_LINES):
        end = text.find("\n", end + 1)
        if end < 0 or LIKE_STATEMENT(text, end + 1):
            break
    opened = call.arguments[0].start
    tokens = tokens_between(text, opened, end if end >= 0 else len(text))
    arguments, active, depth = [Argument(opened)], 0, 1
    for t in tokens:
        depth += (t.kind in ("(", "[")) - (t.kind in (")", "]", "}"))
        if depth <= 0:
            break
        if t.kind == "," and depth == 1:
            arguments.append(Argument(t.end))
            active += t.end <= offset
        else:
            arguments[-1].tokens.append(t)
    call.arguments, call.active = arguments, active


def is_number(tokens: list[Token]) -> bool:
    """Whether an operand is a number."""
    last = tokens[-1] if tokens else None
    return last is not None and (last.kind in ("int", "float") or last.value in NUMBER_NAMES)
