"""Nodes of ONNX from Python: what the rules of an export write with.

``b.onnx("Relu", x, out=t)`` appends one node; ``b.mul(x, 2.0)`` is an op of ours, written by its
own rule. Values have our types, so a rule is never told what it can ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from opstep.frontends.onnx.types import DTYPES, NUMBERS
from opstep.runtime.ir.dims import Dim, Expr
from opstep.runtime.ir.op import OPS, Op, Resolved, complete, resolve
from opstep.runtime.ir.types import DType, TensorType, f32, f64, i32, i64
from opstep.runtime.transforms.builder import Builder, Var

# The oldest whose nodes carry metadata (with IR 10), and whose GroupNormalization scales channels.
OPSET = 21
IR = 10
GRAPH_DOMAIN = "opstep"  # the domain of functions that are graphs
OP_DOMAIN = "opstep.ops"  # that of ops which ONNX needs several nodes for
_FEW = 512  # bytes of a small constant
_WIDER = (f32, f64, i32, i64)  # what is computed in where ONNX's op lacks a type, the first that is


class Unsayable(Exception):
    """ONNX has no words for a statement. `hint`: what to do about it."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.message = message
        self.hint = hint


class NeedsNumber(Unsayable):
    """It could be said if these dims were numbers."""

    def __init__(self, dims: Sequence[Dim]):
        self.symbols = sorted({s for d in dims if isinstance(d, Expr) for s in d.symbols()})
        listed = " and ".join(self.symbols)
        super().__init__(f"what is written depends on the size {listed}, which is a symbol here")


@dataclass(slots=True)
class Node:
    """A `NodeProto` to be. `helper`: it computes sizes, or is a constant."""

    op_type: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    domain: str = ""
    helper: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    def proto(self) -> onnx.NodeProto:
        node = helper.make_node(
            self.op_type, self.inputs, self.outputs, self.outputs[0], domain=self.domain,
            **self.attrs,
        )  # fmt: skip
        for key, value in self.metadata.items():
            node.metadata_props.add(key=key, value=value)
        return node


@cache
def _schema(op_type: str) -> tuple[list[str], list[str], dict[str, frozenset[str]]]:
    """The types of inputs and outputs, of which the last may come again, and what each may be."""
    schema = defs.get_schema(op_type, OPSET)
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    inputs, outputs = ([p.type_str for p in ps] for ps in (schema.inputs, schema.outputs))
    return inputs, outputs, allowed


@cache
def _called(dtype: DType) -> str:
    names = {"f16": "float16", "bf16": "bfloat16", "f32": "float", "f64": "double"}
    plain = names.get(dtype.name) or dtype.name.replace("u8", "uint8")
    if dtype.kind == "i":
        plain = f"int{dtype.bits}"
    return f"tensor({plain})"


def _replacement(dtype: DType, allowed: frozenset[str], op_type: str) -> DType:
    """What a type is computed in where ONNX's op does not take it."""
    for wider in _WIDER:
        larger = wider.is_float == dtype.is_float and wider.bits >= dtype.bits
        if larger and _called(wider) in allowed:
            return wider
    raise Unsayable(f"{op_type} of ONNX takes no {dtype}", "cast what it takes, and what it gives")


class Body:
    """The nodes of a graph or a function as they are written.

    `size` gives the value (i64[1]) of a symbol; `used` holds the names that are taken.
    """

    def __init__(self, used: set[str], size: Callable[[str], Var]):
        self.nodes: list[Node] = []
        self.used = used
        self.stem = "t"
        self.metadata: Mapping[str, str] = {}
        self._size = size
        self._sizes: dict[Any, Var] = {}
        self._constants: dict[tuple, Var] = {}
        self._helping = False
        self._next: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """A name not used so far, which begins with `stem`."""
        name = stem
        while name in self.used:
            self._next[stem] = self._next.get(stem, 0) + 1
            name = f"{stem}/{self._next[stem]}"
        self.used.add(name)
        return name

    # --- nodes ---

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "",
        **attrs: Any,
    ) -> None:  # fmt: skip
        """Appends one as it is."""
        self.nodes.append(
            Node(
                op_type, list(inputs), list(outputs), attrs, domain,
                self._helping or op_type == "Constant", self.metadata,
            )
        )  # fmt: skip

    def onnx(self, op_type: str, *inputs: Var | None, out: Any, **attrs: Any) -> Any:
        """Appends a node with results of the types `out`. Types that ONNX's op lacks are computed
        in wider ones.
        """
        kinds, gives, allowed = _schema(op_type)
        types = (out,) if isinstance(out, TensorType) else tuple(out)
        kinds = [*kinds, *kinds[-1:] * (len(inputs) - len(kinds))]
        gives = [*gives, *gives[-1:] * (len(types) - len(gives))]
        replaced: dict[str, DType] = {}
        for x, kind in zip(inputs, kinds, strict=False):
            if x is not None and kind in allowed and _called(x.dtype) not in allowed[kind]:
                replaced[kind] = _replacement(x.dtype, allowed[kind], op_type)
        given = [
            x if x is None or k not in replaced else self.to(x, replaced[k])
            for x, k in zip(inputs, kinds, strict=False)
        ]
        while given and given[-1] is None:
            given.pop()
        results = []
        for t, kind in zip(types, gives, strict=False):
            made = t.with_dtype(replaced[kind]) if kind in replaced else t
            if kind in allowed and _called(made.dtype) not in allowed[kind]:
                made = t.with_dtype(_replacement(t.dtype, allowed[kind], op_type))
            results.append(Var(self.fresh(f"{self.stem}/{op_type}"), made))
        kept = {k: v for k, v in attrs.items() if v is not None}
        self.node(op_type, [x.name if x else "" for x in given], [r.name for r in results], **kept)
        cast = tuple(self.to(r, t.dtype) for r, t in zip(results, types, strict=True))
        return cast[0] if isinstance(out, TensorType) else cast

    def to(self, x: Var, dtype: DType) -> Var:
        if x.dtype is dtype:
            return x
        result = Var(self.fresh(f"{self.stem}/Cast"), x.type.with_dtype(dtype))
        self.node("Cast", [x.name], [result.name], to=NUMBERS[dtype])
        return result

    to_dtype = to
    sum_to = Builder.sum_to

    def value(self, array: Any, dtype: DType = i64) -> Var:
        """A constant."""
        array = np.asarray(array, dtype.numpy)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            t = TensorType(dtype, array.shape)
            found = self._constants[key] = Var(self.fresh(f"{self.stem}/Constant"), t)
            tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
            self.node("Constant", [], [found.name], value=tensor)
        return self._constants[key]

    @staticmethod
    def tensor(array: np.ndarray) -> onnx.TensorProto:
        """An array as an attribute."""
        return numpy_helper.from_array(array)

    def begin(self, metadata: Mapping[str, str]) -> None:
        """What follows is a statement's. Each has small constants of its own: who draws a model
        draws them inside of the only node that takes them.
        """
        self.metadata = metadata
        self._constants = {k: v for k, v in self._constants.items() if len(k[-1]) > _FEW}

    def apart(self, write: Callable[[], list[Var]]) -> tuple[list[Node], list[Var]]:
        """What `write` appends, for a graph inside of this one, and what it gives."""
        outer = self.nodes, self._constants, self._sizes
        self.nodes, self._constants, self._sizes = [], {**outer[1]}, {**outer[2]}
        try:
            results = write()
            return self.nodes, results
        finally:
            self.nodes, self._constants, self._sizes = outer

    # --- sizes ---

    def vector(self, dims: Sequence[Dim]) -> Var:
        """Dims as a tensor: i64[len(dims)]."""
        if all(type(d) is int for d in dims):
            return self.value(dims)
        key = tuple(dims)
        if key not in self._sizes:
            with _helping(self):
                self._sizes[key] = self._joined(dims)
        return self._sizes[key]

    def _joined(self, dims: Sequence[Dim]) -> Var:
        pieces: list[Var] = []
        numbers: list[int] = []
        for d in dims:
            if type(d) is int:
                numbers.append(d)
                continue
            if numbers:
                pieces.append(self.value(numbers))
                numbers = []
            pieces.append(self._measured(d))
        if numbers:
            pieces.append(self.value(numbers))
        if len(pieces) == 1:
            return pieces[0]
        return self.onnx("Concat", *pieces, out=TensorType(i64, (len(dims),)), axis=0)

    def _measured(self, dim: Dim) -> Var:
        """One dim: i64[1]."""
        if type(dim) is int:
            return self.value([dim])
        if dim in self._sizes:
            return self._sizes[dim]
        assert isinstance(dim, Expr)
        symbol = dim.lone_symbol()
        found = self._size(symbol) if symbol else self._polynomial(dim)
        self._sizes[dim] = found
        return found

    def _polynomial(self, dim: Expr) -> Var:
        total: Var | None = None
        for monomial, coefficient in dim.terms.items():
            term = None if coefficient == 1 and monomial else self.value([coefficient])
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self._whole("Mul", term, factor)
            assert term is not None
            total = term if total is None else self._whole("Add", total, term)
        assert total is not None
        return total

    def _atom(self, atom: Any) -> Var:
        if atom.op == "symbol":
            return self._size(atom.args[0])
        a, b = (self._measured(d) for d in atom.args)
        rest = self._whole("Mod", a, b)
        if atom.op == "%":
            return rest
        return self._whole("Div", self._whole("Sub", a, rest), b)

    def _whole(self, op_type: str, a: Var, b: Var) -> Var:
        return self.onnx(op_type, a, b, out=TensorType(i64, (1,)))

    def elements(self) -> dict[str, Any]:
        """Of constants, and of what is made of sizes: dims."""
        found: dict[str, Any] = {}
        for (dtype, shape, content), var in self._constants.items():
            found[var.name] = np.frombuffer(content, dtype.numpy).reshape(shape)
        for key, var in self._sizes.items():
            found[var.name] = key if isinstance(key, tuple) else (key,)
        return found

    # --- ops of ours ---

    def __getattr__(self, op: str) -> Any:
        if op not in OPS:
            raise AttributeError(f"no op is called {op}")
        return lambda *operands, **attrs: self.apply(OPS[op], operands, attrs)

    def apply(self, op: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """What an op of ours gives, written by its rule."""
        given = list(operands)
        while given and given[-1] is None:
            given.pop()
        attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        completed = complete(op, attrs)
        resolved = resolve(op, [o.type if isinstance(o, Var) else o for o in given], completed)
        results = self.lower(op, given, resolved, completed)
        return results[0] if len(results) == 1 else tuple(results)

    def lower(
        self, op: type[Op], operands: Sequence[Any], resolved: Resolved, attrs: Mapping[str, Any]
    ) -> tuple[Var, ...]:
        """The rule of an op, on operands of the types that it computes on."""
        from opstep.frontends.onnx.export_rules import rule_of

        rule = rule_of(op)
        if rule is None:
            raise Unsayable("it has no counterpart in ONNX")
        given: list[Var | None] = []
        for k, t in enumerate(resolved.operands):
            o = operands[k] if k < len(operands) else None
            if t is None or o is None:
                given.append(None)
            elif isinstance(o, Var):
                given.append(self.to(o, t.dtype))
            else:
                given.append(self.value(o, t.dtype))
        types = resolved.results
        found = rule(self, types[0] if len(types) == 1 else types, *given, **attrs)
        return (found,) if isinstance(found, Var) else tuple(found)

    # --- what rules need again and again ---

    def ints(self, dims: Sequence[Dim]) -> list[int]:
        """Dims that have to be numbers."""
        if not all(type(d) is int for d in dims):
            raise NeedsNumber(dims)
        return list(dims)  # pyright: ignore[reportReturnType]

    def shaped(self, x: Var, shape: Sequence[Dim]) -> Var:
        """`x` in another shape, of as many elements."""
        t = x.type.with_shape(shape)
        if t.shape == x.shape:
            return x
        free = [k for k, d in enumerate(shape) if type(d) is not int]
        if len(free) == 1 and 0 not in shape:
            return self.onnx(
                "Reshape", x, self.value([-1 if k in free else d for k, d in enumerate(shape)]),
                out=t,
            )  # fmt: skip
        allowzero = None if not free and 0 not in shape else 1
        return self.onnx("Reshape", x, self.vector(shape), out=t, allowzero=allowzero)

    def like(self, number: float, x: Var) -> Var:
        """A number of a value's type."""
        return self.value(number, x.dtype)


class _helping:
    """What is written meanwhile computes sizes."""

    def __init__(self, body: Body):
        self.body = body

    def __enter__(self) -> None:
        self.before, self.body._helping = self.body._helping, True

    def __exit__(self, *_: Any) -> None:
        self.body._helping = self.before


def value_info(name: str, t: TensorType, symbolic: bool = True) -> onnx.ValueInfoProto:
    """A value's type; without `symbolic`, dims that are no numbers are left open."""
    shape = [d if type(d) is int else str(d) if symbolic else None for d in t.shape]
    return helper.make_tensor_value_info(name, NUMBERS[t.dtype], shape)


assert set(NUMBERS.values()) == set(DTYPES)
