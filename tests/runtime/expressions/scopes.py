"""Tensors by name for tests of expressions: in steps, in runs of a workspace, in files."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.runtime.device.cpu.device import statistics_of
from opstep.runtime.expressions import ExpressionError, parse
from opstep.runtime.expressions.protocols import OfOneRank
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType, dtype_of


class Handle:
    def __init__(self, array, filled=False):
        self._array = np.asarray(array)
        self.type = TensorType(dtype_of(self._array.dtype), self._array.shape)
        self.filled = filled
        self.read = 0

    def array(self):
        self.read += self._array.size
        return self._array

    def part(self, index):
        return self._array[index]

    def statistics(self):
        return statistics_of(np.ascontiguousarray(self._array), self.filled)


class Scope(OfOneRank):
    """Tensors by name, in steps: the last one is here."""

    def __init__(self, *steps, runs=None, files=None):
        self.steps = [{k: Handle(v) for k, v in s.items()} for s in steps]
        self.runs = runs or {}
        self.files = files or {}

    def lookup(self, name):
        return self.steps[-1].get(name)

    def names(self):
        return list(self.steps[-1])

    def relative(self, steps):
        at = len(self.steps) - 1 + steps
        if not 0 <= at < len(self.steps):
            return None
        there = Scope()
        there.steps, there.runs, there.files = self.steps[: at + 1], self.runs, self.files
        return there

    def hint(self, name):
        return ""

    def changed(self, changes):
        return Scope({})

    def run(self, key, step):
        return self.runs.get((key, step))

    def load(self, path):
        if path not in self.files:
            raise InputError(f"{path} is not below here", hint="only files below it are read")
        return self.files[path]


def value(text, **arrays):
    found = parse(text).evaluate(Scope(arrays))
    return found.array() if isinstance(found, Handle) else found


def failure(text, scope=None, **arrays):
    with pytest.raises(ExpressionError) as caught:
        parse(text).evaluate(scope or Scope(arrays))
    return caught.value
