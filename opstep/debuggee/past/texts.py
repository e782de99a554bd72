"""Texts of values and their children. No code of the script runs for them: no `__repr__`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from opstep.debuggee.past.rebuild import Absent, undisturbed

WIDTH = 300  # characters of a text
ITEMS = 30
ELEMENTS = 1000  # of a tensor or array, whose text is PyTorch's or NumPy's
CHILDREN = 1000

_PLAIN = (int, float, complex, bool, type(None), str, bytes, range, bytearray)
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)
_CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
_BRACKETS = {list: "[]", tuple: "()", set: "{}", dict: "{}"}


def type_name(value: Any) -> str:
    if type(value) is Absent:
        return object.__getattribute__(value, "_opstep")[0]
    return type(value).__name__


def text_of(value: Any, depth: int = 2) -> str:
    text = _text(value, depth)
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def children_of(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of a container's items or an object's attributes."""
    return [child for child, _ in zip(_children(value), range(CHILDREN), strict=False)]


def has_children(value: Any) -> bool:
    return next(iter(_children(value)), None) is not None


def is_instance(value: Any) -> bool:
    t = type(value)
    if t is Absent or isinstance(value, (*_PLAIN, *_CODE)) or _library(value):
        return False
    return t.__module__ != "builtins" or isinstance(value, BaseException)


def _library(value: Any) -> bool:
    """A tensor or an array of NumPy, or of what they are."""
    names = (
        ("torch", "Tensor"), ("numpy", "ndarray"), ("numpy", "generic"), ("enum", "Enum"),
        ("torch", "Size"), ("torch", "dtype"), ("torch", "device"), ("torch", "layout"),
    )  # fmt: skip
    found = [getattr(sys.modules.get(m), n, None) for m, n in names]
    return isinstance(value, tuple(t for t in found if isinstance(t, type)))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((_text(k, 1), v) for k, v in dict.items(value))
    elif isinstance(value, _SETS):
        yield from ((str(k), v) for k, v in enumerate(sorted(value, key=_text)))
    elif isinstance(value, _SEQUENCES):
        names = getattr(type(value), "_fields", None) or range(len(value))
        yield from zip(map(str, names), list(value), strict=False)
    elif is_instance(value):
        yield from attributes(value)


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for t in reversed(type(value).__mro__):
        for name, member in vars(t).items():
            if type(member).__name__ == "member_descriptor" and t.__module__ != "builtins":
                try:
                    yield name, member.__get__(value)
                except AttributeError:
                    continue
    if isinstance(value, BaseException):
        yield "args", value.args
    yield from dict.items(getattr(value, "__dict__", {}))


def _text(value: Any, depth: int = 2) -> str:
    t = type(value)
    if t is Absent or t in _PLAIN:
        return repr(value)
    if isinstance(value, _CODE):
        return f"<{t.__name__} {getattr(value, '__name__', '?')}>"
    if isinstance(value, dict):
        pairs = (f"{_text(k, 1)}: {_text(v, depth - 1)}" for k, v in dict.items(value))
        return _listed(t, dict, len(value), pairs, depth)
    if isinstance(value, _SETS):
        return _listed(t, set, len(value), sorted(map(_text, value)), depth)
    if isinstance(value, tuple) and hasattr(t, "_fields") and depth > 0:
        inner = (f"{n}={_text(v, depth - 1)}" for n, v in zip(t._fields, value, strict=False))
        return f"{t.__name__}({', '.join(inner)})"
    if isinstance(value, _SEQUENCES) and not _library(value):
        base = tuple if isinstance(value, tuple) else list
        return _listed(t, base, len(value), (_text(v, depth - 1) for v in value), depth)
    if _library(value):
        return _library_text(value)
    if is_instance(value):
        if depth <= 0:
            return f"<{t.__name__}>"
        shown = ", ".join(f"{n}={_text(v, depth - 1)}" for n, v in attributes(value))
        return f"{t.__name__}({shown})"
    return f"<{t.__name__}>"


def _listed(t: type, base: type, count: int, items: Any, depth: int) -> str:
    name = "" if t is base else t.__name__
    if depth <= 0 and count:
        return f"<{t.__name__}, {count} item{'s' * (count > 1)}>"
    if t is set and not count:
        return "set()"
    first = [item for item, _ in zip(items, range(ITEMS), strict=False)]
    more = ["…"] if count > ITEMS else []
    inner = ", ".join([*first, *more]) + ("," if base is tuple and count == 1 else "")
    left, right = _BRACKETS[base]
    return f"{name}({left}{inner}{right})" if name else f"{left}{inner}{right}"


def _library_text(value: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        size = getattr(value, "size", 1)
        return repr(value) if not isinstance(size, int) or size <= ELEMENTS else _shape(value)
    with undisturbed(torch):
        if value.numel() > ELEMENTS:
            return _shape(value)
        return repr(value.detach().as_subclass(torch.Tensor))


def _shape(value: Any) -> str:
    return f"{type(value).__name__} {tuple(value.shape)} {value.dtype}"
