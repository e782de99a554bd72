"""How each op is written in ONNX: one rule an op, ``rule(b, t, *operands, **attrs)``.

`b` is the `Body` that nodes are appended to, `t` the type of the result (a tuple of several).
Operands have the types that the op computes on; one that is absent is None. A rule gives the value
of the result, or raises `Unsayable`. A rule that appends several nodes becomes a function.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.transforms.builder import Var
from opstep.runtime.transforms.composite import Composite

RULES: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the rule of these ops."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of several nodes: two-byte floats are computed in f32, and rounded once."""

    @wraps(function)
    def widened(b: Any, t: Any, *operands: Var | None, **attrs: Any) -> Any:
        if not any(o is not None and o.dtype.is_half for o in operands):
            return function(b, t, *operands, **attrs)
        types = (t,) if isinstance(t, TensorType) else t
        in_f32 = tuple(r.with_dtype(f32) if r.dtype.is_half else r for r in types)
        given = [b.cast(o, dtype=f32) if o is not None and o.dtype.is_half else o for o in operands]
        found = function(b, in_f32[0] if isinstance(t, TensorType) else in_f32, *given, **attrs)
        if isinstance(t, TensorType):
            return b.cast(found, dtype=t.dtype)
        return tuple(
            f if f.dtype is r.dtype else b.cast(f, dtype=r.dtype)
            for f, r in zip(found, types, strict=True)
        )

    return widened


def node(op_type: str, **names: str) -> Callable[..., Any]:
    """The rule of an op that is one node; `names` has ONNX's names of attributes by ours."""

    def write(b: Any, t: Any, *operands: Var | None, **attrs: Any) -> Any:
        given = {names[k]: v for k, v in attrs.items() if k in names}
        return b.onnx(op_type, *operands, out=t, **given)

    return write


def rule_of(op: type[Op]) -> Callable[..., Any] | None:
    """Its own; of a composite without one its definition. None of other ops."""
    if op.name in RULES or not issubclass(op, Composite):
        return RULES.get(op.name)

    @wide
    def defined(b: Any, t: Any, *operands: Var | None, **attrs: Any) -> Any:
        return op.define(b, *operands, **attrs)

    return defined


for _family in (
    "pointwise", "special", "comparison", "moving", "slicing", "creation", "picking", "sorting",
    "products", "convolution", "pooling", "resampling", "reductions", "running", "rows", "losses",
    "attention", "random",
):  # fmt: skip
    importlib.import_module(f"{__name__}.{_family}")
