"""Expressions that are watched in a Python program."""

from __future__ import annotations

import ast
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

from opstep.frontends.debugging.breakpoints import Breakpoint, unseen

_MISSING, _TENSOR = object(), object()  # in place of a value
_COMPARED = (bool, int, float, complex, str, bytes, type(None))  # by their values


@dataclass
class Watch:
    """An expression in a function of a file. It stops where it has another value; one that computes
    a truth (``loss > 1``), where that turns true.
    """

    point: Breakpoint
    path: str
    lines: frozenset[int]
    first: int  # of the function
    is_place: bool = field(init=False)
    is_new: bool = True  # nobody has looked yet
    error: str = ""  # at the last look
    before: Any = _MISSING
    tensor: Any = None  # a weak reference, where the value is one

    def __post_init__(self) -> None:
        tree = ast.parse(self.point.pattern.strip(), mode="eval").body
        self.is_place = isinstance(tree, ast.Name | ast.Attribute | ast.Subscript)

    def look(self, values: dict[str, Any]) -> str:
        """In words, the change since the last look; "" for none. An expression that cannot be
        evaluated though its names are there is a change, too, once.
        """
        is_new, self.is_new = self.is_new, False
        error, self.error = self.error, ""
        is_truth, again = False, None
        try:
            with unseen():
                now = eval(self.point.pattern, dict(values))
                again = eval(self.point.pattern, dict(values)) if _is_tensor(now) else now
                is_truth = not self.is_place and _is_truth(now)
                now = bool(now) if is_truth else now
        except (NameError, AttributeError, LookupError):  # it is not there
            now = _MISSING
        except Exception as failed:
            now, self.error = _MISSING, f"cannot be evaluated: {type(failed).__name__}: {failed}"
        before, self.before = self.before, now
        held, self.tensor = self.tensor, None
        if _is_tensor(now) and again is not now:  # a part, or computed
            place = _place(now)
            self.before = place if place == _place(again) else now
            is_other = not _is_same(before, self.before)
        elif _is_tensor(now):
            self.before, self.tensor = _TENSOR, weakref.ref(now)
            is_other = held is None or held() is not now
        elif type(now) in _COMPARED and type(now) is type(before):
            is_other = not (now == before or now != now)
        else:
            is_other = now is not before and now is not _MISSING
        if is_new:
            return ""
        if self.error:
            return self.error if self.error != error else ""
        if is_truth:
            return "has become true" if is_other and now else ""
        return "has another value" if is_other else ""


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("torch.bool", "bool")


def _place(t: Any) -> tuple[Any, ...]:
    """Of a tensor's elements in memory, and how often they were written."""
    where = t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride()
    return (*where, t.dtype, t._version)


def _is_same(before: Any, now: Any) -> bool:
    """Whether two places, or two tensors' elements, are the same; NaN is NaN."""
    if not (_is_tensor(before) and _is_tensor(now)):
        return type(before) is type(now) and not _is_tensor(now) and before == now
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    return bool(((before == now) | ((before != before) & (now != now))).all())


def _is_tensor(value: Any) -> bool:
    return hasattr(sys.modules.get("torch"), "Tensor") and isinstance(
        value, sys.modules["torch"].Tensor
    )
