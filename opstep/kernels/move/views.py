"""Ops on views of their operands (`plan.viewing`): kernels get them as `Seen`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opstep.runtime.device.launch import Seen
from opstep.runtime.plan.viewing import Views, viewing

_ALIGNED = 16  # bytes that kernels may read at once


def _args(given: Sequence[Any], views: Views) -> list[Any]:
    """What the op's own launches are asked with."""
    results = [views.result] * (len(given) - len(views.operands))
    shown = zip(given, (*views.operands, *results), strict=True)
    return [
        a if a is None or view is None else Seen(a, view.shape, view.start, view.strides)
        for a, view in shown
    ]


def _cpu(*args: Any, views: Views) -> Any:
    return views.op.cpu(*_args(args, views), **dict(views.attrs))


def _cuda(*args: Any, views: Views) -> Any:
    return views.op.cuda(*_args(args, views), **dict(views.attrs))


def _is_taken(*args: Any, views: Views) -> bool:
    """Whether rows are contiguous, and begin where they can be read in wide loads."""
    return all(_rows_fit(a) for a in _args(args, views) if isinstance(a, Seen))


def _rows_fit(a: Seen) -> bool:
    *steps, last = [step if n != 1 else 0 for step, n in zip(a.strides, a.shape, strict=True)]
    starts = [step * a.stored.itemsize for step in (a.start, *steps)]
    return last in (0, 1) and not any(at % _ALIGNED for at in starts)


viewing.cpu = _cpu
viewing.cuda = _cuda
viewing.is_taken = _is_taken
