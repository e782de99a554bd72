"""Ops that are graphs of other ops.

    class softmax(Composite):
        '''exp(x) divided by its sum along `axis`.'''
        signature = "softmax(x: F, *, axis: int = -1)"

        def define(g, x, *, axis):
            away = g.sub(x, g.max(x, axes=[axis], keepdims=True))
            e = g.exp(away)
            return g.mul(e, g.reciprocal(g.sum(e, axes=[axis], keepdims=True)))

A composite is one op to whoever reads, records or times a program: one statement, one kernel where
a schedule takes its graph. Debuggers and hunts enter it as they enter a call.

Inside, values of f16 and bf16 are f32: operands are cast first, and results last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from traceback import walk_tb
from types import FunctionType
from typing import Any, ClassVar

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Apply, Binding, Graph, Module, Name, Return
from opstep.runtime.ir.op import OPS, Mismatch, Op, resolve
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import DType, TensorType, dtype_of, f32, f64
from opstep.runtime.ir.verified import Verified
from opstep.runtime.transforms.backward import pull_back
from opstep.runtime.transforms.builder import Builder, Var


class Composite(Op):
    """Base of ops with a ``define(g, *operands, **attrs)``: it writes their graph with a `Builder`,
    and gives the result, or a tuple of them. Operands that are absent are None.

    What a declaration does not say is said by its graph: shapes, meaning, gradient, cost. Without a
    kernel it is a call of its graph in every plan. `exact_on`: the kinds of devices whose kernels
    have the bits of the graph run op by op. There a debugger may enter it.
    """

    define: ClassVar[Any]
    exact_on: ClassVar[tuple[str, ...]] = ()
    cpu: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs):
        define = cls.__dict__.get("define")
        if isinstance(define, FunctionType):
            cls.define = staticmethod(define)
        super().__init_subclass__(**kwargs)

    @classmethod
    def has_kernel(cls, gpu: bool, types: tuple[TensorType | None, ...], attrs: dict) -> bool:
        """Whether it is one step of a plan, for operands of these concrete types."""
        return bool(cls.cuda or cls.vendor) if gpu else bool(cls.cpu)

    @classmethod
    def infer(cls, *types, **attrs):
        half = next((t.dtype for t in types if t is not None and t.dtype.is_half), None)
        made = [v.type for v in _written(cls, types, attrs)[1]]
        found: Any = tuple(t.with_dtype(half) if half and t.dtype is f32 else t for t in made)
        return found if len(found) > 1 else found[0]

    @classmethod
    def oracle(cls, *arrays, **attrs):
        types = [None if a is None else _type_of(a) for a in arrays]
        graph = definition(cls, types, attrs).graphs[cls.name]
        values: dict[str, Any] = dict(zip([o.name for o in cls.operands], arrays, strict=False))
        for statement, application in zip(graph.graph.body, graph.applications, strict=True):
            if isinstance(statement, Return):
                found: Any = tuple(values[v.text] for v in statement.values)
                return found if len(found) > 1 else found[0]
            assert isinstance(statement, Apply) and application is not None and application.op
            operands = [
                values[o.text] if isinstance(o, Name) else o.value for o in statement.operands
            ]
            made = application.op.oracle(*operands, **application.attrs)
            several = made if isinstance(made, tuple) else (made,)
            values |= zip([b.name.text for b in statement.results], several, strict=True)
        raise AssertionError(f"the graph of {cls.name} returns nothing")

    @classmethod
    def flops(cls, *types, **attrs):
        builder = _written(cls, types, attrs)[0]
        return sum(op.flops(*seen, **given) for op, seen, given in builder.applied)

    @classmethod
    def grad(cls, g, operands, results, grads, **attrs):
        """Derived, from the operands."""

        def formula(*seen):
            wide = [v and g.to_dtype(v, f32) if _is_half(v) else v for v in seen]
            made = cls.define(g, *wide, **attrs)
            several = made if isinstance(made, tuple) and not isinstance(made, Var) else (made,)
            return tuple(g.to_dtype(v, r.dtype) for v, r in zip(several, results, strict=True))

        return pull_back(g, formula, operands, grads)


def _type_of(array: Any) -> TensorType:
    """An operand of an oracle's, which may have more digits than any dtype: long doubles."""
    longer = array.dtype.kind == "f" and array.dtype.itemsize > 8
    return TensorType(f64 if longer else dtype_of(array.dtype), array.shape)


def _is_half(x: Any) -> bool:
    return isinstance(x, Var) and x.dtype.is_half


def definition(
    op: type[Composite], types: Sequence[TensorType | None], attrs: Mapping[str, Any]
) -> Verified:
    """A composite's graph for operands of these concrete types, as they are stored (None: absent),
    with a source of its own. Its inputs are the operands that are there, under their names.
    """
    return _definition(op, tuple(t for t in types if t is not None), tuple(attrs.items()))


@lru_cache(1024)
def _definition(op: type[Composite], types: tuple[TensorType, ...], attrs: tuple) -> Verified:
    from opstep.runtime.ir.parser import parse
    from opstep.runtime.ir.verify import verify

    text = print_module(Module((_graph(op, types, dict(attrs)),)))
    others = {name: other for name, other in OPS.items() if other is not op}
    return verify(parse(text, f"<{op.name}>"), others)


def _graph(op: type[Composite], types: tuple[TensorType, ...], attrs: dict) -> Graph:
    resolved = resolve(op, types, attrs)
    builder, made = _written(op, types, attrs, resolved.operands)
    returned = [builder.to_dtype(v, t.dtype) for v, t in zip(made, resolved.results, strict=True)]
    body = (*builder.statements, Return(tuple(Name(v.name) for v in returned)))
    names = [spec.name for spec in op.operands]
    inputs = tuple(Binding(Name(n), t) for n, t in zip(names, types, strict=False))
    return Graph(Name(op.name), inputs, resolved.results, body)


def _written(
    op: type[Composite], types: Sequence[TensorType | None], attrs: Mapping[str, Any],
    promoted: Sequence[TensorType | None] = (),
) -> tuple[_Definition, list[Var]]:  # fmt: skip
    """A composite's statements and results, of operands of these types; `promoted`, where they are
    not so already. Halves are computed in f32.
    """
    names = [spec.name for spec in op.operands]
    builder = _Definition(op.name, set(names))
    seen = [
        None if t is None else builder.computed(Var(n, t), (p or t).dtype)
        for n, t, p in zip_longest(names, types, promoted)
    ]
    try:
        made: Any = op.define(builder, *seen, **attrs)
    except (Mismatch, OpstepError):
        raise
    except Exception as error:
        raise Mismatch(_failure(op, error)) from error
    made = [made] if not isinstance(made, tuple | list) or type(made) is Var else list(made)
    if any(type(v) is not Var for v in made):
        raise Mismatch(f"the definition of {op.name} gives what is no value: {made}")
    return builder, made


def _failure(op: type[Composite], error: Exception) -> str:
    """Of a mistake in the Python of a definition, with its line."""
    found = walk_tb(error.__traceback__)
    lines = [line for frame, line in found if frame.f_code is op.define.__code__]
    path = op.define.__code__.co_filename.rpartition("/")[2]
    at = f" at {path}:{lines[-1]}" if lines else ""
    return f"the definition of {op.name} fails{at}: {type(error).__name__}: {error}"


class _Definition(Builder):
    """Of the composite `of`. Values are called after the ops that compute them. `applied`: these,
    with the types that they see and all attributes.
    """

    def __init__(self, of: str, used_names: set[str]):
        super().__init__("", used_names)
        self.of = of
        self.applied: list[tuple[type[Op], tuple, dict[str, Any]]] = []

    def fresh(self, stem: str) -> str:
        return super().fresh(stem.lstrip("_"))

    def computed(self, x: Var, dtype: DType) -> Var:
        return self.to_dtype(x, f32 if dtype.is_half else dtype)

    def _resolved(self, op, operands, attrs):
        try:
            completed, resolved = super()._resolved(op, operands, attrs)
        except Mismatch as m:  # its operands and attributes are not those of the composite
            within = "" if m.message.startswith("within ") else f"within {self.of}, {op.name}: "
            raise Mismatch(within + m.message, hint=m.hint) from m
        self.applied.append((op, resolved.operands, completed))
        return completed, resolved
