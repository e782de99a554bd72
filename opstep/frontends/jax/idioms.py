"""What JAX writes as several primitives and a person as one op, where that is the same maths.

An idiom is replaced only where nothing else reads what lies between: the derivative of a function
keeps what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isclose, pi
from typing import Any

from opstep.runtime.ir.graph import Apply, Attr, Literal, Name, names_read
from opstep.runtime.transforms.builder import Var

REDUCTIONS = {"sum", "max", "min", "prod", "mean", "any", "all"}


class Statements:
    """Those of a graph; `kept` are its results, `types` the types of its values."""

    def __init__(self, listed: Sequence[Apply], kept: Iterable[str], types: Mapping[str, Var]):
        self.listed, self.types = list(listed), types
        self.made = {r.name.text: s for s in listed for r in s.results}
        self.uses = Counter(n for s in listed for n in names_read(s))
        self.uses.update(kept)

    def maker(self, operand: Any, *ops: str, uses: int = 1) -> Apply | None:
        """What makes an operand, where it is one of these ops and so many read its result."""
        if not isinstance(operand, Name) or self.uses[operand.text] != uses:
            return None
        found = self.made.get(operand.text)
        return found if found is not None and found.callee.text in ops else None

    def replaced(self, idiom: Callable[[Statements, Apply], Apply | None]) -> None:
        for k, statement in enumerate(self.listed):
            new = idiom(self, statement)
            if new is not None:
                self.listed[k] = new
                self.uses.update(names_read(new))
                self._unread(statement)
                self.made.update((r.name.text, new) for r in new.results)

    def _unread(self, statement: Apply) -> None:
        """Counts what a statement reads no more, nor those that made that for nobody else."""
        for name in names_read(statement):
            self.uses[name] -= 1
            maker = self.made.get(name)
            if maker is not None and not any(self.uses[r.name.text] for r in maker.results):
                self._unread(maker)


def _attrs(statement: Apply) -> dict[str, Any]:
    return {a.name.text: a.value for a in statement.attrs}


def _made(statement: Apply, op: str, operands: Sequence[Any], **attrs: Any) -> Apply:
    listed = tuple(Attr(Name(k), v) for k, v in attrs.items())
    return replace(statement, callee=Name(op), operands=tuple(operands), attrs=listed)


def keepdims(all: Statements, s: Apply) -> Apply | None:
    """``reshape(sum(x, axes=[1]), shape=[3, 1])``"""
    reduction = all.maker(s.operands[0], *REDUCTIONS) if s.callee.text == "reshape" else None
    if reduction is None or not isinstance(reduction.operands[0], Name):
        return None
    attrs, x = _attrs(reduction), all.types.get(reduction.operands[0].text)
    if x is None or attrs.get("keepdims") or "axes" not in attrs:
        return None
    shape = tuple(1 if k in attrs["axes"] else d for k, d in enumerate(x.shape))
    if shape != tuple(_attrs(s)["shape"]):
        return None
    op = reduction.callee.text
    return _made(s, op, reduction.operands, axes=attrs["axes"], keepdims=True)


def mean(all: Statements, s: Apply) -> Apply | None:
    """``div(sum(x, axes=[0]), 3.0)``"""
    total = all.maker(s.operands[0], "sum") if s.callee.text == "div" else None
    if total is None or not isinstance(s.operands[1], Literal):
        return None
    attrs, name = _attrs(total), total.operands[0]
    x = all.types.get(name.text) if isinstance(name, Name) else None
    if x is None or not x.dtype.is_float or "axes" not in attrs:
        return None
    count: Any = 1
    for axis in attrs["axes"]:
        count = count * x.shape[axis]
    return _made(s, "mean", total.operands, **attrs) if s.operands[1].value == count else None


def softmax(all: Statements, s: Apply) -> Apply | None:
    """``exp(x - max(x)) / sum(exp(x - max(x)))``, and its logarithm."""
    if s.callee.text == "div":
        exponents = all.maker(s.operands[0], "exp", uses=2)
        total = all.maker(s.operands[1], "sum")
        shifted = all.maker(exponents.operands[0], "sub") if exponents else None
        op = "softmax"
    elif s.callee.text == "sub":
        shifted = all.maker(s.operands[0], "sub", uses=2)
        log = all.maker(s.operands[1], "log")
        total = all.maker(log.operands[0], "sum") if log else None
        exponents = all.maker(total.operands[0], "exp") if total else None
        if exponents is None or exponents.operands[0] != s.operands[0]:
            return None
        op = "log_softmax"
    else:
        return None
    if exponents is None or total is None or shifted is None:
        return None
    if total.operands[0] != Name(exponents.results[0].name.text):
        return None
    x, largest = shifted.operands
    constant = all.maker(largest, "stop_gradient")
    top = all.maker(constant.operands[0] if constant else largest, "max")
    if top is None or top.operands[0] != x or _attrs(top) != _attrs(total):
        return None
    axes = _attrs(top).get("axes", ())
    if len(axes) != 1 or not (axes[0] == 0 or _attrs(top).get("keepdims")):
        return None
    rank = all.types[x.text].type.rank if isinstance(x, Name) and x.text in all.types else 0
    is_last = axes[0] == rank - 1
    return _made(s, op, [x], **({} if is_last else {"axis": axes[0]}))


def silu(all: Statements, s: Apply) -> Apply | None:
    """``x * sigmoid(x)``"""
    if s.callee.text != "mul":
        return None
    gate = all.maker(s.operands[1], "sigmoid")
    return _made(s, "silu", gate.operands) if gate and gate.operands[0] == s.operands[0] else None


def gelu(all: Statements, s: Apply) -> Apply | None:
    """``x * (0.5 * (1 + tanh(0.7978846 * (x + 0.044715 * x ** 3))))``, of floats that hold this."""
    for x, rest in (s.operands, s.operands[::-1]) if s.callee.text == "mul" else ():
        half = _scaled(all, all.maker(rest, "mul"), 0.5)
        tanh = all.maker(_scaled(all, all.maker(half, "add"), 1.0), "tanh")
        inner = _scaled(all, tanh and all.maker(tanh.operands[0], "mul"), (2 / pi) ** 0.5)
        total = all.maker(inner, "add")
        for a, b in (total.operands, total.operands[::-1]) if total else ():
            power = all.maker(_scaled(all, all.maker(b, "mul"), 0.044715), "pow")
            found = power and power.operands == (x, Literal(3)) and a == x
            if found and isinstance(x, Name) and all.types[x.text].dtype.bits >= 32:
                return _made(s, "gelu", [x], approximate="tanh")
    return None


def _scaled(all: Statements, found: Apply | None, number: float) -> Any:
    """The other operand of a product or a sum with a number; None where it is none."""
    for a, b in (found.operands, found.operands[::-1]) if found else ():
        if isinstance(a, Literal) and isclose(float(a.value), number, rel_tol=1e-6):
            return b
    return None


IDIOMS = (keepdims, mean, softmax, silu, gelu)


def simplified(
    statements: Sequence[Apply], kept: Iterable[str], types: Mapping[str, Var]
) -> list[Apply]:
    """The statements with idioms as single ops; what nothing reads any more is still there."""
    found = Statements(statements, kept, types)
    for idiom in IDIOMS:
        found.replaced(idiom)
    return found.listed
