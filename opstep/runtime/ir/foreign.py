"""Ops of other libraries: statements with a dotted name, whose results have their types written.

    y: f32[N, 4] = torch.mylib.bump(x, factor=2.0)

The first part of the name is the library. Operands are the tensors that the op takes, in its own
order, as they are stored; all else are attributes, by the library's names. Nothing more is known of
such an op here: programs with it are checked, planned and shown without the library, whose kernel
computes it (`runtime.device.foreign`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from opstep.runtime.ir.dims import symbol
from opstep.runtime.ir.graph import Apply, Literal
from opstep.runtime.ir.op import OPS, Mismatch, Op, OperandSpec, Ref, Resolved, Traits
from opstep.runtime.ir.types import DTYPES, TensorType

LIBRARIES = {"torch": "PyTorch"}  # first parts of names, and what people call them
NO_FOREIGN_OP = "PyTorch's ops have names like torch.aten.linalg_inv"


class Foreign(Op):
    """Base of all: see `foreign_op`."""

    operands = (OperandSpec("x", "T", "T", False, True),)
    family = "foreign"
    traits = Traits(foreign=True)
    grad = None

    def oracle(*operands: Any, **attrs: Any) -> Any:
        raise NotImplementedError("what the op computes only its library knows")


def is_foreign_name(name: str) -> bool:
    """Whether it can be that of such an op: ``torch.LIBRARY.OP``, maybe with ``.OVERLOAD``."""
    first, *rest = name.split(".")
    return first in LIBRARIES and len(rest) in (2, 3) and all(part.isidentifier() for part in rest)


@cache
def foreign_op(name: str) -> type[Foreign]:
    """The op of that name; always the same. Raises `Mismatch` for a name that can be none."""
    if not is_foreign_name(name):
        raise Mismatch(f"there is no op or graph {name}", hint=NO_FOREIGN_OP)
    made = type(name.replace(".", "_"), (Foreign,), {})
    made.name = name
    made.__doc__ = f"An op of {LIBRARIES[name.partition('.')[0]]}, run by its own kernel."
    made.signature = f"{name}(x: T*, …)"
    return made


def resolve_foreign(s: Apply, types: Sequence[TensorType | int | float]) -> Resolved:
    """The types of such a statement: what is written. Raises `Mismatch`."""
    name = s.callee.text
    for k, operand in enumerate(s.operands):
        if isinstance(operand, Literal):
            hint = "a number is an attribute, with the name that it has there: factor=2.0"
            raise Mismatch(f"the operands of {name} are tensors", k, hint)
    if not types:
        raise Mismatch(f"{name} has no operand: an op of another library takes one or more")
    if not s.results:
        raise Mismatch(f"the results of {name} have no names", hint=f"write y: f32[N] = {name}(…)")
    for binding in s.results:
        if binding.type is None:
            shown = binding.name.text
            hint = f"write {shown}: f32[N] = {name}(…), with the type that it has"
            raise Mismatch(f"the result {shown} of {name} needs a type", hint=hint)
    results = tuple(b.type for b in s.results if b.type is not None)
    return Resolved(tuple(t for t in types if isinstance(t, TensorType)), results)


def attribute(value: Any) -> Any:
    """An attribute's value: a name is that of an element type, or a symbol."""
    if isinstance(value, Ref):
        return DTYPES.get(value.name) or symbol(value.name)
    return tuple(map(attribute, value)) if type(value) is tuple else value


# torch.clamp, torch.nn.functional.hardtanh and relu6, ONNX Clip, ATen slice.Tensor
_NAMED = re.compile(r"\b(?:(ATen )|ONNX |XLA |torch\.|numpy\.)([\w.]+(?: and [\w.]+)*)")


def ops_by_foreign_name(name: str) -> tuple[str, ...]:
    """The ops that another library calls so, whatever the case and the underscores."""
    return _index(len(OPS)).get(_key(name), ())


def _key(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _index(_count: int) -> dict[str, tuple[str, ...]]:
    """Ops by their names elsewhere, those first that ATen calls so; made anew where more ops have
    been declared.
    """
    found: dict[str, dict[str, bool]] = {}  # and whether it is not ATen's own name
    for op in OPS.values():
        names = {_key(op.name): False}
        for match in _NAMED.finditer(op.source):
            for name in match[2].split(" and "):
                parts = name.strip(".").split(".")
                key = _key(parts[0] if match[1] else parts[-1])
                names[key] = names.get(key, True) and not match[1]
        for name, other in names.items():
            found.setdefault(name, {})[op.name] = other
    return {
        name: tuple(sorted(ops, key=lambda op, ops=ops: (ops[op], op)))
        for name, ops in found.items()
    }
