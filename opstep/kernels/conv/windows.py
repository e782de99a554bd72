"""What convolutions and poolings share: strides, paddings, and how many windows fit.

Sequences [N, C, W], images [N, C, H, W] and volumes [N, C, D, H, W] have windows of one, two and
three axes. Padding is a number for both ends of each axis, or, as ONNX counts its `pads`, the
numbers before each axis, then those behind each.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.launch import Arg
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


LINE = Window(1, 1, 0, 0, 1)  # of an axis that is not there
_AXES = ("depth", "height", "width")
_COUNTS = ("", "one number", "two numbers", "three numbers", "four", "", "six")
_LAYOUTS = ("", "sequences [N, C, W]", "images [N, C, H, W]", "volumes [N, C, D, H, W]")
_ENDS = (("front", "top", "left")[-n:] + ("back", "bottom", "right")[-n:] for n in range(4))
_SIDES = [", ".join(ends) for ends in _ENDS]


def axes_of(count: int) -> tuple[str, ...]:
    """The names of so many axes of windows."""
    return _AXES[-count:]


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def per_axis(name: str, value: Sequence[int], count: int, least: int = 1) -> tuple[int, ...]:
    """An attribute of a number for each of `count` axes."""
    if len(value) != count:
        raise Mismatch(
            f"{name} takes {_COUNTS[count]}, for {'the ' * (count == 1)}{_listed(axes_of(count))}, "
            f"not {list(value)}",
            name,
        )
    if min(value) < least:
        raise Mismatch(f"{name} must be at least {least}, not {list(value)}", name)
    return tuple(value)


def want_sizes(name: str, value, count: int = 2, least: int = 1) -> None:
    """Checks that an attribute has a size for each of `count` axes."""
    if len(value) != count:
        raise Mismatch(f"{name} takes {_listed(axes_of(count))}, not {list(value)}", name)
    if any(type(d) is int and d < least for d in value):
        raise Mismatch(f"{name} must be at least {least}, not {list(value)}", name)


def sides(value: Sequence[int], count: int) -> tuple[tuple[int, int], ...]:
    """Padding as (before, after) of each of `count` axes."""
    if len(value) not in (count, 2 * count):
        raise Mismatch(
            f"padding takes {_COUNTS[count]} ({', '.join(axes_of(count))}) or "
            f"{_COUNTS[2 * count].replace(' numbers', '')} ({_SIDES[count]}), not {list(value)}",
            "padding",
        )
    if min(value) < 0:
        raise Mismatch(f"padding must not be negative: {list(value)}", "padding", hint="use slice")
    return tuple(zip(value[:count], value[-count:], strict=True))


def windows(kernel, stride, padding, dilation) -> tuple[Window, ...]:
    """Those of each axis; attributes are checked."""
    n = len(kernel)
    strides, dilations = per_axis("stride", stride, n), per_axis("dilation", dilation, n)
    ends = sides(padding, n)
    return tuple(Window(kernel[k], strides[k], *ends[k], dilations[k]) for k in range(n))


def counts(views: Sequence[Window], sizes: Sequence[Dim], ceil_mode: bool = False) -> list[Dim]:
    """How many windows each axis has."""
    names = axes_of(len(views))
    return [v.count(n, axis, ceil_mode) for v, n, axis in zip(views, sizes, names, strict=True)]


def want_images(name: str, x: TensorType, at: int = 0, axes: int = 2) -> None:
    """Raises Mismatch where x is not [N, C] and as many `axes`."""
    if x.rank != 2 + axes:
        dims = ("", "three", "four", "five")[axes]
        raise Mismatch(
            f"{name} takes {_LAYOUTS[axes]}, not {x}",
            at,
            hint=f"reshape it to {dims} dims" if x.rank else "",
        )


def flat(a):
    """An operand [N, C, W] as an image of one row [N, C, 1, W], the same memory; others as they
    are.
    """
    if not isinstance(a, Arg) or a.rank != 3:
        return a
    image = copy(a)  # whatever kind of operand it is to the device
    image.shape = (*a.shape[:2], 1, a.shape[2])
    return image


def padded(x: np.ndarray, views: Sequence[Window], value: float = 0) -> np.ndarray:
    """x [N, C, …] with its padding, for oracles."""
    widths = ((0, 0), (0, 0), *((v.before, v.after) for v in views))
    return np.pad(x, widths, constant_values=value)


def taps(x: np.ndarray, views: Sequence[Window], out: Sequence[int]):
    """For oracles: each kernel place with the elements of x, padded, that it meets."""
    for place in np.ndindex(*(v.kernel for v in views)):  # pyright: ignore[reportArgumentType]
        starts = [p * v.dilation for p, v in zip(place, views, strict=True)]
        cuts = [
            slice(a, a + (n - 1) * v.stride + 1, v.stride)
            for a, n, v in zip(starts, out, views, strict=True)
        ]
        yield place, x[..., *cuts]
