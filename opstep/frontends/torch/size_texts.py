"""Texts of sizes in files, as sympy writes them: read here before sympy evaluates them.

sympy computes with numbers of any length as it reads a text, so one of twenty letters can take for
ever. What is let through is of numbers, symbols and functions of sizes alone, and comes to numbers
of a bounded length.
"""

from __future__ import annotations

import ast
import re

_LONGEST = 1 << 16  # characters
_CALLS = 256  # of functions, in one text
_BITS = 4096  # of a number that it may come to
_POWER = 64  # the largest exponent, and shift
_FLOAT = re.compile(r"-?\d{0,40}\.?\d{0,40}(e[+-]?\d{1,3})?")
_NAME = re.compile(r"[a-z]{1,3}\d+|true|false")
_POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift", "BitwiseFn_bitwise_lshift")
_FUNCTION = re.compile(
    r"Integer|Rational|Float|Add|Mul|Max|Min|Abs|(Python)?Mod|(Floor|Clean|Ceil)Div|ModularIndexing"
    r"|Where|floor|ceiling|(Floor|Ceil|Trunc|Round)ToInt|TruncToFloat|RoundDecimal|ToFloat|Identity"
    r"|(Int|Float)TrueDiv|RShift|BitwiseFn_bitwise_(and|x?or)|IsNonOverlappingAndDenseIndicator"
    r"|Piecewise|ExprCondPair|And|Or|Not|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality"
    r"|(Strict)?(Less|Greater)Than|OpaqueUnaryFn_[a-z0-9]+"
)
_PAIRED = ("Max", "Min", "And", "Or", "Piecewise")  # that compare each with each
_PAIRS = 32
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr,
)  # fmt: skip


class _NoSize(Exception):
    pass


def is_size(text: str) -> bool:
    """Whether a text of sympy's is made of numbers, symbols and functions of sizes, and evaluating
    it takes little.
    """
    try:
        if len(text) > _LONGEST:
            return False
        tree = ast.parse(text.strip(), mode="eval")
        calls = sum(isinstance(node, (ast.Call, ast.BinOp, ast.Compare)) for node in ast.walk(tree))
        return calls <= _CALLS and _bits(tree.body) <= _BITS
    except (_NoSize, SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _bits(node: ast.expr) -> int:
    """The most digits of a number on the way to the value. Raises `_NoSize`."""
    match node:
        case ast.Constant(value=bool()):
            return 1
        case ast.Constant(value=int() | float() as value):
            return int(abs(value)).bit_length() + 1
        case ast.Name(id=name) if _NAME.fullmatch(name):
            return 1
        case ast.UnaryOp(operand=operand):
            return _bits(operand)
        case ast.BinOp(left=left, op=ast.Pow() | ast.LShift(), right=right):
            return _power(left, right)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            return _sum(left, right)
        case ast.Compare(left=left, comparators=others):
            return _sum(left, *others)
        case ast.Tuple(elts=elements):
            return _sum(*elements)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if not all(isinstance(k.value, ast.Constant) for k in keywords):
                raise _NoSize
            return _call(name, arguments)
    raise _NoSize


def _sum(*nodes: ast.expr) -> int:
    return sum(map(_bits, nodes)) + 1


def _call(name: str, arguments: list[ast.expr]) -> int:
    match arguments:
        case [ast.Constant(value=str() as text)]:
            if name == "Symbol" and text.isidentifier():
                return 1
            if name == "Float" and _FLOAT.fullmatch(text):
                return 1024
            raise _NoSize
        case [base, exponent] if name in _POWERS:
            return _power(base, exponent)
    if _FUNCTION.fullmatch(name) and not (name in _PAIRED and len(arguments) > _PAIRS):
        return _sum(*arguments)
    raise _NoSize


def _power(base: ast.expr, exponent: ast.expr) -> int:
    """Of a number that is known, and not large, alone."""
    if _number(exponent) > _POWER:
        raise _NoSize
    return (_bits(base) + 1) * max(1, int(_number(exponent)) + 1)


def _number(node: ast.expr) -> float:
    """The size of a number; of a ratio that of what is above."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return abs(value)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _number(operand)
        case ast.Call(func=ast.Name(id="Integer" | "Rational" | "Float"), args=[first, *_]):
            match first:
                case ast.Constant(value=str() as text) if _FLOAT.fullmatch(text) and text:
                    return abs(float(text))
                case _:
                    return _number(first)
    raise _NoSize
