"""Characters to tokens. Tokens are read one at a time, where the parser stands.

A lexer holds the token it stands on: `kind`, `value` (its text), `start`, `end`, and
`previous_end`, where the token before it ended. Kinds: name, quoted (a name in backquotes, which
are part of `value`), int, float, string, newline, comment, end, bad, and each sign of punctuation
is its own kind.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from opstep.runtime.ir.graph import Source, Span
from opstep.runtime.ir.types import TensorType, TypeVariable

KEYWORDS = frozenset(("param", "state", "graph", "return", "assert", "at"))
CONSTANTS = {"true": True, "false": False, "none": None}
NUMBER_NAMES = {"inf": float("inf"), "nan": float("nan")}
RESERVED = KEYWORDS | CONSTANTS.keys() | NUMBER_NAMES.keys()

INT_MAX = 2**63 - 1
INT_MIN = -(2**63)

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
DOTTED = rf"{IDENTIFIER}(?:\.[A-Za-z0-9_]+)*"
QUOTED = r"`[^`\n]*`"
ONLY_TENSORS = "only params and states have names in backquotes"

_PLAIN = re.compile(DOTTED).fullmatch
_IN_QUOTES = re.compile(QUOTED.replace("*", "+")).fullmatch
_NO_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")
_TOKEN = re.compile(
    rf"""[ \t\r\f\v]*(?:
      (?P<name>{DOTTED})
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?P<tail>[A-Za-z0-9_.]*))
    | (?P<sign>->|<-|//|[()\[\]{{}},:=+\-*%<>])
    | (?P<newline>\n)
    | (?P<comment>\#[^\n]*)
    | (?P<string>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*")
    | (?P<quoted>{QUOTED})
    | (?P<end>\Z)
    | (?P<bad>["`][^\n]*|.)
    )""",
    re.VERBOSE | re.ASCII,
).match

_PASSED_OVER = ("newline", "comment")  # inside parentheses

_NAMES = rf"(?:[A-Za-z_][\w.]*(?:[ \t]*[,:][^=\n(]*)?|{QUOTED})"
LIKE_STATEMENT = re.compile(  # a line that probably begins a statement or an item
    r"[ \t]*(?:\}|(?:return|assert|graph|param|state)\b|mesh[ \t]+[A-Za-z_]|\#|\r?\n|"
    rf"{_NAMES}[ \t]*(?:<-|=[ \t]*[A-Za-z_][\w.]*[ \t]*\())",
    re.ASCII,
).match

_ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|(["\\nrt])|(.|\Z))', re.DOTALL)
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_QUOTED = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_DESCRIBED = {
    "newline": "the end of the line",
    "end": "the end",
    "comment": "a comment",
}
_SPELT = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "ø": "oe", "æ": "ae", "ı": "i", "ł": "l"}
_QUOTES = "'‘’“”´"


class SyntaxFault(Exception):
    """What is wrong at a place; the parser makes a Diagnostic of it and recovers."""

    def __init__(self, message: str, span: Span, hint: str = "", notes=()):
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint
        self.notes = notes


class Lexer:
    """Stands on one token of a text. Inside ( and [ line ends and comments are passed over.

    The text ends at `limit`.
    """

    __slots__ = (
        "end",
        "inner",
        "kind",
        "limit",
        "nesting",
        "previous_end",
        "source",
        "start",
        "text",
        "types",
        "value",
        "variables",
    )  # fmt: skip

    def __init__(self, source: Source, position: int = 0):
        self.source = source
        self.text = source.text
        self.limit = len(self.text)
        self.nesting = 0
        self.types: dict[str, TensorType] = {}  # read before, by their text: they repeat
        self.variables: Mapping[str, TypeVariable] = {}  # of the graph that is read
        self.inner: list[str] = []  # comments passed over inside parentheses, as in `Comments`
        self.seek(position)

    def seek(self, position: int) -> None:
        """Stands on the token that begins at or after `position`, outside all parentheses."""
        self.nesting = 0
        self.inner = []
        self.end = position
        self.advance()

    def advance(self) -> None:
        """Goes to the next token."""
        self.previous_end = self.end
        match = _TOKEN(self.text, self.end, self.limit)
        while self.nesting and match and match.lastgroup in _PASSED_OVER:
            if match.lastgroup == "comment":
                self.inner.append(comment_text(match["comment"]) or " ")
            match = _TOKEN(self.text, match.end(), self.limit)
        assert match is not None  # `bad` takes any character
        kind, group = match.lastgroup, match.lastindex  # a number is looked up quicker
        assert kind and group
        self.start, self.end = match.span(group)
        self.value = value = match[group]
        if kind == "sign":
            kind = value
        elif kind == "number":
            kind = _number_kind(value, match["tail"])
        self.kind = kind

    def peek(self) -> tuple[str, str]:
        """Kind and text of the token behind this one on the line; does not go there."""
        match = _TOKEN(self.text, self.end, self.limit)
        assert match is not None
        kind = match.lastgroup
        assert kind is not None
        if kind == "number":
            kind = _number_kind(match[kind], match["tail"])
            return kind, match["number"]
        return kind, match[kind]

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    def fault(self, expected: str, hint: str = "", notes=()) -> SyntaxFault:
        """The error that something else stands where `expected` should."""
        if self.kind == "bad":
            message, own_hint = self._bad()
            return SyntaxFault(message, self.span, own_hint or hint)
        return SyntaxFault(f"expected {expected}, not {self.describe()}", self.span, hint, notes)

    def describe(self) -> str:
        """The token in words."""
        return _DESCRIBED.get(self.kind) or (
            self.value if len(self.value) <= 40 else self.value[:39] + "…"
        )

    def _bad(self) -> tuple[str, str]:
        value = self.value
        if value[0] == '"':
            if (len(value) - len(value.rstrip("\\"))) % 2:
                return "a string cannot end in a lone \\", 'write "\\\\" for one backslash'
            return "the string is not closed", 'strings end in " on the line on which they begin'
        if value[0] == "`":
            return "the name is not closed", "names end in ` on the line on which they begin"
        if value[0] in "0123456789.":
            message = f"{value[:40]} is not a number"
            if re.match(r"[0-9]+\.[A-Za-z_]", value):
                return message, f"a name begins with a letter or _, such as layers.{value[:40]}"
            return message, ""
        if value in _QUOTES:
            return f"unexpected character {value}", 'strings stand in "double quotes"'
        if f"_{value}".isidentifier():
            return f"unexpected character {value}", self._ascii_hint()
        name = unicodedata.name(value, "")
        shown = value if value.isprintable() and value.strip() else f"U+{ord(value):04X}"
        return f"unexpected character {shown}" + (
            f" ({name})" if name and not value.isascii() else ""
        ), ""

    def _ascii_hint(self) -> str:
        """What to call the word instead in which a letter stands that is not ASCII."""
        begin, end = self.start, self.end
        while f"_{self.text[begin - 1 : begin]}".isidentifier() and begin:
            begin -= 1
        while f"_{self.text[end : end + 1]}".isidentifier() and end < self.limit:
            end += 1
        word = self.text[begin:end]
        for letter, plain in _SPELT.items():
            word = word.replace(letter, plain)
        plain = unicodedata.normalize("NFKD", word).encode("ascii", "ignore").decode()
        hint = "names are made of ASCII letters, digits and _"
        return f"{hint}: {plain[:40]}" if plain.isidentifier() else hint


def _number_kind(number: str, tail: str) -> str:
    return "bad" if tail else "int" if number.isdigit() else "float"


def comment_text(token: str) -> str:
    """The text of ``# a comment`` without its sign, one space and what trails."""
    return token[1:].removeprefix(" ").rstrip()


def unescape(token: str, start: int) -> str:
    """The value of a string token (quotes included) that begins at offset `start`."""
    body = token[1:-1]
    if "\\" not in body:
        return body

    def one(match: re.Match) -> str:
        code, plain, _ = match.groups()
        if plain:
            return _ESCAPES[plain]
        span = Span(start + 1 + match.start(), start + 1 + match.end())
        if not code:
            hint = 'the escapes are \\" \\\\ \\n \\r \\t and \\u with four hexadecimal digits'
            raise SyntaxFault(f"unknown escape {match[0]}", span, hint)
        if 0xD800 <= int(code, 16) <= 0xDFFF:
            raise SyntaxFault(f"{match[0]} is half a character", span, "write the character itself")
        return chr(int(code, 16))

    return _ESCAPE.sub(one, body)


def quote(text: str) -> str:
    """`text` as a string token; the inverse of `unescape`."""
    for plain, escaped in _QUOTED:
        text = text.replace(plain, escaped)
    return '"' + _CONTROL.sub(lambda m: f"\\u{ord(m[0]):04x}", text) + '"'


def unquote_name(token: str, span: Span) -> str:
    """The name that a quoted token stands for."""
    name = token[1:-1]
    if not name:
        raise SyntaxFault("there is no name between the backquotes", span)
    if not name.isprintable():
        odd = next(c for c in name if not c.isprintable())
        raise SyntaxFault(f"a name cannot have the character U+{ord(odd):04X}", span)
    return name


def quote_name(name: str) -> str:
    """The name of a param or state as a program writes it: in backquotes where it needs them."""
    return name if name not in RESERVED and _PLAIN(name) else f"`{name}`"


def bare_name(text: str) -> str:
    """`text` without its backquotes, where it is a name in them."""
    return text[1:-1] if _IN_QUOTES(text) else text


def is_tensor_name(text: str) -> bool:
    """Whether a text is one name, with or without backquotes."""
    return bool(_PLAIN(text) or _IN_QUOTES(text))


def identifier(name: str) -> str:
    """A name for a value that is made from a tensor's: ``layers_0_w`` from ``layers.0.w``."""
    name = _NO_IDENTIFIER.sub("_", name)
    return f"_{name}" if name[:1].isdigit() or name in RESERVED else name


def integer(token: str, span: Span, negative: bool = False) -> int:
    """The value of an int token; a fault where it does not fit 64 bits."""
    value = int(token) if len(token) < 40 else INT_MAX + 2
    value = -value if negative else value
    if not INT_MIN <= value <= INT_MAX:
        raise SyntaxFault(
            "the integer does not fit 64 bits", span, f"the range is {INT_MIN} to {INT_MAX}"
        )
    return value


def floating(token: str, span: Span, negative: bool = False) -> float:
    """The value of a float token; a fault where it is too large to be finite."""
    value = float(token)
    if value == float("inf"):
        raise SyntaxFault("the number does not fit 64 bits", span, "write inf for infinity")
    return -value if negative else value


_ITEM = re.compile(
    rf"^(?:\A\ufeff)?[ \t\r\f\v]*(param|state|mesh|graph)[ \t\r\f\v]*"
    rf"({QUOTED}|(?<=[ \t\r\f\v]){DOTTED})",
    re.MULTILINE | re.ASCII,
)
_TRIVIA_LINE = re.compile(r"(?:\A\ufeff)?[ \t\r\f\v]*(?:#[^\n]*)?\n").match


class Piece(NamedTuple):
    """A part of a text from `start` to `end`. `kind` is "" for what stands before all items."""

    start: int
    end: int
    kind: str
    name: str
    after_name: int

    def is_named_in(self, line: str) -> bool:
        """Whether a line may use what it declares; of a mesh that is not told by its first axis."""
        return self.name in line or (self.kind == "mesh" and "over" in line)

    def moved(self, by: int) -> Piece:
        """The same piece in a text that is longer above it."""
        return Piece(self.start + by, self.end + by, self.kind, self.name, self.after_name + by)


def cut(text: str) -> list[Piece]:
    """The pieces of a text, in order; together they are the text. None for the empty text."""
    begins: list[tuple[int, str, str, int]] = []
    floor = 0
    for match in _ITEM.finditer(text):
        start = _above(text, floor, match.start())
        if start and not begins:
            begins.append((0, "", "", 0))
        begins.append((start, match[1], match[2].strip("`"), match.end()))
        floor = text.find("\n", match.end()) + 1 or len(text)
    if not text:
        return []
    if not begins:
        begins.append((0, "", "", 0))
    ends = [start for start, *_ in begins[1:]] + [len(text)]
    return [Piece(b[0], end, *b[1:]) for b, end in zip(begins, ends, strict=True)]


def _above(text: str, floor: int, start: int) -> int:
    """Where the blank lines and comment lines above a line begin."""
    while start > floor:
        line = text.rfind("\n", floor, start - 1) + 1 or floor
        match = _TRIVIA_LINE(text, line)
        if match is None or match.end() != start:
            break
        start = line
    return start
