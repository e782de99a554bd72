"""The arguments of a request, checked: any client can send anything."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.store import PATIENCE_S
from opstep.trace.workspace.workspace import Workspace

MOST_TEXT = 1 << 20  # characters of a text

Params = Mapping[str, Any]


def text(params: Params, name: str, default: str | None = None) -> str:
    """A text; it has to be there where there is no default."""
    found = params.get(name, default)
    if not isinstance(found, str) or len(found) > MOST_TEXT:
        raise InputError(f"{name}: expected a text")
    if not _is_unicode(found):
        raise InputError(f"{name}: it has half a character in it")
    return found


def _is_unicode(text: str) -> bool:
    """Whether it can be written: JSON can tell of one half of a pair of surrogates alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def number(
    params: Params, name: str, default: int | None = None, low: int = 0, high: int = 1 << 53
) -> int:
    """A whole number between two bounds, brought into them; it has to be there where there is no
    default.
    """
    found = params.get(name, default)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        raise InputError(f"{name}: expected a whole number")
    return max(low, min(found, high))


def real(params: Params, name: str) -> float | None:
    """A number that f64 can hold; None where there is none."""
    found = params.get(name)
    if found is None:
        return None
    try:
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            return float(found)
    except OverflowError:
        pass
    raise InputError(f"{name}: expected a number that f64 can hold")


def numbers(params: Params, name: str) -> list[int]:
    """A list of whole numbers, none where there is none."""
    found = params.get(name, [])
    if not isinstance(found, list) or not all(type(n) is int for n in found):
        raise InputError(f"{name}: expected a list of whole numbers")
    return found


def path_of(params: Params) -> Path:
    """The file that the request is about."""
    found = text(params, "path")
    if not found or "\0" in found:
        raise InputError("path: expected the path of a file")
    return Path(found)


def workspace(params: Params) -> AbstractContextManager[Workspace]:
    """The workspace at ``path``, as it is: it is never changed, nor brought up to date."""
    return Workspace(path_of(params), update=False, patience=PATIENCE_S)


def run_of(params: Params) -> str:
    """The key or the number of a run."""
    found = params.get("run")
    if isinstance(found, bool) or not isinstance(found, (int, str)) or not _is_unicode(str(found)):
        raise InputError("run: expected the key or the number of a run")
    return str(found)
