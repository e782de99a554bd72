"""Where an element stands: row-major positions turned into offsets, without 64-bit division."""

from __future__ import annotations

from opstep.runtime.device.cuda.compiling.names import div32

LIMIT = 2**32  # of what `div32` divides


def floor_quotient(a, b):
    """In place of `div32` where numbers are larger."""
    return a // b


def spot(index, sizes, strides, count):
    """The offset of row-major position `index`, below 2**32, over `count` axes."""
    place = 0
    for back in range(1, count):
        axis = count - back
        above = div32(index, sizes[axis])
        place += (index - above * sizes[axis]) * strides[axis]
        index = above
    return place + index * strides[0]
