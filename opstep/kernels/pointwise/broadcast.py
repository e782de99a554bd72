"""Broadcasting by NumPy's rules: shapes for the verifier, strides for kernels.

Sizes are compared from the last axis; they must be equal, or one of them 1 (or absent). A symbol
equals only itself: ``N`` and ``8`` do not broadcast, even if N turns out to be 8 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from opstep.runtime.device.launch import Arg, Held, Seen
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType


def broadcast_shape(*operands: TensorType) -> tuple[Dim, ...]:
    """The shape that all operands broadcast to; raises Mismatch that names the two sizes."""
    rank = max(t.rank for t in operands)
    shape: list[Dim] = [1] * rank
    owner = [0] * rank  # which operand gave the size
    for k, t in enumerate(operands):
        for axis, size in enumerate(t.shape, rank - t.rank):
            expected = shape[axis]
            if expected == 1:
                shape[axis], owner[axis] = size, k
            elif size not in (1, expected):
                _refuse(operands, owner[axis], k, expected, size, axis - rank)
    return tuple(shape)


def _refuse(operands, first: int, second: int, expected: Dim, size: Dim, axis: int):
    a, b = operands[first], operands[second]
    raise Mismatch(
        f"{a} and {b} do not broadcast: axis {axis} has {expected} in one and {size} in the other",
        second,
        hint="sizes must be equal or 1, counted from the last axis; reshape one of them",
    )


class Layout(NamedTuple):
    """A result's shape with neighbouring axes merged, and how each operand steps along what is
    left.

    `shape` has at least two axes; `strides[k]` are operand k's, in elements, 0 where it is
    broadcast, from its element `starts[k]` on.
    """

    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]

    def own(self) -> tuple[int, ...]:
        """The strides of the result."""
        steps, step = [], 1
        for n in reversed(self.shape):
            steps.append(step if n != 1 else 0)
            step *= n
        return tuple(reversed(steps))


def collapse(
    shape: Sequence[int], operands: Sequence[Arg], per_channel: Sequence[int] = ()
) -> Layout:
    """Merges axes of a row-major result wherever every operand (broadcast to it) stays regular.
    Those that are `per_channel` have an element for each place along axis 1.
    """
    strides = [strides_along(a, len(shape), k in per_channel) for k, a in enumerate(operands)]
    starts = tuple(a.start if isinstance(a, Seen) else 0 for a in operands)
    return merged(shape, strides, starts)


def strides_along(a: Arg | Held, rank: int, per_channel: bool = False) -> list[int]:
    """How an operand steps along the axes of a result."""
    inner = rank - 2 if per_channel else 0
    if isinstance(a, Seen):
        own = [step if n != 1 else 0 for step, n in zip(a.strides, a.shape, strict=True)]
        own = [0] * (rank - inner - a.rank) + own
    else:
        own = broadcast_strides(a.shape, rank - inner)
    return own + [0] * inner


def merged(shape: Sequence[int], strides: Sequence[Sequence[int]], starts: Sequence[int]) -> Layout:
    """The layout of operands that step so along a result of that shape.

    >>> merged((2, 3, 4, 5), [(60, 20, 5, 1), (0, 1, 0, 0)], (0, 0))
    Layout(shape=(2, 3, 20), strides=((60, 20, 1), (0, 1, 0)), starts=(0, 0))
    """
    axes = [k for k, n in enumerate(shape) if n != 1]
    groups: list[list[int]] = [[axes[0]]] if axes else []
    for outer, inner in pairwise(axes):
        if all(s[outer] == s[inner] * shape[inner] for s in strides):
            groups[-1].append(inner)
        else:
            groups.append([inner])
    sizes = [1] * (2 - len(groups))
    for group in groups:
        size = 1
        for axis in group:
            size *= shape[axis]
        sizes.append(size)
    pad = (0,) * (2 - len(groups))
    steps = tuple(pad + tuple(s[group[-1]] for group in groups) for s in strides)
    return Layout(tuple(sizes), steps, tuple(starts))


def broadcast_strides(shape: Sequence[int], rank: int) -> list[int]:
    """Row-major strides of a tensor seen under a rank at least its own; 0 along broadcast axes."""
    strides = [0] * rank
    step = 1
    for k in range(1, len(shape) + 1):
        if shape[-k] != 1:
            strides[-k] = step
        step *= shape[-k]
    return strides


def locate(index, sizes, strides, count):
    """In a kernel: the offset of row-major position `index` under the first `count` axes of a
    layout.
    """
    offset = 0
    for back in range(1, count):
        axis = count - back
        size = sizes[axis]
        rest = index // size
        offset += (index - rest * size) * strides[axis]
        index = rest
    return offset + index * strides[0]
