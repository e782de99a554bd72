"""What the child is to run, in a file: the op, its attributes, its operands' bytes, which thread.

The file is written by one process for another of the same user, in a folder that nobody else may
read. It holds numbers, names and bytes; nothing in it is unpickled.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime.debugger.kernel.launches import KernelLaunch, Three
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import DTYPES, DType, TensorType
from opstep.runtime.plan.plan import Step

LARGEST = 4 << 30  # bytes of operands


@dataclass(frozen=True)
class Job:
    """One thread of one launch, or a unit of one of the CPU's. `types`: of the operands as they are
    stored, then of the results; `arrays`: the operands, None for one that is absent. `element`: a
    result and the number of one of its elements; then it is the thread that writes that one.
    """

    step: Step
    types: tuple[TensorType | None, ...]
    arrays: Sequence[np.ndarray | None]
    launch: KernelLaunch
    arch: str
    block: Three = (0, 0, 0)
    thread: Three = (0, 0, 0)
    unit: int = 0
    every: bool = False  # other threads of the block can be stopped, too
    element: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """What runs. Which thread writes the element, the child finds out."""
        if self.element is None:
            return self.launch.label(self.block, self.thread, self.unit)
        name = self.launch.label().partition(", block")[0].partition(", work item")[0]
        return f"{name}, the thread that writes {self._element_text()}"

    def _element_text(self) -> str:
        """The element as it is written: ``[3, 17]``"""
        assert self.element is not None
        result, position = self.element
        t = self.types[len(self.step.operand_types) + result]
        assert t is not None
        index = np.unravel_index(position, t.shape)  # pyright: ignore[reportArgumentType, reportCallIssue]
        name = f" of result {result}" if result else ""
        return f"[{', '.join(str(int(i)) for i in index)}]{name}"

    def check(self) -> None:
        """Raises `InputError` for what cannot be run."""
        complaint = self.launch.complaint(self.block, self.thread, self.unit) or self._missing()
        nbytes = sum(a.nbytes for a in self.arrays if a is not None)
        if nbytes > LARGEST:
            complaint = f"operands of {nbytes >> 30} GiB are too large for it"
        if complaint:
            raise InputError(
                f"{self.launch.label(self.block, self.thread, self.unit)}: {complaint}"
            )
        op = self.step.op
        if op.__module__ == "__main__":
            hint = "declare it in a module, which the child can import"
            raise InputError(f"op {op.name} is declared in a script", hint=hint)

    def _missing(self) -> str:
        """What is wrong with the element, if anything is."""
        if self.element is None:
            return ""
        result, index = self.element
        results = self.types[len(self.step.operand_types) :]
        if not 0 <= result < len(results):
            return f"the op has {len(results)} results; there is no {result}"
        size: Any = getattr(results[result], "size", 0)
        return "" if 0 <= index < size else f"the result has {size:,} elements; there is no {index}"

    def write(self, path: Path) -> None:
        op, launch = self.step.op, self.launch
        record = {
            "op": op.name,
            "module": op.__module__,
            "attrs": {k: _plain(v) for k, v in self.step.attrs.items()},
            "seen": [_plain_type(t) for t in self.step.operand_types],
            "types": [_plain_type(t) for t in self.types],
            "target": launch.target,
            "number": launch.number,
            "arch": self.arch,
            "block": self.block,
            "thread": self.thread,
            "unit": self.unit,
            "every": self.every,
            "element": self.element,
            "label": self.label,
            "folders": sys.path,
        }
        arrays: dict[str, Any] = {
            f"operand{k}": _bytes(a) for k, a in enumerate(self.arrays) if a is not None
        }
        np.savez(path, job=np.frombuffer(json.dumps(record).encode(), np.uint8), **arrays)


class Order:
    """A job as the child finds it. `memory`: the bytes of the operands, None for absent ones."""

    def __init__(self, path: Path):
        with np.load(path, allow_pickle=False) as file:
            record = json.loads(file["job"].tobytes())
            self.types = tuple(_type(t) for t in record["types"])
            seen = tuple(_type(t) for t in record["seen"])
            self.memory = [file.get(f"operand{k}") for k in range(len(seen))]
        importlib.import_module(record["module"])  # it registers the op
        op = OPS[record["op"]]
        attrs = {k: _attr(v) for k, v in record["attrs"].items()}
        self.step = Step(op, (), (), seen, attrs, 0, Apply((), Name(op.name, NOWHERE), ()))
        self.target: str = record["target"]
        self.number: int = record["number"]
        self.arch: str = record["arch"]
        self.block: Three = tuple(record["block"])
        self.thread: Three = tuple(record["thread"])
        self.unit: int = record["unit"]
        self.every: bool = record["every"]
        self.element: list[int] | None = record["element"]
        self.label: str = record["label"]

    @property
    def results(self) -> list[TensorType]:
        """Types of the results."""
        return [t for t in self.types[len(self.step.operand_types) :] if t is not None]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _plain_type(t: TensorType | None) -> Any:
    return None if t is None else [t.dtype.name, list(t.shape)]


def _type(record: Any) -> TensorType | None:
    return None if record is None else TensorType(DTYPES[record[0]], tuple(record[1]))


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return {"dtype": value.name}
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def _attr(record: Any) -> Any:
    if isinstance(record, dict):
        return DTYPES[record["dtype"]]
    return tuple(_attr(v) for v in record) if isinstance(record, list) else record
