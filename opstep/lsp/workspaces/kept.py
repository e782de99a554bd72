"""Elements of kept tensors, while somebody looks at them: read and checked once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from math import prod
from typing import Any

import numpy as np

from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.records import TensorRecord
from opstep.trace.workspace.workspace import Workspace

MOST_KEPT = 512 << 20  # bytes of all that are remembered


class KeptTensors:
    """Arrays by the digest of their bytes; those that were looked at last stay."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def elements(self, ws: Workspace, tensor: TensorRecord) -> np.ndarray:
        """All elements. Raises `InputError` where they are damaged."""
        key = f"{tensor.digest} {tensor.type}"
        with self._lock:
            found = self._arrays.get(key)
            if found is not None:
                self._arrays.move_to_end(key)
                return found
        found = ws.elements(tensor)
        with self._lock:
            self._arrays[key] = found
            while (
                len(self._arrays) > 1 and sum(a.nbytes for a in self._arrays.values()) > MOST_KEPT
            ):
                self._arrays.popitem(last=False)
        return found


def find(ws: Workspace, reference: int | str) -> TensorRecord:
    """A tensor by its number in the file, or as `Workspace.tensor` takes it."""
    if isinstance(reference, str):
        return ws.tensor(reference)
    rows = ws.sql("select name, run, step from tensors where id = ?", (reference,)).rows
    if rows:
        for tensor in ws.tensors(rows[0][0]):
            if tensor.id == reference:
                return tensor
    raise InputError("this tensor is gone", hint="refresh the view: its run was removed")


def part(array: np.ndarray, index: list[Any]) -> np.ndarray:
    """A part by axis, missing axes whole: a number, or ``[start, stop, step]``."""
    if len(index) > array.ndim:
        raise InputError(f"index: the tensor has {array.ndim} axes")
    chosen: list[int | slice] = []
    for axis, each in enumerate(index):
        size = array.shape[axis]
        if type(each) is int:
            if not -size <= each < size:
                raise InputError(f"index: axis {axis} has {size} elements")
            chosen.append(each)
        elif (
            isinstance(each, list)
            and 2 <= len(each) <= 3
            and all(type(n) is int for n in each)
            and (len(each) == 2 or each[2] > 0)
        ):
            chosen.append(slice(*each))
        else:
            raise InputError("index: expected numbers and [start, stop, step]")
    return array[tuple(chosen)]


def strides(shape: tuple[int, ...], most: int | None) -> list[int]:
    """Steps along each axis so that at most so many elements are left; the longest axis is thinned
    out first.
    """
    steps, sizes = [1] * len(shape), list(shape)
    while most is not None and prod(sizes) > most:
        k = sizes.index(max(sizes))
        steps[k] *= 2
        sizes[k] = -(-shape[k] // steps[k])
    return steps
