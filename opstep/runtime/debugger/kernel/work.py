"""What the child does with a job: the launches before the wanted one, then the wanted block."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime.debugger.kernel.block import run_block, run_unit
from opstep.runtime.debugger.kernel.job import Order
from opstep.runtime.debugger.kernel.launches import kernel_launches, lowered
from opstep.runtime.debugger.kernel.stopping import Stopping
from opstep.runtime.debugger.kernel.writers import writer_of
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.types import TensorType

SHOWN = 4  # elements of a result that are told


class Work:
    """`prepare`, then `run` with a debugger of Python attached."""

    def __init__(self, path: Path):
        self.order = Order(path)
        self.folder = path.parent

    def prepare(self) -> None:
        """Memory as it is before the wanted launch; what came before it has run."""
        order = self.order
        self.launches, size = lowered(order.step, order.types, order.target, order.arch)
        self.memory = [None if m is None else m.copy() for m in order.memory]
        self.memory += [_filled(t) for t in order.results]
        self.workspace = np.full(size + 8, 0xFF, np.uint8)
        for launch in self.launches[: order.number]:
            if order.target == "cpu":
                units = range(launch.words[-1])
                run_unit(launch, self.memory, self.workspace, units)
            else:
                simulator.run(launch, self.memory, self.workspace)

        if order.element is not None:
            self._find(*order.element)

    def _find(self, result: int, index: int) -> None:
        """Makes the thread that writes an element the wanted one. Raises `NotFound`."""
        order, launch = self.order, self.launch
        t = order.results[result]
        at = len(order.memory) + result
        arguments = (order.target, launch, self.memory, self.workspace)
        found = writer_of(*arguments, at, index * t.dtype.itemsize, len(order.memory))
        order.block, order.thread, order.unit = found
        launches = kernel_launches(order.step, order.types, order.target, order.arch)
        order.label = launches[order.number].label(*found)

    @property
    def launch(self) -> Prepared:
        return self.launches[self.order.number]

    def run(self) -> None:
        """The wanted block; it stops at the kernel's first line in the wanted thread."""
        order, arguments = self.order, (self.launch, self.memory, self.workspace)
        print(f"{order.label}: runs as Python. Its end tells what it wrote.", flush=True)
        if order.target == "cpu":
            units = range(order.unit, order.unit + 1)
            of_its_own = partial(run_unit, *arguments, units, Stopping(), self.folder)
            thread = threading.Thread(target=of_its_own, name=f"work item {order.unit}")
            thread.start()
            thread.join()
        else:
            run_block(*arguments, order.block, order.thread, Stopping(), order.every, self.folder)
        print(f"{order.label}: done. {self._written_text()}", flush=True)

    def _written_text(self) -> str:
        """Which elements of the results the block wrote."""
        texts = []
        results: Any = self.memory[len(self.order.memory) :]  # they are never absent
        for k, (t, found) in enumerate(zip(self.order.results, results, strict=True)):
            mark = payload(t.dtype)
            places = np.flatnonzero(found.view(mark.dtype) != mark)
            values = found.view(t.dtype.numpy)[places[:SHOWN]]
            shown = ", ".join(f"[{i}] = {v}" for i, v in zip(places, values, strict=False))
            more = ", …" if len(places) > SHOWN else ""
            texts.append(
                f"Result {k}: {len(places):,} of {t.size:,} elements written {shown}{more}"
            )
        return "; ".join(texts)


def _filled(t: TensorType) -> np.ndarray:
    """The bytes of a result as debug memory has them before they are written."""
    size: Any = t.size  # concrete here
    return np.full(size, payload(t.dtype)).view(np.uint8)
