"""Text to a syntax tree, by precedence climbing."""

from __future__ import annotations

import re
from typing import NamedTuple

from opstep.runtime.expressions.errors import HEIGHT_MOST, TEXT_MOST, ExpressionError
from opstep.runtime.expressions.tree import (
    AtRank,
    AtStep,
    Binary,
    Call,
    Compare,
    Field,
    Index,
    Items,
    Name,
    Number,
    Rest,
    Slice,
    Text,
    Tree,
    Unary,
    parts,
)
from opstep.runtime.ir.diagnostics import visible
from opstep.runtime.ir.lexer import DOTTED, INT_MAX, QUOTED, bare_name

WORDS = {"true": True, "false": False, "nan": float("nan"), "inf": float("inf")}
OPERATORS = ("and", "or", "not")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_BINDING = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "@": 6, "**": 8}
_BINDING |= dict.fromkeys(COMPARISONS, 4)
_NOT, _SIGN, _POWER = 3, 7, 8

_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<name>{DOTTED})
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?P<tail>\w*))
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<quoted>{QUOTED})
    | (?P<sign>\.\.\.|\*\*|//|==|!=|<=|>=|&&|\|\||<-|[-+*/%@<>()\[\],:.=!&|^~])
    | (?P<end>\Z)
    | (?P<bad>.)
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
).match

_FOREIGN = {
    "=": "write == to compare", "&&": "write and", "||": "write or", "!": "write not",
    "&": "write and", "|": "write or", "^": "write ** for a power", "~": "write not",
    "<-": "write == to compare; values are set, not assigned here",
}  # fmt: skip


class Token(NamedTuple):
    """`kind`: name, quoted (a name in backquotes), int, float, string, end, or the sign itself."""

    kind: str
    text: str
    start: int
    end: int


def parse_tree(text: str) -> Tree:
    """The tree of a whole expression. Raises `ExpressionError`."""
    if len(text) > TEXT_MOST:
        raise ExpressionError(f"the expression is longer than {TEXT_MOST:,} characters", 0)
    parser = Parser(tokens(text))
    if parser.token.kind == "end":
        raise ExpressionError("there is no expression", 0)
    tree = parser.expression()
    if parser.token.kind != "end":
        raise parser.unexpected("an operator or the end")
    return tree


def tokens(text: str) -> list[Token]:
    """All tokens; the last one is the end. Raises `ExpressionError`."""
    found, at = [], 0
    while True:
        match = _TOKEN(text, at)
        assert match is not None  # `bad` takes any character
        kind = match.lastgroup
        assert kind is not None
        start, at = match.span(kind)
        token = match[kind]
        if kind == "bad":
            if token in "\"'`":
                what = "name" if token == "`" else "string"
                raise ExpressionError(f"the {what} is not closed", start)
            raise ExpressionError(f"unexpected character {visible(token)}", start)
        if kind == "number":
            if match["tail"]:
                raise ExpressionError(f"{token} is not a number", start)
            kind = "int" if token.isdigit() else "float"
        found.append(Token(token if kind == "sign" else kind, token, start, at))
        if kind == "end":
            return found


class Parser:
    """Stands on one token."""

    def __init__(self, found: list[Token]):
        self.found = found
        self.next = 1
        self.token = found[0]
        self.depth = 0
        self.heights: dict[int, int] = {}  # of trees that are kept alive by those that hold them

    def advance(self) -> Token:
        passed = self.token
        if passed.kind != "end":
            self.token = self.found[self.next]
            self.next += 1
        return passed

    def expect(self, kind: str, what: str) -> Token:
        if self.token.kind != kind:
            raise self.unexpected(what)
        return self.advance()

    def unexpected(self, expected: str) -> ExpressionError:
        token = self.token
        shown = "the end" if token.kind == "end" else visible(token.text[:40])
        hint = _FOREIGN.get(token.kind, "")
        return ExpressionError(f"expected {expected}, not {shown}", token.start, hint)

    def _check_height(self, tree: Tree) -> Tree:
        """Bounds how deep trees are, so that nothing that walks one runs out of stack."""
        height = 1 + max((self.heights.get(id(p), 1) for p in parts(tree)), default=0)
        if height > HEIGHT_MOST:
            message = f"more than {HEIGHT_MOST} operations are nested in each other"
            raise ExpressionError(message, tree.at)
        self.heights[id(tree)] = height
        return tree

    # --- operators ---

    def expression(self, binding: int = 0) -> Tree:
        """Operators that bind tighter than `binding`."""
        self.depth += 1
        if self.depth > HEIGHT_MOST:
            message = f"more than {HEIGHT_MOST} operations are nested in each other"
            raise ExpressionError(message, self.token.start)
        left = self._prefixed()
        while True:
            sign = self.token.text if self.token.kind in ("name", self.token.text) else ""
            own = _BINDING.get(sign, 0)
            if own <= binding:
                break
            left = self._infix(left, sign, own)
        self.depth -= 1
        return left

    def _infix(self, left: Tree, sign: str, own: int) -> Tree:
        if sign in COMPARISONS:
            return self._comparison(left)
        at = self.advance().start
        # ** binds to the right, and looser than a sign on its right: 2 ** -1
        right = self.expression(_SIGN - 1 if sign == "**" else own)
        return self._check_height(Binary(sign, left, right, at))

    def _comparison(self, left: Tree) -> Tree:
        at, signs, operands = self.token.start, [], [left]
        while self.token.kind in COMPARISONS:
            signs.append(self.advance().kind)
            operands.append(self.expression(_BINDING["<"]))
        return self._check_height(Compare(tuple(signs), tuple(operands), at))

    def _prefixed(self) -> Tree:
        token = self.token
        if token.kind in ("-", "+"):
            self.advance()
            return self._check_height(Unary(token.kind, self.expression(_SIGN), token.start))
        if token.kind == "name" and token.text == "not":
            self.advance()
            return self._check_height(Unary("not", self.expression(_NOT), token.start))
        return self._postfixed(self._primary())

    # --- what binds tightest ---

    def _primary(self) -> Tree:
        token = self.token
        if token.kind == "(":
            self.advance()
            inner = self.expression()
            self.expect(")", "a ) that closes the parenthesis")
            return inner
        if token.kind == "[":
            self.advance()
            return self._check_height(Items(tuple(self._list("]")), token.start))
        if token.kind in ("int", "float"):
            self.advance()
            return Number(_number(token), token.start)
        if token.kind == "string":
            self.advance()
            return Text(re.sub(r"\\(.)", r"\1", token.text[1:-1]), token.start)
        if token.kind == "quoted":
            self.advance()
            if token.text == "``":
                raise ExpressionError("there is no name between the backquotes", token.start)
            return Name(bare_name(token.text), token.start)
        if token.kind == "name" and token.text not in OPERATORS:
            return self._name()
        raise self.unexpected("a value")

    def _name(self) -> Tree:
        token = self.advance()
        if self.token.kind == "(":
            self.advance()
            return self._call(token)
        if token.text in WORDS:
            return Number(WORDS[token.text], token.start)
        return Name(token.text, token.start)

    def _call(self, name: Token) -> Tree:
        arguments, keywords = [], []
        while self.token.kind != ")":
            follows = self.found[self.next] if self.token.kind == "name" else None
            if follows is not None and follows.kind == "=":
                key = self.advance().text
                self.advance()
                if any(key == k for k, _ in keywords):
                    raise ExpressionError(f"{key}= is given twice", self.token.start)
                keywords.append((key, self.expression()))
            elif keywords:
                raise self.unexpected("NAME=value after another NAME=value")
            else:
                arguments.append(self.expression())
            if self.token.kind != ",":
                break
            self.advance()
        self.expect(")", "a , or a ) after an argument")
        return self._check_height(Call(name.text, tuple(arguments), tuple(keywords), name.start))

    def _list(self, closing: str) -> list[Tree]:
        found = []
        while self.token.kind != closing:
            found.append(self.expression())
            if self.token.kind != ",":
                break
            self.advance()
        self.expect(closing, f"a , or a {closing}")
        return found

    def _postfixed(self, tree: Tree) -> Tree:
        while True:
            token = self.token
            if token.kind == "[":
                self.advance()
                tree = self._check_height(Index(tree, self._indices(), token.start))
            elif token.kind == "@" and self._is_at_step():
                tree = self._check_height(self._at_step(tree))
            elif token.kind == ".":
                self.advance()
                name = self.expect("name", "the name of a field")
                module = _numbered_module(tree)
                if module is not None:
                    tree = Name(f"{module.text}.{name.text}", module.at)
                    continue
                for part in name.text.split("."):
                    tree = self._check_height(Field(tree, part, name.start))
            elif token.kind == "(":
                raise ExpressionError("only functions are called, by their names", token.start)
            else:
                return tree

    def _indices(self) -> tuple[Tree | Slice | Rest, ...]:
        found: list[Tree | Slice | Rest] = []
        while self.token.kind != "]":
            if self.token.kind == "...":
                found.append(Rest(self.advance().start))
            else:
                found.append(self._index())
            if self.token.kind != ",":
                break
            self.advance()
        closing = self.expect("]", "a , a : or a ] after an index")
        if not found:
            raise ExpressionError("there is no index between [ and ]", closing.start)
        if sum(isinstance(f, Rest) for f in found) > 1:
            raise ExpressionError("... stands only once among indices", closing.start)
        return tuple(found)

    def _index(self) -> Tree | Slice:
        at, bounds = self.token.start, [self._bound()]
        while self.token.kind == ":" and len(bounds) < 3:
            self.advance()
            bounds.append(self._bound())
        if len(bounds) == 1:
            if bounds[0] is None:
                raise self.unexpected("an index")
            return bounds[0]
        return Slice(bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else None, at)

    def _bound(self) -> Tree | None:
        return None if self.token.kind in (":", ",", "]", "end") else self.expression()

    # --- other steps, other runs ---

    def _is_at_step(self) -> bool:
        """Whether an @ is followed by steps or a run, and so is no product."""
        first, second = self.found[self.next], self.found[min(self.next + 1, len(self.found) - 1)]
        if first.kind in ("int", "string"):
            return True
        return first.kind in ("-", "+") and second.kind == "int"

    def _at_step(self, tree: Tree) -> AtStep | AtRank:
        at = self.advance().start
        if self.token.kind == "string":
            token = self.advance()
            run, _, step = token.text[1:-1].rpartition(":")
            if not run:
                run, step = step, ""
            if not run or not (step == "" or (step.isdigit() and len(step) < 19)):
                raise ExpressionError(
                    f"{visible(token.text)} names no run",
                    token.start,
                    'write @"RUN" or @"RUN:STEP"',
                )
            return AtStep(tree, 0, run, int(step) if step else None, at)
        sign = self.advance().kind if self.token.kind in ("-", "+") else ""
        token = self.expect("int", "a number of steps")
        number = _number(token)
        assert isinstance(number, int)
        if not sign:
            return AtRank(tree, number, at)
        return AtStep(tree, -number if sign == "-" else number, None, None, at)


def _number(token: Token) -> int | float:
    if token.kind == "float":
        value = float(token.text)
        if value == float("inf"):
            message, hint = "the number does not fit 64 bits", "write inf for infinity"
            raise ExpressionError(message, token.start, hint)
        return value
    value = int(token.text) if len(token.text) < 40 else INT_MAX + 2
    if value > INT_MAX + 1:  # one more: a sign may stand before it
        raise ExpressionError("the integer does not fit 64 bits", token.start)
    return value


def _numbered_module(tree: Tree) -> Name | None:
    """Of ``self.layers[0]``, where an attribute of it follows, the name ``self.layers.0``."""
    match tree:
        case Index(Name(text, at), (Number(int(k), _),)) if text.startswith("self."):
            return Name(f"{text}.{k}", at)
    return None
