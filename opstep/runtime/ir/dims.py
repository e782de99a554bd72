"""Dims: integers, or exact arithmetic over symbols (``N*2``, ``(H - 1)//2 + 1``).

An `Expr` is a polynomial with integer coefficients over *atoms*. An atom is a symbol or a floor
division or remainder that does not come out even. Two dims are equal when their polynomials are, so
``N + N`` is ``2*N`` and ``(2*N)//2`` is ``N``; what the polynomial cannot see, such as
``N//2*2 == N``, is not equal. Symbols stand for any size, 0 and 1 included.
"""

from __future__ import annotations

from math import gcd
from typing import TypeAlias

Dim: TypeAlias = "int | Expr"


class Expr:
    """A symbolic dim. Arithmetic gives an int again where all symbols cancel."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[tuple, int]):
        # monomial (sorted tuple of atoms; () for the constant) -> coefficient, none of them zero
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    def __eq__(self, other) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other):
        return _combine(self, other, 1)

    def __radd__(self, other):
        return _combine(self, other, 1)

    def __sub__(self, other):
        return _combine(self, other, -1)

    def __rsub__(self, other):
        return _combine(_negated(self), other, 1)

    def __neg__(self):
        return _negated(self)

    def __mul__(self, other):
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return _floordiv(self, other)

    def __rfloordiv__(self, other):
        return _floordiv(other, self)

    def __mod__(self, other):
        return _mod(self, other)

    def __rmod__(self, other):
        return _mod(other, self)

    def __str__(self) -> str:
        text = ""
        terms = sorted(self.terms.items(), key=_print_order)
        if terms[0][1] < 0 < terms[-1][1]:  # 1 - N, not -N + 1
            terms.insert(0, terms.pop())
        for monomial, c in terms:
            factors = [a.text(alone=c == 1 and len(monomial) == 1) for a in monomial]
            if abs(c) != 1 or not factors:
                factors.append(str(abs(c)))
            sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
            text += sign + "*".join(factors)
        return text

    def __repr__(self) -> str:
        return f"Expr({self})"

    def symbols(self) -> set[str]:
        """The names that occur in it."""
        found: set[str] = set()
        for monomial in self.terms:
            for a in monomial:
                found |= a.symbols()
        return found

    def lone_symbol(self) -> str | None:
        """The symbol's name where this is one symbol and nothing else."""
        if len(self.terms) == 1:
            ((monomial, c),) = self.terms.items()
            if c == 1 and len(monomial) == 1 and monomial[0].op == "symbol":
                return monomial[0].args[0]
        return None


class _Atom:
    __slots__ = ("args", "key", "op")

    def __init__(self, op: str, *args):
        self.op = op  # "symbol", "//" or "%"
        self.args = args
        self.key = f"{op} " + " ".join(map(str, args))  # sorts and compares atoms

    def __eq__(self, other):
        return isinstance(other, _Atom) and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    def __lt__(self, other):
        return self.key < other.key

    def symbols(self) -> set[str]:
        if self.op == "symbol":
            return {self.args[0]}
        return set().union(*(a.symbols() for a in self.args if isinstance(a, Expr)))

    def text(self, alone: bool) -> str:
        if self.op == "symbol":
            return self.args[0]
        left, right = (_grouped(a) for a in self.args)
        text = f"{left}{self.op}{right}"
        return text if alone else f"({text})"


def symbol(name: str) -> Expr:
    """The dim that is this symbol."""
    return Expr({(_Atom("symbol", name),): 1})


def evaluate(dim, symbols: dict[str, int]):
    """`dim` with the given symbols replaced (by ints, or by dims); others stay symbolic.

    Raises ZeroDivisionError where a division by zero appears.
    """
    if type(dim) is int:
        return dim
    total = 0
    for monomial, c in dim.terms.items():
        value = c
        for a in monomial:
            value = value * _evaluate_atom(a, symbols)
        total = total + value
    return total


def _evaluate_atom(a: _Atom, symbols):
    if a.op == "symbol":
        return symbols[a.args[0]] if a.args[0] in symbols else Expr({(a,): 1})
    left, right = (evaluate(x, symbols) for x in a.args)
    return left // right if a.op == "//" else left % right


def _print_order(item):
    monomial, c = item
    return (not monomial, c < 0, -len(monomial), [a.key for a in monomial])


def _grouped(dim) -> str:
    """As an operand of // and %: a lone symbol or number bare, anything else in parentheses."""
    if type(dim) is int or dim.lone_symbol():
        return str(dim)
    return f"({dim})"


def _terms(dim) -> dict[tuple, int]:
    if isinstance(dim, Expr):
        return dim.terms
    return {(): dim} if dim else {}


def _dim(terms: dict[tuple, int]):
    terms = {m: c for m, c in terms.items() if c}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Expr(terms)


def _combine(a, b, sign: int):
    terms = dict(_terms(a))
    for m, c in _terms(b).items():
        terms[m] = terms.get(m, 0) + sign * c
    return _dim(terms)


def _negated(a: Expr):
    return Expr({m: -c for m, c in a.terms.items()})


def _product(a, b):
    terms: dict[tuple, int] = {}
    for m, c in _terms(a).items():
        for n, d in _terms(b).items():
            key = tuple(sorted(m + n))
            terms[key] = terms.get(key, 0) + c * d
    return _dim(terms)


def _floordiv(a, b):
    """Takes out of a//b what divides evenly: (4*N + 6)//2 is 2*N + 3, (4*N + 1)//2 is 2*N."""
    if type(b) is not int:
        quotient = _exact_quotient(a, b)
        return Expr({(_Atom("//", a, b),): 1}) if quotient is None else quotient
    if b == 0:
        raise ZeroDivisionError("a dim is divided by zero")
    if b < 0:
        a, b = -a, -b
    whole, rest = {}, {}
    for m, c in _terms(a).items():
        q, r = divmod(c, b) if m == () or c % b == 0 else (0, c)
        if q:
            whole[m] = q
        if r:
            rest[m] = r
    left = _dim(rest)
    if isinstance(left, int):  # a constant below b: the division leaves nothing of it
        return _dim(whole)
    common = gcd(b, *left.terms.values())
    if common > 1 and () not in left.terms:
        left, b = _dim({m: c // common for m, c in left.terms.items()}), b // common
    return _combine(_dim(whole), Expr({(_Atom("//", left, b),): 1}), 1)


def _exact_quotient(a, b: Expr):
    """a//b where b is one monomial that divides every term of a, else None."""
    if len(b.terms) != 1 or a == 0:
        return 0 if a == 0 else None
    ((divisor, k),) = b.terms.items()
    terms = {}
    for m, c in _terms(a).items():
        rest = list(m)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % k:
            return None
        terms[tuple(rest)] = c // k
    return _dim(terms)


def _mod(a, b):
    """a - a//b*b where the division comes out even, else an atom."""
    if b == 0:
        raise ZeroDivisionError("a dim is divided by zero")
    quotient = _floordiv(a, b)
    rest = a - quotient * b
    if type(rest) is int and type(b) is int and 0 <= rest < abs(b):
        return rest
    return Expr({(_Atom("%", a, b),): 1})
