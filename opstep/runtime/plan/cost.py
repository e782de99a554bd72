"""Estimates of the time that ops take, by which the planner decides what is worth another stream.

The figures are those of one core of a common server CPU. They need not be right for the machine at
hand: a wrong estimate can make a plan slower, and never makes it wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import TensorType

LAUNCH_NS = 1_000  # to take a launch from the queue and call its kernel
FLOPS_PER_NS = 10  # 10 GFLOP/s
BYTES_PER_NS = 10  # 10 GB/s, read or written
TALK_NS = 200_000  # to the other ranks and back
TALK_BYTES_PER_NS = 1  # that go to them, and come
CALL_NS = 50_000  # control flow goes through the host, for each call of a graph
SYNC_NS = 15_000  # from a record on one stream to the op that waits for it on another
EVENT_NS = (
    2_000  # for the host to issue a record and its wait, between which launches are cut in two
)

WORTH_NS = 2 * SYNC_NS  # less work than this does not pay for leaving a stream and coming back
WORTH_A_KERNEL_NS = 100_000  # what a run must gain for a kernel to be compiled for it alone
LEAST_GAIN = (
    0.05  # a schedule on several streams must be shorter by this share than one on one stream
)


def estimate(
    op: type[Op],
    operands: Iterable[TensorType | None],
    results: Iterable[TensorType],
    attrs: dict[str, Any],
) -> int:
    """Nanoseconds of one execution: the longer of computing and moving bytes, and the launch."""
    if op.traits.reinterprets:
        return 1
    if op.traits.host:
        return CALL_NS
    operands, results = tuple(operands), tuple(results)
    moved = [*operands, *results]
    if op.is_shared(attrs):
        sent: Any = sum(t.nbytes for t in moved if t is not None)
        return TALK_NS + sent // TALK_BYTES_PER_NS
    if op.traits.picks:
        moved[:1] = results
    elif op.traits.overwrites:  # it stands in the operand's buffer, as a rule
        moved = [*operands[1:], *operands[1:]]
    # types are concrete here, so these are numbers
    nbytes: Any = sum(t.nbytes for t in moved if t is not None)
    flops: Any = op.flops(*operands, **attrs)
    return LAUNCH_NS + max(nbytes // BYTES_PER_NS, flops // FLOPS_PER_NS)
