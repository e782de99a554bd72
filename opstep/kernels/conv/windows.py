"""What convolutions and poolings share: strides, paddings, and how many windows fit.

Padding is two numbers (both ends of the height, both ends of the width) or four: top, left, bottom,
right, as ONNX counts its `pads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType


class Window(NamedTuple):
    """Windows of one axis: `kernel` elements, `dilation` apart; a window begins each `stride`
    elements.
    """

    kernel: Dim
    stride: int
    before: int  # padding
    after: int
    dilation: int

    @property
    def span(self) -> Dim:
        """Elements from a window's first to its last, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def phases(self, size: int) -> dict[int, list[int]]:
        """For each p below `stride`: the kernel places through which elements i of an axis of
        `size` with ``i % stride == p`` are met; those that are met by none are left out.
        """
        met: dict[int, list[int]] = {}
        for place in range(self.kernel):  # pyright: ignore[reportArgumentType] - a number by now
            phase = (place * self.dilation - self.before) % self.stride
            if phase < size:
                met.setdefault(phase, []).append(place)
        return dict(sorted(met.items()))

    def within(self, size: int, out: int) -> Window:
        """The same `out` windows of an axis of `size` without places that are padding in all of
        them, but for one at least: how far padding reaches costs nothing.
        """
        first = max(0, (self.before - (out - 1) * self.stride) // self.dilation)
        end = min(self.kernel, -(-(size + self.before) // self.dilation))  # pyright: ignore[reportArgumentType] - a number by now
        first = min(first, self.kernel - 1)  # pyright: ignore[reportOperatorIssue]
        before = self.before - first * self.dilation
        return self._replace(kernel=max(1, end - first), before=before)

    def count(self, size: Dim, axis: str, ceil_mode: bool = False) -> Dim:
        """How many windows an axis of that size has; raises Mismatch where there is none."""
        padded = size + self.before + self.after
        spare = padded - self.span
        if type(spare) is int and spare < 0:
            raise Mismatch(
                f"the window of {self.span} is larger than the {axis}, {size} "
                f"and {padded - size} of padding",
                0,
            )
        if not ceil_mode:
            return spare // self.stride + 1
        count = (spare + self.stride - 1) // self.stride + 1
        # a window may not begin in the padding behind
        limit = (size + self.before - 1) // self.stride + 1
        if type(count) is int and type(limit) is int:
            return min(count, limit)
        if type(self.span) is int and self.after + self.stride <= self.span:
            return count
        raise Mismatch(
            f"with ceil_mode, whether the last window counts depends on the {axis} {size}",
            "ceil_mode",
            hint="give the dim as a number, or leave out ceil_mode",
        )


def pair(name: str, value: Sequence[int], least: int = 1) -> tuple[int, int]:
    """An attribute of two numbers, for height and width."""
    if len(value) != 2:
        raise Mismatch(f"{name} takes two numbers, for height and width, not {list(value)}", name)
    if min(value) < least:
        raise Mismatch(f"{name} must be at least {least}, not {list(value)}", name)
    return value[0], value[1]


def pair_of_dims(name: str, value) -> None:
    """Checks that an attribute is a height and a width."""
    if len(value) != 2:
        raise Mismatch(f"{name} takes height and width, not {list(value)}", name)
    if any(type(d) is int and d < 1 for d in value):
        raise Mismatch(f"{name} must be at least 1, not {list(value)}", name)


def sides(value: Sequence[int]) -> tuple[int, int, int, int]:
    """Padding as (top, left, bottom, right)."""
    if len(value) not in (2, 4):
        raise Mismatch(
            "padding takes two numbers (height, width) or four (top, left, bottom, right), "
            f"not {list(value)}",
            "padding",
        )
    if min(value) < 0:
        raise Mismatch(f"padding must not be negative: {list(value)}", "padding", hint="use slice")
    top, left, bottom, right = value if len(value) == 4 else (*value, *value)
    return top, left, bottom, right


def windows(kernel, stride, padding, dilation) -> tuple[Window, Window]:
    """Those of the height and of the width; attributes are checked."""
    strides, dilations = pair("stride", stride), pair("dilation", dilation)
    top, left, bottom, right = sides(padding)
    return (
        Window(kernel[0], strides[0], top, bottom, dilations[0]),
        Window(kernel[1], strides[1], left, right, dilations[1]),
    )


def want_images(name: str, x: TensorType, at: int = 0) -> None:
    """Raises Mismatch where x is not [N, C, H, W]."""
    if x.rank != 4:
        raise Mismatch(
            f"{name} takes images [N, C, H, W], not {x}",
            at,
            hint="reshape it to four dims" if x.rank else "",
        )


def padded(x: np.ndarray, rows: Window, columns: Window, value: float = 0) -> np.ndarray:
    """x [N, C, H, W] with its padding, for oracles."""
    widths = ((0, 0), (0, 0), (rows.before, rows.after), (columns.before, columns.after))
    return np.pad(x, widths, constant_values=value)


def taps(x: np.ndarray, rows: Window, columns: Window, out: Sequence[int]):
    """For oracles: each kernel place (r, s) with the elements of x, padded, that it meets, [N, C,
    *out].
    """
    for r in range(rows.kernel):
        for s in range(columns.kernel):
            top, left = r * rows.dilation, s * columns.dilation
            yield (
                (r, s),
                x[
                    ...,
                    top : top + (out[0] - 1) * rows.stride + 1 : rows.stride,
                    left : left + (out[1] - 1) * columns.stride + 1 : columns.stride,
                ],
            )
