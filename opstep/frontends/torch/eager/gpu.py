"""Flags of a GPU's ops: read steps after they were raised, without a wait, and what they mean.

Each op whose result may be bad has a look queued on its stream. The native watcher logs which
results an op was computed from. So the births are found when flags are read: a result that is bad,
while none that it was computed from is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from opstep.frontends.torch.eager.births import BORN, CAME, WRITTEN, Birth, Births, in_parameter
from opstep.frontends.torch.eager.harm import (
    FAILED,
    GRADIENT,
    LOSS,
    PARAMETER,
    READ,
    RESULT,
    SHOWN,
    TESTED,
)
from opstep.frontends.torch.eager.places import Node, Place, calls

FLAGS = 1 << 15  # results whose flags fit
READ_AT = 1 << 9  # results after which flags are read at the end of a step: reading has its cost
HANDED = "a tensor that is copied to the host"
# By the number that the native watcher knows.
KINDS = (LOSS, READ, GRADIENT, PARAMETER, RESULT, FAILED, SHOWN, HANDED, TESTED)
_SOURCE = Path(__file__).parent / "native" / "look.cu"


class _Result(NamedTuple):
    """As the native watcher logs it."""

    op: str
    node: int
    node_thread: int
    node_name: str
    module: int
    stack: int
    is_updating: int
    is_looked_at: int
    is_parameter: int
    literal: int
    step: int
    operands: tuple[int, ...]


class _Segment(NamedTuple):
    """A part of the log, with flags that are on their way to the host."""

    start: int
    results: list[_Result]
    sinks: list[tuple[int, int, int, int, int, int]]
    flags: list[torch.Tensor]
    done: list[Any]
    scaled: bool


class Gpus:
    """`module`: the native watcher's."""

    def __init__(self, module: Any, births: Births, sinks: Any):
        self._module = module
        self._births = births
        self._sinks = sinks
        self._devices: dict[int, _Device] = {}
        self._pending: list[_Segment] = []
        self._bad: dict[int, tuple[int, list[Birth]]] = {}  # by number of a result
        self.handed: list[Birth] = []  # of what was copied to the host last

    def set_up(self, device: int) -> None:
        """A device is met."""
        with torch.no_grad():
            self._devices[device] = one = _Device(device)
        self._module.set_gpu(*one.words())

    def full(self, device: int) -> None:
        """There are no more flags for this step."""
        self.end(wait=True)

    def came_from_host(self, storage: int) -> None:
        """A tensor of the host that is bad is an operand of a GPU's op."""
        births = list(self._births.of(storage))
        if births:
            self._bad[-storage] = max(b.level for b in births), births

    def forget(self) -> None:
        for device in self._devices:
            self._module.set_gpu(device, 0, 0, 0, 0)
        self._devices.clear()
        self._pending.clear()
        self._bad.clear()

    def step_done(self) -> None:
        """A step of an optimizer is over."""
        if self._devices and self._module.step_done() >= READ_AT:
            self.end()

    def end(self, wait: bool = False) -> None:
        """Flags are copied, and those read that were copied before; with `wait` all of them."""
        if not self._devices:
            return
        before = self._module.within(True)
        try:
            with torch.no_grad():
                self._end(wait)
        finally:
            self._module.within(before)

    def _end(self, wait: bool) -> None:
        start, results, sinks = self._module.take_log()
        if results or sinks:
            copies = [d.take(len(results)) for d in self._devices.values()]
            for d in self._devices.values():
                self._module.set_gpu(*d.words())
            found = [_Result(*r) for r in results]
            flags, done = [f for f, _ in copies], [e for _, e in copies]
            births = self._births
            self._pending.append(_Segment(start, found, sinks, flags, done, births.scaled))
        while self._pending and (wait or len(self._pending) > 1):
            self._read(self._pending.pop(0))

    def _read(self, segment: _Segment) -> None:
        for event in segment.done:
            event.synchronize()
        flags = np.max([f.numpy()[: len(segment.results)] for f in segment.flags], axis=0)
        sinks = list(segment.sinks)
        if not (flags.any() or self._bad):
            return
        for k, result in enumerate(segment.results):
            level = int(flags[k])
            operands = [self._bad[n] for n in result.operands if n in self._bad]
            if not result.is_looked_at:  # it moves elements, or what it gives is asked for later
                level = max((one for one, _ in operands), default=0)
            if level:
                births = self._births_of(segment, result, level, operands)
                self._bad[segment.start + k] = level, births
        for number, kind, label, stack, module, ops in sinks:
            other = KINDS[kind] == LOSS and not calls(self._module.frames(stack), "_make_grads")
            if number in self._bad and not other:
                level, births = self._bad[number]
                if KINDS[kind] == HANDED:
                    self.handed = births
                    continue
                place = Place(self._module.frames(stack), module)
                if KINDS[kind] == TESTED:
                    self._sinks.test(births, level, place, ops, late=True)
                    continue
                if KINDS[kind] == PARAMETER:
                    in_parameter(births)
                self._sinks.judge(births, level, KINDS[kind], str(label), place, late=True)
        oldest = segment.start - FLAGS * 4
        for number in [n for n in self._bad if 0 <= n < oldest]:
            del self._bad[number]

    def _births_of(
        self, segment: _Segment, result: _Result, level: int,
        operands: Sequence[tuple[int, list[Birth]]],
    ) -> list[Birth]:  # fmt: skip
        """Those of its operands; its own where it is worse than all of them."""
        births = list(dict.fromkeys(b for _, some in operands for b in some))
        worst = max((one for one, _ in operands), default=0)
        if worst < level:
            node = Node(result.node, result.node_thread, result.node_name)
            stack = self._module.frames(result.stack)
            # Of an optimizer's ops none is looked at.
            updated = not result.op and calls(stack, "_after_step")
            place = Place(stack, result.module, node, bool(result.is_updating) or updated)
            how = WRITTEN if result.literal else BORN if result.op or updated else CAME
            self._births.count += 1
            name = result.op.partition("::")[2] or ("the optimizer" if updated else "")
            birth = Birth(self._births.count, level, how, name, place, result.step)
            birth.causes = births
            birth.scaled = segment.scaled and place.phase == "backward"
            birth.made = self._births.made_by(place)
            if how == BORN:
                self._births.on_birth(birth)
            births.append(birth)
        if result.is_parameter:
            in_parameter(births)
        return births


class _Device:
    """The kernel and the flags of one."""

    def __init__(self, index: int):
        self.index = index
        with torch.cuda.device(index):
            compile_kernel: Any = torch.cuda._compile_kernel  # pyright: ignore
            self._kernel = compile_kernel(_SOURCE.read_text(), "opstep_look")
            self._flags = [torch.zeros(FLAGS, dtype=torch.int32, device="cuda") for _ in range(2)]
        self._copies = [torch.zeros(FLAGS, dtype=torch.int32, pin_memory=True) for _ in range(3)]
        self._host = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._turn = 0

    def words(self) -> tuple[int, int, int, int, int]:
        """As the native watcher takes them."""
        flags = self._flags[self._turn % 2]
        function = self._kernel.func.value
        return self.index, function, flags.data_ptr(), FLAGS, self._host.data_ptr()

    def take(self, count: int) -> tuple[torch.Tensor, Any]:
        """The first flags, on their way to the host, and an event after that; then others are in
        use. Ops may have run on any stream.
        """
        flags, copy = self._flags[self._turn % 2], self._copies[self._turn % 3]
        self._turn += 1
        with torch.cuda.device(self.index):
            copy[:count].copy_(flags[:count], non_blocking=True)
            flags[:count].zero_()
            event = torch.cuda.Event()
            event.record()
        return copy, event
