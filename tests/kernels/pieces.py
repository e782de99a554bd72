"""Runs an op on the CPU with every launch's range cut into odd pieces, in any order, on two lanes.

What comes out must have the bits of a plain run: threads cut ranges as it suits them. Working
memory is for both lanes, however small the range: below which size one lane takes it all is a
matter of speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from unittest import mock

import numpy as np

from opstep.runtime.device.cpu import native
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.ir.verified import Application
from opstep.runtime.plan.plan import Step

LANES = 2
ZONE = 256  # bytes around each buffer, which keep their pattern unless a kernel strays
PATTERN = 0xA5A5A5A5_A5A5A5A5
_device = CpuDevice(LANES)
_libm = ctypes.CDLL("libm.so.6")


class Guarded:
    """Device memory between two zones that must stay as they are; full of a pattern of 8 bytes."""

    def __init__(self, nbytes: int, content: np.ndarray | None = None, pattern: int = PATTERN):
        whole = -(-nbytes // 8) * 8 + 2 * ZONE
        self.memory = _device.alloc(whole)
        self.memory.bytes.view(np.uint64)[...] = pattern
        self.before = self.memory.bytes.tobytes()
        self.nbytes = nbytes
        if content is not None and nbytes:
            self.inside[...] = np.ascontiguousarray(content).reshape(-1).view(np.uint8)

    @property
    def address(self) -> int:
        return self.memory.address + ZONE

    @property
    def inside(self) -> np.ndarray:
        return self.memory.bytes[ZONE : ZONE + self.nbytes]

    def assert_intact(self) -> None:
        after, end = self.memory.bytes.tobytes(), ZONE + self.nbytes
        same = after[:ZONE] == self.before[:ZONE] and after[end:] == self.before[end:]
        assert same, "a kernel wrote outside of its buffers"


class Exceptions(list[int]):
    """The floating-point exceptions that each launch raised, as in the processor's MXCSR: 1 where
    an operation was invalid, which a signalling NaN makes it, 2 where an operand was subnormal.
    """

    _CLEAR = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc on x86-64

    def __enter__(self):
        _libm.fesetenv(self._CLEAR)
        return self

    def __exit__(self, *_):
        environment = (ctypes.c_uint32 * 8)()  # fenv_t: 28 bytes of the x87's, then MXCSR
        _libm.fegetenv(environment)
        self.append(environment[7] & 3)


def run(
    application: Application,
    operands: Sequence[np.ndarray],
    rng: np.random.Generator,
    pattern: int | None = None,
) -> tuple[list[np.ndarray], list[int]]:
    """The op's results, and the exceptions of its launches. Memory is filled with the payload
    before, as in a debug run, or with a pattern.
    """
    op, resolved = application.op, application.resolved
    assert op is not None
    stored: list[TensorType | None] = [TensorType(dtype_of(a.dtype), a.shape) for a in operands]
    stored += [None] * (len(resolved.operands) - len(stored))
    statement = Apply((), Name(op.name, NOWHERE), ())
    step = Step(op, (), (), resolved.operands, dict(application.attrs), 0, statement)
    with mock.patch.object(native, "lanes_of", lambda units, grain, lanes: lanes):
        launches, workspace = _device.prepare(step, (*stored, *resolved.results))
    around = PATTERN if pattern is None else pattern
    sources = [Guarded(a.nbytes, a, around) for a in operands]
    targets = [Guarded(int(t.nbytes), None, around) for t in resolved.results]
    scratch = Guarded(workspace, None, around)
    for target, t in zip(targets, resolved.results, strict=True):
        if pattern is None:
            _device.fill(target.memory, ZONE, target.nbytes, t.dtype)()
    addresses = [a.address for a in sources]
    addresses += [0] * (len(stored) - len(addresses))
    addresses += [m.address for m in targets]
    exceptions = Exceptions()
    for bound in _device.bind(launches, addresses, scratch.address):
        entry, words, units, _ = bound.row
        with exceptions:
            for lo, hi in cuts(units, rng):
                native.call(entry, words, lo, hi, int(rng.integers(LANES)))
    for buffer in (*sources, *targets, scratch):
        buffer.assert_intact()
    for source, given in zip(sources, operands, strict=True):
        assert source.inside.tobytes() == given.tobytes(), "a kernel wrote to an operand"
    results = [
        _device.view(m.memory, ZONE, t).copy()
        for m, t in zip(targets, resolved.results, strict=True)
    ]
    return results, exceptions


def cuts(units: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """0..units in up to six pieces, shuffled."""
    inside = np.unique(rng.integers(0, units + 1, min(units, 5)))
    limits = np.unique([0, *inside, units])
    pieces = list(zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True))
    rng.shuffle(pieces)
    return [(int(lo), int(hi)) for lo, hi in pieces]
