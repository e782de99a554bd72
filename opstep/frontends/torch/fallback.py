"""Statements that PyTorch itself computes, for ops without a counterpart: see `kernels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.dims import Symbols, dtype_of
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.kernels import LEFT_OUT, Signature, Unrunnable, signature
from opstep.frontends.torch.rules.registry import key_of
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.graph import same_value
from opstep.runtime.ir.op import Ref

Argument = Callable[[Any], Any]  # an argument of a node as rules take it
# Ops that see how an operand lies in memory
OF_MEMORY = {"as_strided", "as_strided_copy", "as_strided_scatter", "resize", "resize_as"}
FUNCTIONAL = ("auto_functionalized", "auto_functionalized_v2")  # ops that change their operands


def statement(node: fx.Node, body: Body, argument: Argument, why: Exception) -> list[Var | None]:
    """The results of a node, in a statement that names PyTorch's op. `why`: it is none of ours.
    Raises `Untranslatable`.
    """
    try:
        return _statement(node, body, argument)
    except Untranslatable as error:
        raise Untranslatable(f"{why}, and PyTorch does not run it alone: {error}") from None


def _statement(node: fx.Node, body: Body, argument: Argument) -> list[Var | None]:
    if key_of(node.target) in FUNCTIONAL:
        return _functional(node, body, argument)
    if "reduced" in node.meta:
        raise Untranslatable(node.meta["reduced"])
    target, values = node.target, dict(node.kwargs)
    if not isinstance(target, torch._ops.OpOverload):
        raise Untranslatable("it is no op that PyTorch runs by itself")
    names = [a.name for a in target._schema.arguments]
    values |= dict(zip(names, node.args, strict=False))
    found, name = _known(target)
    if found.changed:
        raise Untranslatable("it changes an operand")
    _check_memory(target, node)
    return list(_applied(found, name, body, values, argument, body.expected))


def _check_memory(target: Any, node: fx.Node) -> None:
    """Alone, an op is given operands that are contiguous. Raises `Untranslatable` where that is
    something else.
    """
    given = [n.meta.get("val") for n in node.all_input_nodes]
    plain = (t.is_contiguous() for t in given if isinstance(t, torch.Tensor))
    is_custom = target.namespace not in ("aten", "prims", "opstep")
    if target._opname in OF_MEMORY or (is_custom and not all(plain)):
        raise Untranslatable("its result may depend on how its operands lie in memory")


def _functional(node: fx.Node, body: Body, argument: Argument) -> list[Var | None]:
    """Of an op that changes operands: what they are then are results, behind the others."""
    (target,) = node.args
    found, name = _known(target)
    _check_memory(target, node)
    values: dict[str, Any] = dict(node.kwargs)
    bases: Any = values.pop("_all_bases", None)
    order = list(found.changed)  # as the node has those results
    if bases is not None:
        places: dict[str, Any] = {n: values.get(f"_{n}_base_index") for n in found.changed}
        for changed, place in places.items():
            if place is None or _is_part(changed, values, bases[place]):
                raise Untranslatable("it changes a part of a tensor")
            values[changed] = bases[place]
        order = sorted(found.changed, key=places.__getitem__)  # pyright: ignore
        if len(set(places.values())) != len(bases) or len(bases) != len(order):
            raise Untranslatable("it changes one tensor twice")
        values = {n: v for n, v in values.items() if n in (*found.tensors, *found.others)}
    given = body.expected[: len(body.expected) - len(order)]
    expected = dict(zip(order, body.expected[len(given) :], strict=True))
    returned = [t for t in given if t is not None]
    types = [*returned, *(expected[n] for n in found.changed)]
    made = _applied(found, name, body, values, argument, types)
    own, changed = iter(made[: len(returned)]), made[len(returned) :]
    after = dict(zip(found.changed, changed, strict=True))
    return [None if t is None else next(own) for t in given] + [after[n] for n in order]


def _is_part(name: str, values: Mapping[str, Any], base: Any) -> bool:
    """Whether the tensor that is changed is a view of less than its base."""
    if f"_{name}_size" not in values:
        return any(f"_{name}_slice_{k}" in values for k in ("dim", "start", "end"))
    whole = base.meta["val"]
    return (
        tuple(values[f"_{name}_size"]) != tuple(whole.shape)
        or tuple(values[f"_{name}_stride"]) != whole.stride()
        or values[f"_{name}_storage_offset"] != 0
    )


def _known(target: Any) -> tuple[Signature, str]:
    """What is known of an op, and its name in a text. Raises `Untranslatable`."""
    overload = "" if target._overloadname == "default" else f".{target._overloadname}"
    name = f"torch.{target.namespace}.{target._opname}{overload}"
    try:
        return signature(name), name
    except Unrunnable as error:
        raise Untranslatable(error.diagnostics[0].message) from None


def is_runnable(node: fx.Node, symbols: Symbols) -> bool:
    """Whether PyTorch runs a node's op by itself, as a rule."""
    found = node.meta.get("val")
    results: Any = found if isinstance(found, list | tuple) else [found]
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if not all(isinstance(t, torch.Tensor) for t in results):
        return False
    try:
        for t in results:
            symbols.type_of(t)
        return not _known(node.target)[0].changed
    except Untranslatable:
        return False


def _applied(
    found: Signature, name: str, body: Body, values: Mapping[str, Any], argument: Argument,
    types: Any,
) -> list[Var]:  # fmt: skip
    if None in types:
        raise Untranslatable("a result of it is no tensor")
    schema = found.op._schema
    operands: list[Any] = []
    attrs: dict[str, Any] = {}
    absent: list[str] = []  # operands: none, if one after them is given
    for spec in schema.arguments:
        if spec.name in LEFT_OUT:
            continue
        value = argument(values[spec.name]) if spec.name in values else None
        if value is None and spec.name in found.tensors and spec.has_default_value():
            absent.append(spec.name)
        elif spec.name not in values:
            continue
        elif spec.name in found.lists or isinstance(value, Var):
            attrs |= dict.fromkeys(absent)
            absent.clear()
            given = [value] if isinstance(value, Var) else list(value or ())
            if spec.name in found.lists:
                attrs[spec.name] = len(given)
            operands += given
        elif not (spec.has_default_value() and _same(value, spec.default_value)):
            attrs[spec.name] = _plain(value)
    stems = [r.name or schema.name.partition("::")[2] for r in schema.returns]
    stems += found.changed
    if len(stems) != len(types):  # one list of tensors
        stems = stems[:1] * len(types)
    return body.foreign(name, operands, attrs, stems, types)


def _same(value: Any, default: Any) -> bool:
    return value is default or same_value(_listed(value), _listed(default))


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """An argument that is no tensor as an attribute's value. Raises `Untranslatable`."""
    if isinstance(value, list | tuple):
        if any(isinstance(v, list | tuple) for v in value):
            raise Untranslatable("a list of lists")
        return tuple(map(_plain, value))
    if isinstance(value, torch.dtype):
        return Ref(dtype_of(value).name)
    if isinstance(value, Expr):
        lone = value.lone_symbol()
        return Ref(lone) if lone else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Untranslatable(f"an argument that is a {type(value).__name__}")
