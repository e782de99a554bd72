"""Facts about ATen ops that a watcher needs: what an op writes, and what it only views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

# Their schemas do not say that the running mean and variance are written: arguments 3 and 4.
_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
LIFTS = ("lift_fresh", "lift")
READS = ("_local_scalar_dense", "item", "is_nonzero")  # the latter two in inference mode
TESTS = ("isnan", "isinf", "eq", "ne")  # by which PyTorch asks for NaNs and infinities
_COMPARES = ("lt", "gt", "le", "ge")  # a NaN decides nothing
_PREFIXES = ("foreach_", "native_", "linalg_")
_UNREAD = ("detach", "resize_", "set_", *READS)
_MOVES = (
    "cat", "clone", "constant_pad", "copy", "fill", "flip", "gather", "index", "masked", "put",
    "repeat", "roll", "scatter", "select", "slice", "sort", "stack", "take", "to_copy", "topk",
    "tril", "triu",
)  # fmt: skip


@dataclass(slots=True)
class Facts:
    """`name`: without namespace and overload. `writes`: indices of the arguments that it writes.

    `skipped`: nothing new is in its results: a view, or memory that nothing was written to.
    `matters`: its operand is a number that is read or compared, a loss, or tested. `lifts`: its
    result is a literal of the script's text. `empty`: gives memory as it was. `passes`: skipped,
    and that is all. `statistics`: it writes some beside what it gives. `compares`: its operands are
    numbers that the script may decide by. `moves`: gives elements of its operands.
    """

    name: str
    arguments: tuple[str, ...] = ()
    writes: tuple[int, ...] = ()
    pointwise: bool = False
    skipped: bool = False
    matters: bool = False
    lifts: bool = False
    empty: bool = False
    passes: bool = False
    random: bool = False
    statistics: bool = False
    compares: bool = False
    moves: bool = False


@cache
def facts_of(op: Any) -> Facts:
    """Those of an `OpOverload`; of what has no schema (a higher-order op) only the name."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return Facts(str(getattr(op, "__name__", op)))
    name = schema.name.partition("::")[2]
    found = Facts(name, tuple(a.name for a in schema.arguments))
    writes = [k for k, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    found.statistics = name in _NORMS
    found.writes = (3, 4) if found.statistics else tuple(writes)
    found.pointwise = torch.Tag.pointwise in op.tags
    found.random = torch.Tag.nondeterministic_seeded in op.tags
    found.compares = name in _COMPARES
    found.matters = found.compares or name in (*READS, *TESTS, "ones_like")
    found.moves = found.pointwise or name.strip("_").startswith(_MOVES)
    found.lifts = name in LIFTS
    found.empty = name.startswith(("empty", "new_empty"))
    views = any(r.alias_info for r in schema.returns) and not writes and not found.lifts
    found.skipped = found.empty or views or name in _UNREAD
    found.passes = found.skipped and not (found.matters or found.empty)
    return found


def plain_name(name: str) -> str:
    """An op's name as PyTorch documents it."""
    name = name.strip("_")
    if name == "to_copy":
        return "to"
    return next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), name)


def by_name(qualified: str, overload: str) -> Any:
    """The `OpOverload` of ``aten::add`` and ``Tensor``."""
    space, _, name = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, space), name), overload or "default")


def positional(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Any]:
    """The arguments of a call in the order of the schema, without trailing ones left out."""
    schema = getattr(op, "_schema", None)
    if schema is None or not kwargs:
        return list(args)
    rest = schema.arguments[len(args) :]
    return [*args, *(kwargs.get(a.name, a.default_value) for a in rest)]


def tensors_in(argument: Any) -> list[torch.Tensor]:
    """The tensors of one argument or result, which may be a list of them."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, list | tuple):
        return [t for t in argument if isinstance(t, torch.Tensor)]
    return []


def as_call(op: Any, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in the order of the schema, by position and by name as the op takes them."""
    pairs = list(zip(arguments, op._schema.arguments, strict=False))
    return [v for v, a in pairs if not a.kwarg_only], {a.name: v for v, a in pairs if a.kwarg_only}


def without_defaults(op: Any, arguments: Sequence[Any]) -> list[Any]:
    """Arguments in the order of the schema, without trailing ones that a call leaves out."""
    found = list(arguments)
    for a in reversed(op._schema.arguments[: len(found)]):
        if isinstance(found[-1], torch.Tensor) or found[-1] != a.default_value:
            break
        found.pop()
    return found


def substituted(arguments: Sequence[Any], tensors: Iterable[torch.Tensor]) -> list[Any]:
    """With other tensors in place of those of a call, in the same order."""
    left = iter(tensors)

    def one(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return next(left)
        if isinstance(a, list | tuple) and any(isinstance(x, torch.Tensor) for x in a):
            return [one(x) for x in a]
        return a

    return [one(a) for a in arguments]
