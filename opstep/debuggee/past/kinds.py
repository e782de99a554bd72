"""Facts that the recorder asks of Python once: kinds of types, and what lines read."""

from __future__ import annotations

import dis
import sys
from collections import deque
from types import CodeType
from typing import Any

# As `enum Kind` in native/kept.h.
ATOM, LIST, DICT, SET, TUPLE, DEQUE, INSTANCE, BUFFER, TENSOR, OPAQUE, UNKEPT, TEXT = range(12)
DEEP = 64  # beside INSTANCE: it is a tree that seldom changes, so all of it is looked at once

# (module, name) of types whose values never change, asked only where the module is there.
_ATOMS = (
    ("builtins", "complex"), ("builtins", "range"), ("enum", "Enum"), ("torch", "Size"),
    ("numpy", "number"), ("numpy", "bool_"), ("numpy", "str_"), ("numpy", "bytes_"),
    ("numpy", "dtype"), ("torch", "dtype"), ("torch", "device"), ("torch", "layout"),
    ("torch", "memory_format"), ("datetime", "date"), ("datetime", "time"),
    ("datetime", "timedelta"), ("decimal", "Decimal"), ("fractions", "Fraction"),
    ("pathlib", "PurePath"), ("re", "Pattern"), ("uuid", "UUID"),
)  # fmt: skip
_BUFFERS = (("builtins", "bytearray"), ("array", "array"), ("numpy", "ndarray"))
_DEEP = (("torch.nn", "Module"), ("torch.optim", "Optimizer"))
_KINDS = (
    (list, LIST), (dict, DICT), (tuple, TUPLE), (set, SET), (frozenset, SET), (deque, DEQUE),
)  # fmt: skip


def is_among(t: type, names: tuple[tuple[str, str], ...]) -> bool:
    bases = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return issubclass(t, tuple(b for b in bases if isinstance(b, type)))


def is_tensor(t: type) -> bool:
    return is_among(t, (("torch", "Tensor"),))


def is_deep(t: type) -> bool:
    return is_among(t, _DEEP)


def kind_of(t: type) -> int:
    if is_among(t, _ATOMS) or t in (type(Ellipsis), type(NotImplemented)):
        return ATOM
    if kinds := [kind for base, kind in _KINDS if issubclass(t, base)]:
        return kinds[0]
    if is_tensor(t):
        return TENSOR
    if is_among(t, _BUFFERS):
        return BUFFER
    is_library = t.__module__ in ("builtins", "functools", "weakref", "types", "_thread")
    return OPAQUE if is_library and not issubclass(t, BaseException) else INSTANCE


# --- lines ----------------------------------------------------------------------------------------

# Instructions by which a line may change a container: those that run other code, or store.
_ACTS = (
    "CALL", "STORE_SUBSCR", "STORE_ATTR", "STORE_SLICE", "DELETE_SUBSCR", "DELETE_ATTR", "IMPORT",
    "BEFORE_WITH", "WITH_EXCEPT", "LOAD_SPECIAL", "YIELD", "SEND", "DICT_", "SET_UPDATE",
    "BINARY_SUBSCR", "FOR_ITER", "LOAD_ATTR", "UNPACK_SEQUENCE",
)  # fmt: skip
_READS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_FROM_DICT_OR_DEREF")
_READS_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def lines_of(code: CodeType) -> list[tuple[bool, tuple[int, ...], tuple[str, ...]]]:
    """By line, from the code's first: (it may change a container, slots that it reads, names of
    globals that it reads).
    """
    names = [*code.co_varnames, *(c for c in code.co_cellvars if c not in code.co_varnames)]
    slots = {name: k for k, name in enumerate([*names, *code.co_freevars])}
    first = line = code.co_firstlineno
    found: dict[int, tuple[list[bool], dict[int, None], dict[str, None]]] = {}
    for instruction in dis.get_instructions(code):
        at = instruction.positions.lineno if instruction.positions else None
        line = at if at is not None else line
        acts, reads, names_read = found.setdefault(line, ([False], {}, {}))
        acts[0] |= _acts(instruction)
        value = instruction.argval
        if instruction.opname.startswith(_READS):
            values = value if isinstance(value, tuple) else (value,)
            reads.update((slots[v], None) for v in values if v in slots)
        elif instruction.opname.startswith("STORE_FAST_LOAD_FAST"):
            reads[slots[value[1]]] = None
        elif instruction.opname in _READS_GLOBALS:
            names_read[value] = None
    nothing: Any = ([False], {}, {})
    rows: Any = (found.get(k, nothing) for k in range(first, max(found, default=first) + 1))
    return [(acts[0], tuple(reads), tuple(names_read)) for acts, reads, names_read in rows]


def _acts(instruction: dis.Instruction) -> bool:
    name, shown = instruction.opname, instruction.argrepr
    is_in_place = name == "BINARY_OP" and (shown.endswith("=") or shown == "[]")
    return name.startswith(_ACTS) or is_in_place
