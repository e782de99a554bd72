"""Runs single ops of PyTorch, by its own kernels, on memory of ours: ``torch.aten.linalg_inv``.

Their names may come from files of strangers, so nothing is run but ops that PyTorch's dispatcher
knows, that take tensors and plain values, and of which a result is all that is left. No library is
loaded here.

The operands of a statement are the tensors among an op's arguments, in its order; other arguments
are attributes. An attribute in a tensor's place says that it is none (``weight=none``), a number
instead, or, where a list of tensors is wanted, how many operands are in it (``tensors=3``). A
tensor that the op changes is a copy, which is one more result, behind the others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from opstep.frontends.torch.dims import DTYPES
from opstep.frontends.torch.errors import cause
from opstep.runtime.device.foreign import ForeignCall
from opstep.runtime.device.routine import Enqueue
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.wording import Argument, Wording

THEIRS = {ours: theirs for theirs, ours in DTYPES.items()}
TENSORS = ("Tensor", "Optional[Tensor]", "List[Tensor]")
PLAIN = ("int", "float", "bool", "number", "str")
LEFT_OUT = ("device", "layout", "pin_memory", "memory_format")  # what our memory says anyway


class Unrunnable(InputError):
    """An op that is not run, with these arguments."""


class Signature(NamedTuple):
    """An op, and the names of its arguments: those that are tensors, in order, which of them are
    lists, and which it changes; and those that attributes can say.
    """

    op: Any
    tensors: tuple[str, ...]
    lists: frozenset[str]
    changed: tuple[str, ...]
    others: tuple[str, ...]


def signature(name: str) -> Signature:
    """Of ``torch.LIBRARY.OP``. Raises `Unrunnable` where there is none, or it is none to be run."""
    _, library, op, *overload = name.split(".")
    return _signature(name, library, op, overload[0] if overload else "")


def is_known(library: str, op: str, overload: str) -> bool:
    """Whether PyTorch's dispatcher has an op."""
    try:
        torch._C._dispatch_find_schema_or_throw(f"{library}::{op}", overload)
    except RuntimeError:
        return False
    return True


@cache
def _signature(name: str, library: str, op: str, overload: str) -> Signature:
    if not is_known(library, op, overload):
        raise unknown(name)
    found = getattr(getattr(getattr(torch.ops, library), op), overload or "default")
    if torch.Tag.nondeterministic_seeded in found.tags:
        raise Unrunnable(f"{name} draws random numbers, others in each run")
    arguments = {a.name: str(a.type) for a in found._schema.arguments}
    tensors = tuple(n for n, kind in arguments.items() if kind in TENSORS)
    if not tensors:
        raise Unrunnable(f"{name} takes no tensor")
    others = tuple(n for n, kind in arguments.items() if _is_plain(kind) and n not in LEFT_OUT)
    for argument, kind in arguments.items():
        said = argument in (*tensors, *others, *LEFT_OUT) or kind.startswith("Optional[")
        if not said:
            raise Unrunnable(f"{name} takes {argument}, which is no tensor, number or text")
    if any(_is_written(r) for r in found._schema.returns):
        raise Unrunnable(f"{name} gives the tensor that it changes")
    lists = frozenset(n for n in tensors if arguments[n] == "List[Tensor]")
    changed = tuple(a.name for a in found._schema.arguments if _is_written(a))
    return Signature(found, tensors, lists, changed, others)


def _is_written(one: Any) -> bool:
    return one.alias_info is not None and one.alias_info.is_write


def _is_plain(kind: str) -> bool:
    """Whether a text has values of that type: numbers, texts, and lists of these."""
    for around in ("Optional[", "List["):
        if kind.startswith(around):
            kind = kind.removeprefix(around)[:-1]
    return kind in PLAIN


def unknown(name: str) -> Unrunnable:
    """What is said of an op that nobody has registered."""
    _, library, op, *_ = name.split(".")
    names = (n.partition(".")[0] for n in torch._C._dispatch_get_all_op_names())
    known = sorted({n.removeprefix(f"{library}::") for n in names if n.startswith(f"{library}::")})
    if known:
        return Unrunnable(f"PyTorch knows no op {name}", hint=did_you_mean(op, known))
    return Unrunnable(
        f"PyTorch does not know the op {name}: nothing has registered {library}",
        hint=Wording.any_of(
            (f"import the module that registers {library} first",),
            (Argument("import", "MODULE"),),
        ),
    )


# --- a call ---------------------------------------------------------------------------------------


def check(call: ForeignCall) -> None:
    """Raises `InputError` where PyTorch cannot run it."""
    found = signature(call.name)
    for name in call.attrs:
        if name not in found.others and name not in found.tensors:
            hint = did_you_mean(name, found.others) or f"its form is {found.op._schema}"
            raise Unrunnable(f"{call.name} has no argument {name}", hint=hint)
    _arguments(found, call, [None] * len(call.operands))


def bind(call: ForeignCall, pointers: Sequence[int]) -> Enqueue:
    """The call with tensors at these addresses, operands first."""
    found, count = signature(call.name), len(call.operands)
    here = _on_gpu if call.on_gpu else _in_host_memory
    with torch.inference_mode(False):
        operands = [here(p, t) for p, t in zip(pointers[:count], call.operands, strict=True)]
        results = [here(p, t) for p, t in zip(pointers[count:], call.results, strict=True)]
    arguments = _arguments(found, call, operands)
    if not call.on_gpu:
        return lambda stream: _run(found, call, arguments, results)
    device = (operands + results)[0].device

    def enqueue(stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device)):
            _run(found, call, arguments, results)

    return enqueue


def _run(
    found: Signature, call: ForeignCall, arguments: dict[str, Any], results: Sequence[torch.Tensor]
) -> None:
    try:
        with torch.no_grad(), torch._C._DisableAutocast():
            copies = {n: arguments[n].clone() for n in found.changed}
            given = found.op(**{**arguments, **copies})
            made = [*_listed(given), *copies.values()]
            _check_results(call, made)
            for target, value in zip(results, made, strict=True):
                target.copy_(value)
    except InputError:
        raise
    except Exception as error:  # of any class: an op may be Python of the user's
        raise InputError(f"{call.name}: {cause(error)}") from None


def _listed(given: Any) -> list[Any]:
    """Results that are tensors."""
    if isinstance(given, list | tuple):
        return [t for one in given for t in _listed(one)]
    return [given] if isinstance(given, torch.Tensor) else []


def _check_results(call: ForeignCall, made: Sequence[torch.Tensor]) -> None:
    found = [f"{DTYPES.get(t.dtype, t.dtype)}{list(t.shape)}" for t in made]
    expected = [f"{t.dtype}{list(t.shape)}" for t in call.results]
    if found != expected:
        gave, written = (", ".join(one) or "nothing" for one in (found, expected))
        raise Unrunnable(f"{call.name} gives {gave}; the text says {written}")


def _arguments(found: Signature, call: ForeignCall, operands: Sequence[Any]) -> dict[str, Any]:
    """By name. `operands`: the tensors, or what stands for them."""
    attrs, left = call.attrs, list(operands)
    arguments = {n: _theirs(attrs[n]) for n in found.others if n in attrs}
    if any(a.name == "device" for a in found.op._schema.arguments):
        arguments["device"] = torch.device("cuda" if call.on_gpu else "cpu")
    for name in found.tensors:
        if name in attrs and attrs[name] is None:
            arguments[name] = None
        elif name in found.lists:
            size = attrs.get(name, len(left))
            if type(size) is not int or not 0 <= size <= len(left):
                raise _wrong_count(found, call)
            arguments[name], left = left[:size], left[size:]
        elif name in attrs:
            arguments[name] = attrs[name]
        elif left:
            arguments[name] = left.pop(0)
    if left or not _is_complete(found, arguments):
        raise _wrong_count(found, call)
    return arguments


def _is_complete(found: Signature, arguments: Mapping[str, Any]) -> bool:
    return all(
        a.name in arguments or a.has_default_value() or str(a.type).startswith("Optional[")
        for a in found.op._schema.arguments
    )


def _wrong_count(found: Signature, call: ForeignCall) -> Unrunnable:
    return Unrunnable(
        f"{call.name} does not take these arguments", hint=f"its form is {found.op._schema}"
    )


def _theirs(value: Any) -> Any:
    """An attribute's value as PyTorch takes it."""
    if isinstance(value, DType):
        return THEIRS[value]
    return list(map(_theirs, value)) if isinstance(value, tuple) else value


# --- memory ---------------------------------------------------------------------------------------


def _in_host_memory(address: int, t: TensorType) -> torch.Tensor:
    """The tensor at an address of this process, without a copy."""
    shape, nbytes = _concrete(t)
    if not nbytes:
        return torch.empty(shape, dtype=THEIRS[t.dtype])
    memory = (ctypes.c_byte * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=THEIRS[t.dtype]).reshape(shape)


def _on_gpu(address: int, t: TensorType) -> torch.Tensor:
    """Likewise of a GPU: as bytes, for the interface knows no bf16."""
    shape, nbytes = _concrete(t)
    if not nbytes:
        return torch.empty(shape, dtype=THEIRS[t.dtype], device="cuda")
    described = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
    memory = type("Memory", (), {"__cuda_array_interface__": described})()
    return torch.as_tensor(memory, device="cuda").view(THEIRS[t.dtype]).reshape(shape)


def _concrete(t: TensorType) -> tuple[tuple[int, ...], int]:
    return t.shape, t.nbytes  # pyright: ignore[reportReturnType] - numbers here
