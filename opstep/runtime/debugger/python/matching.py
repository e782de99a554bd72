"""An expression of Python beside the ops that it became: what its names were, and what it gave.

Only what the ops prove is found: an operator or a call stands for an op of its kind, and its
operands for that op's, in order.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from opstep.runtime.debugger.python.files import Lines, PythonFile
from opstep.runtime.ir.graph import Apply, Name

_OPERATORS: dict[type[ast.AST], frozenset[str]] = {
    ast.Add: frozenset({"add"}),
    ast.Sub: frozenset({"sub"}),
    ast.Mult: frozenset({"mul"}),
    ast.Div: frozenset({"div"}),
    ast.MatMult: frozenset({"matmul"}),
    ast.Pow: frozenset({"pow"}),
    ast.USub: frozenset({"neg"}),
    ast.Gt: frozenset({"greater"}),
    ast.GtE: frozenset({"greater_equal"}),
    ast.Lt: frozenset({"less"}),
    ast.LtE: frozenset({"less_equal"}),
    ast.Eq: frozenset({"equal"}),
    ast.NotEq: frozenset({"not_equal"}),
}
# Calls that are ops of their own name, and give one tensor.
_SAME = frozenset({
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh",
    "cumprod", "cumsum", "digamma", "elu", "erf", "erfc", "exp", "exp2", "expm1", "flip", "floor",
    "gather", "gelu", "hard_sigmoid", "leaky_relu", "lgamma", "log", "log10", "log1p", "log2",
    "log_softmax", "logsumexp", "matmul", "maximum", "mean", "minimum", "mish", "neg", "pow",
    "prelu", "prod", "reciprocal", "relu", "roll", "round", "rsqrt", "sigmoid", "sign", "silu",
    "sin", "sinh", "softmax", "softplus", "sqrt", "square", "sum", "tan", "tanh", "tile", "tril",
    "triu", "trunc", "where", "add", "sub", "mul", "div", "max", "min", "linear", "layer_norm",
})  # fmt: skip
_OTHER = {"mm": "matmul", "bmm": "matmul", "cat": "concat", "multiply": "mul", "subtract": "sub"}
_VIEWS = frozenset({"reshape", "transpose", "unsqueeze", "squeeze", "flatten", "select", "slice"})
_RESHAPES = frozenset({
    "view", "reshape", "flatten", "unsqueeze", "squeeze", "transpose", "permute", "t", "swapaxes",
    "movedim",
})  # fmt: skip
_SAME_VALUE = frozenset({"contiguous", "detach", "clone"})
_CASTS = frozenset({"to", "type", "float", "half", "bfloat16", "double", "int", "long", "short"})
_OF_TWO = frozenset({"add", "sub", "mul", "div", "matmul", "pow", "maximum", "minimum"})
PLAIN_METHODS = _SAME | _RESHAPES | _SAME_VALUE | {"mm", "bmm"}
_COMMUTATIVE = frozenset({"add", "mul", "equal", "not_equal"})
_LAID_OUT = frozenset({"reshape", "broadcast", "cast", "transpose"})


class Match(NamedTuple):
    """`names`: the values that an expression's names had; `value`: the one that it gave, None where
    that is not known.
    """

    names: dict[str, str]
    value: str | None


class FunctionText(NamedTuple):
    """`variables`: of the function; `in_place`: it may change tensors in place. PyTorch then takes
    views anew from others, so what a view is of need not be a variable's value.
    """

    file: PythonFile
    variables: Collection[str]
    in_place: bool


NO_MATCH = Match({}, None)


def written(statement: Lines) -> ast.expr | None:
    """The expression of a statement, with an augmented assignment as an operation."""
    match statement.node:
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
            return ast.BinOp(ast.Name(name, ast.Load()), op, value)
        case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.Return(value=value):
            return value
        case ast.Expr(value=value):
            return value
    return None


def matched(
    expression: ast.expr | None, made: Sequence[Apply], own: Collection[int], text: FunctionText
) -> Match:
    """`made`: all that its line computed, in order; `own`: the ids of the ops that no function of
    the program's computed for it.
    """
    if expression is None or any(isinstance(n, ast.NamedExpr) for n in ast.walk(expression)):
        return NO_MATCH
    found = [m for op in _last(made) if (m := _Matcher(expression, made, own, text).of(op))]
    return found[0] if len(found) == 1 else NO_MATCH


def _last(made: Sequence[Apply]) -> list[Apply]:
    """The ops whose results no other of these reads."""
    read = {o.text for s in made for o in s.operands if isinstance(o, Name)}
    return [s for s in made if s.results[0].name.text not in read]


class _Matcher:
    def __init__(
        self, expression: ast.expr, made: Sequence[Apply], own: Collection[int], text: FunctionText
    ):
        self._expression = expression
        self._own = {r.name.text: s for s in made if id(s) in own for r in s.results}
        self._inside = {r.name.text for s in made for r in s.results}
        self._counts = Counter(s.callee.text for s in made if id(s) in own)
        self._uses: Counter[str] = Counter()
        self._text = text
        self._names: dict[str, set[str]] = {}

    def of(self, last: Apply) -> Match | None:
        """None where it is not this op that gives the expression's value."""
        value = last.results[0].name.text
        if not self._is(self._expression, value):
            return None
        if any(self._counts[kind] != n for kind, n in self._uses.items()):
            return None  # several turns of a loop, or calls, one after the other
        names = {name: min(v) for name, v in self._names.items() if len(v) == 1}
        return Match(names, value)

    def _is(self, e: ast.expr, value: str | None) -> bool:
        """Whether the value is an expression's; notes those of its names."""
        if value is None:
            return False
        match e:
            case ast.Name(id=name):
                if value not in self._inside:
                    self._names.setdefault(name, set()).add(value)
                return False
            case ast.BinOp(left=left, op=op, right=right):
                return self._op(value, _OPERATORS.get(type(op)), [left, right])
            case ast.UnaryOp(op=op, operand=operand):
                return self._op(value, _OPERATORS.get(type(op)), [operand])
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._op(value, _OPERATORS.get(type(op)), [left, right])
            case ast.Attribute(value=base, attr="T" | "mT"):
                return self._op(value, frozenset({"transpose"}), [base])
            case ast.Subscript(value=ast.Name() as base):
                return self._view(value, base)
            case ast.Call():
                return self._call(e, value)
        return False

    def _op(
        self, value: str, kinds: frozenset[str] | None, operands: Sequence[ast.expr | None]
    ) -> bool:
        made = self._own.get(value)
        if made is None or not kinds or made.callee.text not in kinds or len(made.results) > 1:
            return False
        if made.callee.text == "matmul" and made.attrs:  # it has taken up a transposition
            operands = ()
        if made.callee.text in _VIEWS and self._text.in_place:
            operands = ()
        if made.callee.text in _COMMUTATIVE and self._may_be_number(made.operands[-1]):
            tensors = [e for e in operands if e is not None and not _is_number(e)]
            operands = tensors if len(tensors) == 1 else ()  # PyTorch puts the number last
        self._uses[made.callee.text] += 1
        for e, operand in zip(operands, made.operands, strict=False):
            if e is not None and isinstance(operand, Name):
                self._is(e, operand.text)
        return True

    def _call(self, call: ast.Call, value: str) -> bool:
        if any(isinstance(a, ast.Starred) for a in call.args):
            return False
        match call.func:
            case ast.Name(id=name) if name in self._text.file.library:
                return self._function(name, call.args, call, value)
            case ast.Attribute(attr=name, value=base) if self._text.file.is_library(base):
                return self._function(name, call.args, call, value)
            case ast.Attribute(attr=name, value=base) if _root(base) != "self":
                is_tensor = self._may_be_tensor(base, name, call.args)
                args = [base, *call.args] if is_tensor else [ast.Constant(None)]
                return self._function(name, args, call, value)
            case ast.Attribute(attr=name):
                return self._module(name, call, value)
        return False

    def _function(self, name: str, args: Sequence[ast.expr], call: ast.Call, value: str) -> bool:
        """A function or a method of a library's; `args`: with the tensor whose method it is."""
        if not args or any(k.arg == "out" for k in call.keywords):
            return False
        if name in _SAME_VALUE:
            return self._is(args[0], value) or value in self._own
        if name in _RESHAPES:
            return self._op(value, _VIEWS, args[:1])
        if name in _CASTS:
            return self._op(value, frozenset({"cast"}), args[:1])
        if name in ("max", "min") and (len(args) > 1 or any(k.arg == "dim" for k in call.keywords)):
            return False  # it gives a pair
        kind = _OTHER.get(name, name)
        if kind not in _SAME and kind != "concat":
            return False
        operands = args[:2] if kind in _OF_TWO else () if kind in ("concat", "where") else args[:1]
        return self._op(value, frozenset({kind}), operands)

    def _may_be_number(self, operand: object) -> bool:
        made = self._own.get(operand.text) if isinstance(operand, Name) else None
        return not isinstance(operand, Name) or (made and made.callee.text) in ("extent", "cast")

    def _may_be_tensor(self, base: ast.expr, name: str, args: Sequence[ast.expr]) -> bool:
        """Whether a call is a tensor's method, rather than a function in a module of that name."""
        if isinstance(base, ast.Name) and base.id not in self._text.variables:
            return False
        if name in _OF_TWO:
            return len(args) < 2
        names = [n for a in args for n in ast.walk(a) if isinstance(n, ast.Name)]
        return name in _RESHAPES or not names

    def _view(self, value: str, base: ast.Name) -> bool:
        """A part of a tensor, which may be several ops, one of the other."""
        inner, is_one = value, False
        while (made := self._own.get(inner)) and made.callee.text in _VIEWS:
            self._uses[made.callee.text] += 1
            operand, is_one = made.operands[0], True
            inner = operand.text if isinstance(operand, Name) else ""
        if is_one and not self._text.in_place:
            self._is(base, inner)
        return is_one

    def _module(self, name: str, call: ast.Call, value: str) -> bool:
        """One of PyTorch's own modules, which computes one op, but for what goes with that."""
        last = self._own.get(value)
        if last is None or not last.at:
            return False
        if re.search(rf"(^|\.){name}(\.\d+)+$", last.at.module):
            return self._sequence(name)
        if not f".{last.at.module}".endswith(f".{name}"):
            return False
        made = self._made_by(last.at.module)
        norms, main = _main_ops(made)
        if not main:
            return False
        if norms and last is not main[0]:
            return False  # its statistics
        inner = main[0].operands[0] if main[0].operands else None
        while isinstance(inner, Name) and (before := self._own.get(inner.text)) in made:
            inner = before.operands[0] if before and before.operands else None
        if call.args and isinstance(inner, Name) and main[0].callee.text != "embedding":
            self._is(call.args[0], inner.text)
        return True

    def _sequence(self, name: str) -> bool:
        """Modules in a row, each called once: what the last one gives is their result."""
        modules = {s.at.module for s in self._own.values() if s.at}
        inside = [m for m in modules if re.search(rf"(^|\.){name}\.", m)]
        return all(_main_ops(self._made_by(m))[1] for m in inside)

    def _made_by(self, module: str) -> list[Apply]:
        made = {id(s): s for s in self._own.values()}.values()
        return [s for s in made if s.at and s.at.module == module]


def _main_ops(made: Sequence[Apply]) -> tuple[list[Apply], list[Apply]]:
    """Norms among the ops of a module that was called once, and those that it is for; none of these
    where it was called several times, or computes more than one op.
    """
    norms = [s for s in made if "norm" in s.callee.text]
    main = norms or [s for s in made if s.callee.text not in _LAID_OUT]
    is_dropout = [s.callee.text for s in made] == ["cast", "mul", "mul"]
    is_one = len(main) == 1 + is_dropout and (len(main[0].results) == 1 or norms)
    return norms, main if is_one else []


def _is_number(e: ast.expr) -> bool:
    return all(isinstance(n, ast.Constant | ast.UnaryOp | ast.unaryop) for n in ast.walk(e))


def _root(e: ast.expr) -> str:
    while isinstance(e, ast.Attribute | ast.Subscript):
        e = e.value
    return e.id if isinstance(e, ast.Name) else ""
