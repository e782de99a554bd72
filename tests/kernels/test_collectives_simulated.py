"""What collectives launch on GPUs, without one: our kernels in the simulator, and NCCL's calls as
its documentation has them. The bits are those of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_collectives import group_of

import opstep.kernels  # noqa: F401 - the ops
from opstep.kernels.collective.gpus import is_nccls
from opstep.kernels.collective.reducing import reduced
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.cuda.vendor import nccl
from opstep.runtime.device.external import bytes_at
from opstep.runtime.device.routine import Shared
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES, bf16, f16, f32, f64, i16, i32, u8

CASES = [
    *[("all_reduce", {"reduction": r}) for r in ("sum", "mean", "max", "min", "prod")],
    *[("reduce_scatter", {"axis": a, "reduction": r}) for a in (0, 1) for r in ("sum", "max")],
    ("reduce_scatter", {"axis": 2, "reduction": "mean"}),
    *[("all_gather", {"axis": a}) for a in range(3)],
    *[("all_to_all", {"split": a, "concat": b}) for a in range(3) for b in range(3)],
    ("broadcast_from", {"root": 1}),
    ("barrier", {}),
]
FIRST_OF = {0: "i8", 1: "u8", 2: "i32", 4: "i64", 6: "f16", 7: "f32", 8: "f64", 9: "bf16"}


class Desk:
    """A communicator that takes down what one rank asks of it."""

    def __init__(self, index: int, size: int):
        self.index, self.size = index, size
        self.asked: list[tuple[str, Sequence[int], Any]] = []
        self.out: list[nccl.Send] = []
        self.into: list[nccl.Send] = []

    def call(self, function, pointers, how, stream):
        self.asked.append((function, pointers, [getattr(h, "value", h) for h in how]))

    def swap(self, out, into, stream):
        self.out += out
        self.into += into


def done(desks: Sequence[Desk]) -> None:
    """All that one call of each rank asks for."""
    sent = [
        (desk.index, to, bytes_at(address, n).copy())
        for desk in desks
        for to, address, n in desk.out
    ]
    for desk in desks:
        for source, address, nbytes in desk.into:
            (found,) = (b for a, to, b in sent if (a, to) == (source, desk.index))
            bytes_at(address, nbytes)[:] = found
    if not desks[0].asked:
        return
    (function, _, how) = desks[0].asked[0]
    pointers = [desk.asked[0][1] for desk in desks]
    assert all(desk.asked[0][0] == function and desk.asked[0][2] == how for desk in desks)
    if function in ("AllGather", "Broadcast"):
        xs = [bytes_at(x, how[0]).copy() for x, _ in pointers]
        found = np.concatenate(xs) if function == "AllGather" else xs[how[2]]
        for _, y in pointers:
            bytes_at(y, found.size)[:] = found
        return
    count, dtype, reduction = how
    dtype = DTYPES[FIRST_OF[dtype]].numpy
    names = {number: name for name, number in nccl._REDUCTIONS.items()}
    whole = count * (len(desks) if function == "ReduceScatter" else 1)
    xs = [bytes_at(x, whole * dtype.itemsize).view(dtype).copy() for x, _ in pointers]
    found = reduced(xs, names[reduction])
    for desk, (_, y) in zip(desks, pointers, strict=True):
        part = found[desk.index * count :][:count] if function == "ReduceScatter" else found
        bytes_at(y, part.nbytes)[:] = part.view(np.uint8)


def on_gpus(op, xs: Sequence[np.ndarray], attrs: dict) -> list[np.ndarray]:
    """What each of the ranks has in the end."""
    step, stored, (t,) = one_step(op, xs[:1], attrs)
    launches, size = Lowering(step, (*stored, t)).prepared()
    shape: Any = t.shape
    memory = [(x.copy(), np.full(shape, 77).astype(t.dtype.numpy)) for x in xs]
    flat = [[a.reshape(-1).view(np.uint8) for a in of_rank] for of_rank in memory]
    workspaces = [np.full(size + 8, 0xFF, np.uint8) for _ in xs]
    for launch in launches:
        if isinstance(launch, Prepared):
            for given, workspace in zip(flat, workspaces, strict=True):
                simulator.run(launch, given, workspace)
            continue
        desks = [Desk(k, len(xs)) for k in range(len(xs))]
        for desk, given, workspace in zip(desks, flat, workspaces, strict=True):
            addresses = [
                workspace.ctypes.data + s.start if isinstance(s, Shared) else given[s].ctypes.data
                for s in launch.slots
            ]
            routine: Any = launch.routine
            routine.put(desk, addresses, 0)
        done(desks)
    return [y for _, y in memory]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16, i32, i16, u8], ids=str)
@pytest.mark.parametrize("name, attrs", CASES, ids=str)
def test_what_gpus_launch_is_what_all_mean(name, attrs, dtype, size):
    if attrs.get("reduction") == "mean" and not dtype.is_float:
        pytest.skip("means are floats")
    op: Any = OPS[name]
    rng = np.random.default_rng(7)
    xs = [rng.uniform(1, 9, (6, 12, 6)).astype(dtype.numpy) for _ in range(size)]
    if dtype.is_float:
        xs[1][3, 4, 5] = np.nan
    attrs = complete(op, attrs) | {"over": group_of(size)}
    wanted = op.together(xs, **attrs)
    for got, want in zip(on_gpus(op, xs, attrs), wanted, strict=True):
        assert got.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (0,), ()])
def test_parts_of_which_some_are_empty(shape):
    """Ranks of which the last have less to compute, or nothing."""
    op: Any = OPS["all_reduce"]
    size = 3
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal(shape).astype(np.float16) for _ in range(size)]
    attrs = complete(op, {"reduction": "mean"}) | {"over": group_of(size)}
    for got, want in zip(on_gpus(op, xs, attrs), op.together(xs, **attrs), strict=True):
        assert got.tobytes() == want.tobytes()


def test_what_is_left_to_nccl():
    for dtype in (f32, f64):
        assert all(is_nccls(dtype, how, 8) for how in ("sum", "mean", "prod"))
        assert not any(is_nccls(dtype, how, 2) for how in ("max", "min"))  # NaNs would be lost
    for dtype in (f16, bf16):
        assert is_nccls(dtype, "sum", 2)  # rounded once
        assert not is_nccls(dtype, "sum", 3)
        assert not is_nccls(dtype, "mean", 2)
    assert is_nccls(u8, "max", 8)
    assert not is_nccls(i16, "sum", 2)  # which it has no name for
