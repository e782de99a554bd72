"""The simulator itself: threads that take turns, memory that holds junk, faults that it shows."""

from __future__ import annotations

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - the ops
from opstep.runtime.device.builtin import atomic_add
from opstep.runtime.device.cuda.compiling.compiler import Kernel
from opstep.runtime.device.cuda.compiling.names import cuda, real, shuffle_xor
from opstep.runtime.device.cuda.lowering import Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

THREADS, BLOCKS = 64, 3


def turned_round(x, y, n):
    shared = cuda.shared.array(THREADS, real)
    thread = cuda.threadIdx.x
    shared[thread] = x[cuda.grid(1)]
    cuda.syncthreads()
    y[cuda.grid(1)] = shared[THREADS - 1 - thread]


def turned_round_too_soon(x, y, n):
    shared = cuda.shared.array(THREADS, real)
    thread = cuda.threadIdx.x
    shared[thread] = x[cuda.grid(1)]
    y[cuda.grid(1)] = shared[THREADS - 1 - thread]


def next_one_too_soon(x, y, n):
    """In the order of their numbers, no thread would be too early."""
    shared = cuda.shared.array(THREADS, real)
    thread = cuda.threadIdx.x
    shared[thread] = x[cuda.grid(1)]
    y[cuda.grid(1)] = shared[max(thread - 1, 0)]


def never_written(x, y, n):
    own, shared = cuda.local.array(2, real), cuda.shared.array(THREADS, real)
    if cuda.blockIdx.x == 0:
        shared[cuda.threadIdx.x] = 1.0
    cuda.syncthreads()
    y[cuda.grid(1)] = shared[cuda.threadIdx.x] + own[0] * 0.0


def some_leave(x, y, n):
    """A barrier is for those that are still there."""
    shared = cuda.shared.array(THREADS, real)
    thread = cuda.threadIdx.x
    if thread % 2:
        return
    shared[thread] = x[cuda.grid(1)]
    cuda.syncthreads()
    y[cuda.grid(1)] = shared[THREADS - 2 - thread]


def votes(x, y, n):
    positive = x[cuda.grid(1)] > 0
    count = cuda.syncthreads_count(positive)
    every = cuda.syncthreads_and(positive)
    some = cuda.syncthreads_or(positive)
    y[cuda.grid(1)] = count + 1000.0 * every + 2000.0 * some


def exchanges(x, y, n):
    value = x[cuda.grid(1)]
    for k in range(5):
        value += shuffle_xor(value, 1 << k)
    y[cuda.grid(1)] = value


def beyond(x, y, n):
    y[cuda.grid(1) + 1] = 0.0


def counted(x, y, n):
    atomic_add(y, 0, x[cuda.grid(1)])


def run(function, x: np.ndarray) -> np.ndarray:
    kernel = Kernel(function, ("*f32", "*f32", "i"), DTYPES["f32"])
    slots = ((0, 0), (1, 1))
    grid, block = (BLOCKS, 1, 1), (THREADS, 1, 1)
    prepared = Prepared(kernel, (0, 0, len(x)), slots, (), (), grid, block, 0)
    y = np.zeros_like(x)
    simulator.run(prepared, [x.view(np.uint8), y.view(np.uint8)], np.zeros(8, np.uint8))
    return y


def numbers() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(BLOCKS * THREADS).astype("f4")


def test_threads_wait_at_a_barrier():
    x = numbers()
    assert np.array_equal(run(turned_round, x), x.reshape(BLOCKS, -1)[:, ::-1].reshape(-1))


@pytest.mark.parametrize("function", [turned_round_too_soon, next_one_too_soon])
def test_a_barrier_that_is_missing_shows(function):
    assert np.isnan(run(function, numbers())).reshape(BLOCKS, -1).any(axis=1).all()


def test_memory_is_junk_until_it_is_written_also_in_later_blocks():
    assert np.isnan(run(never_written, numbers())).all()


def test_threads_that_have_ended_are_not_waited_for():
    x = numbers()
    found = run(some_leave, x).reshape(BLOCKS, -1)
    assert np.array_equal(found[:, ::2], x.reshape(BLOCKS, -1)[:, ::2][:, ::-1])
    assert not found[:, 1::2].any()


def test_votes_are_counted_by_block():
    x = numbers()
    x[THREADS : 2 * THREADS] = 1
    x[2 * THREADS :] = -1
    found = run(votes, x).reshape(BLOCKS, -1)
    first = np.count_nonzero(x[:THREADS] > 0) + 2000
    assert np.array_equal(found, np.repeat([[first], [THREADS + 3000], [0]], THREADS, axis=1))


def test_what_goes_round_a_warp():
    x = numbers()
    warps = x.reshape(-1, 32).astype("f8").sum(axis=1)
    np.testing.assert_allclose(
        run(exchanges, x).reshape(-1, 32), warps[:, None].repeat(32, 1), 1e-5
    )


def test_every_run_is_the_same():
    x = numbers()
    assert run(counted, x).tobytes() == run(counted, x).tobytes()


def test_a_fault_names_its_thread_and_leaves_nothing_behind():
    with pytest.raises(IndexError, match="element 192 of memory of 192 elements") as error:
        run(beyond, numbers())
    assert error.value.__notes__ == ["in block (2,0,0), thread (63,0,0)"]
    test_threads_wait_at_a_barrier()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, shapes, attrs",
    [
        ("matmul", [(40, 50), (50, 30)], {}),
        ("sort", [(700,)], {}),
        ("softmax", [(2, 5000)], {}),
        ("conv2d", [(2, 8, 12, 12), (16, 8, 3, 3)], {}),
        ("max", [(40, 33)], {"axes": (0,)}),
    ],
)
def test_our_kernels_need_their_barriers(name, shapes, attrs, monkeypatch):
    """Without them they go wrong here: the simulator would tell."""
    from opstep.runtime.device.cuda.simulator.simulated_block import Cuda

    rng = np.random.default_rng(1)
    operands = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    op, attrs = OPS[name], complete(OPS[name], attrs)
    right = simulator.execute(op, operands, attrs)
    assert all(np.isfinite(r.astype("f8")).all() for r in right)
    monkeypatch.setattr(Cuda, "syncthreads", lambda self: None)
    try:
        wrong = simulator.execute(op, operands, attrs)
    except IndexError:  # a place that nobody had written yet
        return
    assert any(not np.array_equal(a, b) for a, b in zip(right, wrong, strict=True))
