"""Work that takes a while on a GPU and does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opstep.runtime.device.cuda.driver.launching import work_of
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.launch import Grid, Scratch
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.types import TensorType, i64
from opstep.runtime.plan.internal import snapshot
from opstep.runtime.plan.plan import Step

if TYPE_CHECKING:
    from opstep.runtime.device.cuda.device import CudaDevice

TURN_S = 16e-9  # of the loop below, about: six dependent operations
LENGTHS = 32  # different ones; others are rounded to them
STEP_S = 100e-6

_delays: dict[int, tuple[Any, list[Callable[[int], None]]]] = {}  # by GPU


def turn_over(word, turns):
    """Shifts that no compiler sees the end of."""
    bits = word[0]
    for _ in range(turns):
        bits ^= bits << 13
        bits ^= bits >> 7
        bits ^= bits << 17
    word[0] = bits


def spin(device: CudaDevice, seconds: float) -> Callable[[int], None]:
    """Keeps a stream busy for about so long; to 0.1 ms, up to 3.2 ms."""
    ordinal = device.gpu.ordinal
    if ordinal not in _delays:
        memory = device.alloc(8 * LENGTHS, "delays")
        _delays[ordinal] = memory, [_work(device, memory.address, k + 1) for k in range(LENGTHS)]
    return _delays[ordinal][1][min(int(seconds / STEP_S), LENGTHS - 1)]


def _work(device: CudaDevice, address: int, length: int) -> Callable[[int], None]:
    t = TensorType(i64, (1,))
    step = Step(snapshot, (), (), (t,), {}, 0, Apply((), Name(snapshot.name, NOWHERE), ()))
    turns = int(length * STEP_S / TURN_S)
    word = Scratch(i64, 1)
    (prepared,), _ = Lowering(step, (t, t)).lowered(Grid(turn_over, word, turns, grid=1, block=1))
    assert isinstance(prepared, Prepared)
    device.gpu.enter()
    return work_of([device.load(prepared).bound([], address + 8 * (length - 1))])
