"""What an op is: one declaration that parser, verifier, planner, devices, docs and tests all read.

An op is a subclass of `Op` with a `signature`:

    class leaky_relu(Elementwise):
        '''x where x > 0, else slope*x.'''
        signature = "leaky_relu(x: F, *, slope: float = 0.01)"

Operands stand before the ``*``, attributes after it. An operand's kind is a letter:

    T any   N numeric (not bool)   F floating   I integer   B bool   X index (i32 or i64)

Operands with the same letter are promoted to a common dtype; a digit makes another group (``T2``).
``F`` also takes integers and bools and computes them in f32. ``?`` marks an optional operand, ``*``
one or more.

Attribute types: int, float, number (either), bool, str, dim, dtype, graph, and lists of them: ints,
floats, dims, graphs; and axes: one of the mesh, or a list of them (`ir.mesh`), which the verifier
makes a group of. ``= none`` makes an attribute optional.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from opstep.runtime.ir.dims import Dim, Expr, symbol
from opstep.runtime.ir.faults import NO_FAULTS, UNKNOWN, Faults
from opstep.runtime.ir.mesh import ALONE, Group
from opstep.runtime.ir.types import (
    DTYPES,
    FAMILIES,
    DType,
    TensorType,
    TypeVariable,
    assignments,
    boolean,
    f32,
    generalised,
    i32,
    i64,
    promote,
    variables_of,
)

OPS: dict[str, type[Op]] = {}  # every op by name, filled as the families are imported


class Mismatch(Exception):
    """Operands or attributes that an op cannot take.

    `at` is the index of the operand, or the name of the attribute, that is to blame, if one is;
    `also` another operand that it does not go with, and what to say of that.
    """

    def __init__(
        self, message: str, at: int | str | None = None, hint: str = "",
        also: tuple[int, str] | None = None,
    ):  # fmt: skip
        super().__init__(message)
        self.also = also
        self.message = message
        self.at = at
        self.hint = hint


class Ref(NamedTuple):
    """A bare name used as an attribute's value: a graph, an element type or a symbol."""

    name: str


class OperandSpec(NamedTuple):
    name: str
    kind: str  # the letter of the dtype class
    group: str  # operands of one group are promoted together
    optional: bool
    variadic: bool


class AttrSpec(NamedTuple):
    name: str
    type: str
    required: bool
    default: Any


class Traits(NamedTuple):
    """Yes-or-no facts of an op. A class that sets them repeats those of its bases."""

    moves: bool = False  # moves elements and never computes with them: any dtype, bit for bit
    bits: bool = False  # of any dtype, as they are; its oracle takes them in that dtype
    as_stored: bool = False  # its kernels for the CPU convert halves as they read and write
    reinterprets: bool = False  # the result is operand 0's memory under another shape
    picks: bool = False  # it reads of operand 0 only what it gives
    # Its first launch copies operand 0 to the result: not needed where that took over the buffer.
    overwrites: bool = False
    alike: bool = False  # all elements of its result are the same, whatever its shape
    constant: bool = False  # its results count as constants, whatever they are made of
    host: bool = False  # control flow: the interpreter runs it, no kernel does
    collective: bool = False  # a group of ranks computes it together, in one order
    by_rank: bool = False  # its result depends on the rank
    foreign: bool = False  # another library computes it: see `ir.foreign`
    epilogues: bool = False  # kernels may compute others of its result (`plan.epilogues`)


class Signed:
    """An op's name, operands and attributes, read from its signature."""

    signature: ClassVar[str] = ""
    name: ClassVar[str] = ""
    operands: ClassVar[tuple[OperandSpec, ...]] = ()
    attrs: ClassVar[tuple[AttrSpec, ...]] = ()
    family: ClassVar[str] = ""  # the module of the declaration


class Op(Signed):
    """Base of all declarations. See the module's text for the signature.

    A declaration has, each as a plain function (no `self`; the base makes them static):

    - ``infer(*types, **attrs) -> TensorType | tuple``: the shape rule, on promoted types, with dims
      that may be symbolic; raises `Mismatch`.
    - ``oracle(*arrays, **attrs)``: the meaning, in NumPy, on float64 (or integer) arrays.
    - ``cpu(*operands, *results, **attrs) -> Launch | list[Launch]``: see `device.launch`.
    - ``cuda(*operands, *results, **attrs) -> Grid | Launch | list | Variants``: likewise; without
      it CUDA runs the CPU's kernels, a unit of their range a thread.
    - ``vendor(*operands, *results, **attrs)``: where NVIDIA's libraries can do it, pairs of a name
      and a function that gives launches (`Call` among them), or None where it cannot be; what is
      likely fastest comes first.
    - ``grad(g, operands, results, grads, **attrs)``: the gradient as IR, one value an operand or
      None; or ``grad = None`` where there is none.
    - ``flops(*types, **attrs) -> Dim``: arithmetic operations of one execution.
    - ``element(*types, **attrs)``: where each element of the result is computed of one of each
      operand, the function of scalars that does it and the numbers that it takes after them; None
      where it is better not joined with others (`plan.fusing`). Operands broadcast.
    - ``shows(x, **attrs)``: where an op of one operand only moves elements, for each result which
      elements of x it has, `Places` of those given; may raise `Untellable` (`plan.viewing`).
    - ``faults``: what makes a NaN or an infinity of finite operands, see `ir.faults`; `NO_FAULTS`
      where nothing does.

    Parts that few ops have, and one pass asks for, stand in `ir.interfaces`.
    """

    results: ClassVar[tuple[str, ...]] = ("y",)  # their names, for the docs
    traits: ClassVar[Traits] = Traits()
    inplace: ClassVar[tuple[int, ...]] = ()  # operands whose buffer an equal result may take over
    formula: ClassVar[str] = ""  # for the docs, in plain text
    source: ClassVar[str] = ""  # where a formula comes from
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}  # the words that a str attribute can be
    faults: ClassVar[Faults] = UNKNOWN
    element: ClassVar[Any] = None
    shows: ClassVar[Any] = None

    infer: ClassVar[Any]
    oracle: ClassVar[Any]
    cpu: ClassVar[Any]
    cuda: ClassVar[Any] = None
    vendor: ClassVar[Any] = None
    grad: ClassVar[Any]

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for key in _FUNCTIONS:
            function = cls.__dict__.get(key)
            if callable(function) and not isinstance(function, (staticmethod, classmethod)):
                setattr(cls, key, staticmethod(function))
        if "signature" in cls.__dict__:
            cls.name, cls.operands, cls.attrs = parse_signature(cls.signature)
            cls.family = cls.__module__.rpartition(".")[2]
            if cls.name in OPS:
                raise ValueError(f"op {cls.name} is declared twice")
            OPS[cls.name] = cls

    @classmethod
    def may_fault(cls) -> bool:
        """Whether a result may have NaNs or infinities though all operands are finite."""
        moved = cls.traits.moves or cls.traits.reinterprets
        return not moved and cls.faults is not NO_FAULTS

    @classmethod
    def is_shared(cls, attrs: Mapping[str, Any]) -> bool:
        """Whether other ranks have a part in it: it is done once, in its order."""
        return cls.traits.collective and attrs["over"].size > 1

    @classmethod
    def computed(cls, dtype: DType) -> DType:
        """The type in which kernels see an operand of this one: halves are computed with in f32."""
        return f32 if dtype.is_half and not (cls.traits.moves or cls.traits.bits) else dtype

    @staticmethod
    def flops(*types, **attrs) -> Dim:
        """Arithmetic operations of one execution; zero for ops that only move data."""
        return 0


# What a declaration may give as a plain function.
_FUNCTIONS = (
    *("infer", "oracle", "cpu", "cuda", "vendor", "grad", "flops", "scalar", "element", "shows"),
    *("outside", "lays_out"),
)


_OPERAND = re.compile(r"(\w+): ([TNFIBX])(\d?)([?*]?)$")
_ATTR = re.compile(r"(\w+): (\w+)(?: = (.+))?$")
_WORDS = {"none": None, "true": True, "false": False}


def parse_signature(text: str) -> tuple[str, tuple[OperandSpec, ...], tuple[AttrSpec, ...]]:
    """Name, operands and attributes of ``name(x: F, b: F?, *, stride: ints = [1, 1])``."""
    name, _, rest = text.partition("(")
    operands: list[OperandSpec] = []
    attrs: list[AttrSpec] = []
    into_attrs = False
    for part in re.split(r", (?![^\[]*\])", rest.removesuffix(")")) if rest != ")" else ():
        if part == "*":
            into_attrs = True
        elif into_attrs:
            match = _ATTR.match(part)
            if not match:
                raise ValueError(f"not an attribute: {part!r} in {text}")
            attr, kind, default = match.groups()
            attrs.append(AttrSpec(attr, kind, default is None, _default(default)))
        else:
            match = _OPERAND.match(part)
            if not match:
                raise ValueError(f"not an operand: {part!r} in {text}")
            operand, kind, digit, mark = match.groups()
            operands.append(OperandSpec(operand, kind, kind + digit, mark == "?", mark == "*"))
    return name, tuple(operands), tuple(attrs)


def _default(text: str | None):
    if text is None or text in _WORDS:
        return _WORDS.get(text or "none")
    if text.startswith("["):
        return tuple(_default(t) for t in text[1:-1].split(", ") if t)
    if text.startswith('"'):
        return text[1:-1]
    if text in DTYPES:
        return DTYPES[text]
    return float(text) if "." in text or "e" in text or "inf" in text else int(text)


# --- attributes -----------------------------------------------------------------------------------


def _is_dim(v) -> bool:
    return (type(v) is int) or isinstance(v, Expr)


def _one(kind: str, v):
    """`v` as a value of attribute type `kind`; ValueError where it is none."""
    if kind == "dim" and isinstance(v, Ref):
        return symbol(v.name)
    if kind == "dtype" and isinstance(v, Ref) and v.name in DTYPES:
        return DTYPES[v.name]
    if kind == "float" and (type(v) is int or type(v) is float):
        return float(v)
    fits = {
        "int": type(v) is int,
        "number": type(v) in (int, float),
        "bool": type(v) is bool,
        "str": type(v) is str,
        "dim": _is_dim(v),
        "dtype": isinstance(v, DType),
        "graph": isinstance(v, Ref),
    }.get(kind, False)
    if not fits:
        raise ValueError
    return v


_EXAMPLES = {
    "int": "an integer",
    "float": "a number",
    "number": "a number",
    "bool": "true or false",
    "str": 'a string in "quotes"',
    "dim": "an integer or a symbol",
    "dtype": "an element type such as f32",
    "graph": "the name of a graph",
    "ints": "a list of integers such as [1, 1]",
    "floats": "a list of numbers",
    "dims": "a list of integers and symbols such as [N, 8]",
    "graphs": "a list of graphs such as [first, second]",
    "axes": "an axis of the mesh, or a list of them such as [data, model]",
}


def coerce(spec: AttrSpec, value):
    """An attribute's value as its type wants it: names become what they name."""
    if value is None and not spec.required and spec.default is None:
        return None
    try:
        if spec.type == "axes":
            return _axes(value)
        if spec.type.endswith("s") and spec.type != "s":
            if type(value) is not tuple:
                raise ValueError
            return tuple(_one(spec.type[:-1], v) for v in value)
        return _one(spec.type, value)
    except ValueError:
        raise Mismatch(f"attribute {spec.name} wants {_EXAMPLES[spec.type]}", spec.name) from None


def _axes(value):
    """Names of axes, which the verifier looks up, or a group that it has found."""
    refs = value if type(value) is tuple else (value,)
    if not isinstance(value, Group) and not all(isinstance(r, Ref) for r in refs):
        raise ValueError
    return value


def complete(op: type[Op], attributes: dict[str, Any]) -> dict[str, Any]:
    """All attributes of the op in declared order: the given ones, checked, and defaults."""
    attrs = {}
    for spec in op.attrs:
        if spec.name in attributes:
            attrs[spec.name] = coerce(spec, attributes[spec.name])
        elif spec.required:
            raise Mismatch(
                f"{op.name} needs the attribute {spec.name}",
                hint=f"write {spec.name}=…, {_EXAMPLES[spec.type]}",
            )
        else:
            attrs[spec.name] = spec.default
        if spec.type == "axes" and attrs[spec.name] is None:
            attrs[spec.name] = ALONE  # until the verifier looks for the mesh
    return attrs


# --- operands -------------------------------------------------------------------------------------


class Resolved(NamedTuple):
    """The types an op computes on (operands promoted; None where an optional one is absent) and
    gives.
    """

    operands: tuple[TensorType | None, ...]
    results: tuple[TensorType, ...]


_ADMITS = {
    "T": lambda t: True,
    "N": lambda t: t.kind != "b",
    "F": lambda t: True,
    "I": lambda t: t.is_integer,
    "B": lambda t: t.kind == "b",
    "X": lambda t: t is i32 or t is i64,
}
_KINDS = {
    "T": "any tensor",
    "N": "a tensor of numbers",
    "F": "a tensor of numbers",
    "I": "a tensor of integers",
    "B": "a tensor of bools",
    "X": "a tensor of i32 or i64 indices",
}


def expand(op: type[Op], count: int) -> list[OperandSpec]:
    """One spec for each of `count` operands given; raises Mismatch where the number is wrong."""
    specs = list(op.operands)
    if specs and specs[-1].variadic:
        specs += [specs[-1]] * (count - len(specs))
    least = sum(not s.optional for s in op.operands)
    if not least <= count <= len(specs):
        expected = str(least) if least == len(specs) else f"{least} to {len(specs)}"
        if op.operands and op.operands[-1].variadic:
            expected = f"{least} or more"
        raise Mismatch(
            f"{op.name} takes {expected} operand{'' if expected == '1' else 's'}, not {count}",
            hint=f"its form is {op.signature}",
        )
    return specs[:count]


def resolve(
    op: type[Op], types: Sequence[TensorType | int | float], attrs: dict[str, Any]
) -> Resolved:
    """Checks and promotes operand types (numbers are literals, which adapt), and applies the shape
    rule.
    """
    variables = variables_of((*types, *attrs.values()))
    if variables:
        return _resolve_for_all(op, types, attrs, variables)
    specs = expand(op, len(types))
    groups: dict[str, DType] = {}
    for k, (spec, t) in enumerate(zip(specs, types, strict=True)):
        if isinstance(t, TensorType):
            if not _ADMITS[spec.kind](t.dtype):
                raise Mismatch(f"{op.name} wants {_KINDS[spec.kind]} as {spec.name}, not {t}", k)
            group_dtype = groups.get(spec.group)
            groups[spec.group] = t.dtype if group_dtype is None else promote(group_dtype, t.dtype)
    for k, (spec, t) in enumerate(zip(specs, types, strict=True)):
        if not isinstance(t, TensorType):
            groups[spec.group] = _adapt_literal(spec, t, groups.get(spec.group), k)
        if spec.kind == "F" and not groups[spec.group].is_float:
            groups[spec.group] = f32
    promoted = tuple(
        t.with_dtype(groups[s.group])
        if isinstance(t, TensorType)
        else TensorType(groups[s.group], ())
        for s, t in zip(specs, types, strict=True)
    )
    missing = 0 if op.operands and op.operands[-1].variadic else len(op.operands) - len(promoted)
    promoted += (None,) * missing
    results = op.infer(*promoted, **attrs)
    return Resolved(promoted, (results,) if isinstance(results, TensorType) else tuple(results))


def _resolve_for_all(
    op: type[Op], types: Sequence, attrs: dict[str, Any], variables: tuple[TypeVariable, ...]
) -> Resolved:
    """`resolve` for all that type variables may be, and what these have in common."""
    found: list[Resolved] = []
    for instance in assignments(variables):
        try:
            found.append(_resolve_instance(op, types, attrs, instance))
        except Mismatch as m:
            m.hint = " and ".join(f"{name} may be {t}" for name, t in instance.items())
            m.hint += _narrower(op, types, attrs, variables)
            raise
    columns = zip(*((*r.operands, *r.results) for r in found), strict=True)
    together = tuple(_together(op, variables, column) for column in columns)
    count = len(found[0].operands)
    return Resolved(together[:count], together[count:])  # pyright: ignore[reportArgumentType]


def _resolve_instance(
    op: type[Op], types: Sequence, attrs: dict[str, Any], instance: dict[str, DType]
) -> Resolved:
    bound = [
        t.with_dtype(t.dtype.bound(instance)) if isinstance(t, TensorType) else t for t in types
    ]
    values = {k: v.bound(instance) if isinstance(v, DType) else v for k, v in attrs.items()}
    return resolve(op, bound, values)


def _together(
    op: type[Op], variables: tuple[TypeVariable, ...], types: tuple[TensorType | None, ...]
) -> TensorType | None:
    """The type that is ``types[k]`` for the k-th of the variables' assignments."""
    first = types[0]
    if first is None:
        return None
    if any(t is None or t.shape != first.shape for t in types):
        names = " and ".join(v.name for v in variables)
        raise Mismatch(f"the shape that {op.name} gives depends on what {names} is")
    return first.with_dtype(generalised(variables, [t.dtype for t in types if t]))


def _narrower(
    op: type[Op], types: Sequence, attrs: dict[str, Any], variables: tuple[TypeVariable, ...]
) -> str:
    """What to declare instead: the widest family whose types an op can all take."""
    (variable, *others) = variables
    for family, instances in () if others else FAMILIES.items():
        if set(instances) < {*variable.instances}:
            try:
                for t in instances:
                    _resolve_instance(op, types, attrs, {variable.name: t})
            except Mismatch:
                continue
            return f"; declare <{variable}: {family}>"
    return ""


def _adapt_literal(
    spec: OperandSpec, value: int | float, group_dtype: DType | None, at: int
) -> DType:
    """The group's dtype once a literal has joined it: a literal takes the dtype it meets, where it
    can.
    """
    if group_dtype is None:
        return {"X": i64, "B": boolean}.get(spec.kind, f32 if type(value) is float else i32)
    if type(value) is float and not group_dtype.is_float:
        if spec.kind in "XIB":
            raise Mismatch(f"{value} is not an integer", at)
        return f32
    if group_dtype.kind == "b" and spec.kind != "B":
        return i32
    return group_dtype
