"""JSON into dataclasses by their annotations, and back.

A field is called in Python's way; in JSON it is the same name in camelCase, or what its metadata
says: ``thread_id: int`` is ``threadId``. Fields without a default are required; what a class does
not name is left unread, as clients may send more, but where its `complete` says that people write
it. Types: bool, int, float, str, `Any`, `Literal`,
lists, ``dict[str, T]``, unions with None (or of several), and such classes themselves.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 2**53 - 1  # what the protocol's numbers can hold

WORDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


class Mismatch(Exception):
    """Where a value does not have the type that was declared: the text says where."""


def named(name: str, default: Any = None) -> Any:
    """A field whose name in JSON does not follow the rule: ``client_id: … = named("clientID")``."""
    return field(default=default, metadata={"name": name})


@cache
def _members(kind: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """(field, name in JSON, type, whether it must be there) of a class."""
    hints = get_type_hints(kind)
    return tuple((f.name, json_name(f), hints[f.name], _required(f)) for f in fields(kind))


def _required(member: Field) -> bool:
    return member.default is MISSING and member.default_factory is MISSING


def json_name(member: Field) -> str:
    """What the field is called in JSON."""
    if "name" in member.metadata:
        return member.metadata["name"]
    first, *rest = member.name.rstrip("_").split("_")
    return first + "".join(part.capitalize() for part in rest)


# --- from JSON ---


def check(kind: Any, value: Any, where: str) -> Any:
    """`value`, which is JSON, as `kind`. Raises `Mismatch`, naming the place below `where`."""
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value, where)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in get_args(kind)):
            choices = ", ".join(map(str, get_args(kind)))
            raise Mismatch(f"{where} is {_text_of(value)}; it can be {choices}")
        return value
    if origin is list:
        return [
            check(get_args(kind)[0], item, f"{where}[{k}]")
            for k, item in enumerate(_of(list, value, where))
        ]
    if origin is dict:
        inner = get_args(kind)[1]
        return {k: check(inner, v, f"{where}.{k}") for k, v in _of(dict, value, where).items()}
    if is_dataclass(kind):
        return _instance(kind, _of(dict, value, where), where)
    return _of(kind, value, where)


def _instance(kind: Any, value: dict[str, Any], where: str) -> Any:
    values, members = {}, _members(kind)
    known = [key for _, key, _, _ in members]
    for key in value if getattr(kind, "complete", False) else ():
        if key not in known:
            raise Mismatch(f"{where} has no {key[:40]}; it can have {', '.join(known)}")
    for name, key, inner, required in members:
        if key in value:
            values[name] = check(inner, value[key], f"{where}.{key}")
        elif required:
            raise Mismatch(f"{where}.{key} is missing")
    return kind(**values)


def _one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """The first that fits; where only one of them is not None, its complaint is the better one."""
    if value is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    for kind in rest[:-1]:
        try:
            return check(kind, value, where)
        except Mismatch:
            continue
    return check(rest[-1], value, where)


def _of(kind: type, value: Any, where: str) -> Any:
    """A value of one of JSON's own types."""
    fits = isinstance(value, kind)
    if kind in (int, float):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = number and math.isfinite(value) and (kind is float or value == math.floor(value))
    if not fits:
        raise Mismatch(f"{where} must be {WORDS[kind]}; it is {_text_of(value)}")
    if kind is int and abs(value) > LARGEST:
        raise Mismatch(f"{where} is out of range")
    return kind(value) if kind is int else value


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) < 40 else value[:40] + "…")
    return WORDS.get(type(value), type(value).__name__)


# --- to JSON ---


NULL = object()  # a null that is sent: what is None in an object is left out


def plain(value: Any) -> Any:
    """What `json.dumps` can write: dataclasses become objects, without what is None; floats that
    JSON has no word for become strings.
    """
    if value is NULL:
        return None
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if is_dataclass(value) and not isinstance(value, type):
        members = ((key, getattr(value, name)) for name, key, _, _ in _members(type(value)))
        return {key: plain(v) for key, v in members if v is not None}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    raise TypeError(f"{type(value).__name__} is not JSON")
