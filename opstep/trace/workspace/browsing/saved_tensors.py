"""Kept tensors while somebody looks at them: expressions over them, their elements read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from opstep.editors.views import HostTensor, Viewed
from opstep.runtime.expressions import ExpressionError, parse
from opstep.runtime.expressions.protocols import OfOneRank
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DTYPES, TensorType
from opstep.runtime.statistics import Statistics
from opstep.trace.workspace.records import TensorRecord
from opstep.trace.workspace.workspace import Workspace

MOST_CACHED = 512 << 20  # bytes of all that are remembered


class TensorCache:
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
                len(self._arrays) > 1 and sum(a.nbytes for a in self._arrays.values()) > MOST_CACHED
            ):
                self._arrays.popitem(last=False)
        return found


class SavedTensor:
    """A tensor of a workspace, of which nothing is read before somebody asks."""

    def __init__(self, scope: SavedScope, record: TensorRecord):
        self._scope = scope
        self._record = record
        self.type = TensorType(DTYPES[record.dtype], record.shape)

    def array(self) -> np.ndarray:
        return self._scope.arrays.elements(self._scope.ws, self._record)

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        return np.asarray(self.array()[index])

    def statistics(self) -> Statistics:
        return HostTensor(self.array()).statistics()


class SavedScope(OfOneRank):
    """Names around a kept tensor: those of tensors that were kept with it; ``w@-29`` is `w` as
    many steps before, if it was kept there, and ``w@"3f2a"`` that of another run. `shown` is the
    tensor itself.
    """

    def __init__(
        self,
        ws: Workspace,
        arrays: TensorCache,
        run: str | None,
        step: int | None,
        shown: TensorRecord | None = None,
    ):
        self.ws = ws
        self.arrays = arrays
        self._run = run
        self._step = step
        self._shown = shown

    def lookup(self, name: str) -> SavedTensor | None:
        if self._shown is not None and name in (self._shown.name, "value"):
            return SavedTensor(
                self, self._shown
            )  # `value`: any name can be kept, not all can be written
        named = [t for t in self.ws.tensors(name) if t.key == self._run]
        exact = [t for t in named if t.step == self._step]
        before = [t for t in named if t.step is None or t.step <= (self._step or 0)]
        found = exact or before  # an input is kept before the first step alone
        return SavedTensor(self, found[-1]) if found else None

    def names(self) -> list[str]:
        return list(dict.fromkeys(t.name for t in self.ws.tensors() if t.key == self._run))

    def relative(self, steps: int) -> SavedScope | None:
        if self._step is None:
            raise InputError("a tensor that was saved by hand belongs to no step")
        step = self._step + steps
        saved = sorted(
            {t.step for t in self.ws.tensors() if t.key == self._run and t.step is not None}
        )
        if step not in saved:
            listed = ", ".join(map(str, saved))
            raise InputError(f"nothing was kept of step {step}: there are {listed}")
        return SavedScope(self.ws, self.arrays, self._run, step)

    def changed(self, changes: int) -> SavedScope:
        raise InputError("a workspace has no versions within a step", hint='w@-1, w@"last:3"')

    def run(self, key: str, step: int | None) -> SavedScope:
        run = self.ws.run(key)
        return SavedScope(self.ws, self.arrays, run.key, run.steps - 1 if step is None else step)

    def load(self, path: str) -> np.ndarray:
        raise InputError("files are not read here: save what they hold with `opstep ws FILE save`")


def find(ws: Workspace, number: int) -> TensorRecord:
    """A tensor by its number in the file."""
    rows = ws.sql("select name from tensors where id = ?", (number,)).rows
    if rows:
        for tensor in ws.tensors(rows[0][0]):
            if tensor.id == number:
                return tensor
    raise InputError("this tensor is gone", hint="refresh the view: its run was removed")


def evaluate(scope: SavedScope, text: str) -> Viewed:
    """The value of an expression over kept tensors, as a tensor. Raises `InputError`."""
    try:
        value: Any = parse(text).evaluate(scope)
    except ExpressionError as error:
        raise InputError(str(error)) from None
    if isinstance(value, SavedTensor):
        return value
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return HostTensor(np.asarray(value))
    raise InputError(f"{text[:80]} is not a tensor")
