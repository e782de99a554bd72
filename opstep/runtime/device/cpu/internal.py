"""CPU kernels of the ops that no program names (see `plan.internal`)."""

from __future__ import annotations

from opstep.runtime.device.cpu.statistics import launches
from opstep.runtime.device.flagging import raiser, raiser_at
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.plan.internal import status_behind, takes_effect


def update_unless_failed(value, status, tensor, lo, hi):
    if takes_effect(status[0]):
        for i in range(lo, hi):
            tensor[i] = value[i]


def note_failure(condition, status, result, code, size, lo, hi):
    for i in range(size):
        result[0] = status_behind(status[0], condition[i], code)


def copy(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i]


def _update(value: Arg, status: Arg, tensor: Arg) -> Launch:
    return Launch(update_unless_failed, value, status, tensor, units=value.size)


def _assert(condition: Arg, status: Arg, result: Arg, *, code: int, message: str) -> Launch:
    return Launch(note_failure, condition, status, result, code, condition.size, units=1)


def _snapshot(x: Arg, y: Arg) -> Launch:
    return Launch(copy, x, y, units=x.size)


def _flag(x: Arg, flags: Arg) -> Launch:
    return Launch(raiser(x.dtype), x, flags, units=x.size)


def _flag_several(*args: Arg, rows: tuple[int, ...]) -> list[Launch]:
    *xs, flags = args
    return [
        Launch(raiser_at(x.dtype), x, flags, row, units=x.size)
        for x, row in zip(xs, rows, strict=False)
    ]


CPU = {
    "flag": _flag,
    "flag_several": _flag_several,
    "update": _update,
    "assert": _assert,
    "snapshot": _snapshot,
    "statistics": launches,
}
