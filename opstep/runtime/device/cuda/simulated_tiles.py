"""The intrinsics of `cuda.tiles` as plain Python, for the simulator."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from opstep.runtime.device.cuda.simulated import exchanged


def fill(count: int):
    return lambda value: (value,) * count


def spread():
    def write(pointer, values):
        for k, value in enumerate(values):
            pointer[k] = value

    return write


def gather(count: int):
    return lambda pointer: tuple(pointer[k] for k in range(count))


def tile_product(
    rows: int, columns: int, steps: int, a_pitch: int, b_pitch: int, a_gap: int, b_gap: int
):
    def runs(pointer, start: int, count: int, gap: int) -> np.ndarray:
        wide = min(16 // pointer.array.itemsize, count)
        found = [pointer.load(start + run * gap, wide) for run in range(count // wide)]
        return np.array(found).reshape(-1)

    def multiply(sums, a, b):
        total = np.array(sums).reshape(rows, columns)
        for k in range(steps):
            xs, ys = runs(a, k * a_pitch, rows, a_gap), runs(b, k * b_pitch, columns, b_gap)
            total += np.multiply.outer(xs, ys)
        return tuple(total.reshape(-1))

    return multiply


def copy_async(nbytes: int):
    """A copy that is done at once."""

    def copy(target, source, index, there):
        count = nbytes // target.array.itemsize
        to = target.vector_place(0, count)
        if not there:
            target.array[to : to + count] = 0
            return
        at = source.vector_place(index, count)
        found = source.array[at : at + count]
        target.array[to : to + count] = found.view(target.array.dtype)

    return copy


def commit_copies():
    return lambda: None


def await_copies(groups: int):
    return lambda: None


def stored_bits():
    return lambda pointer: pointer.as_stored()


def warp_product(
    m_tiles: int, n_tiles: int, steps: int, a_turned: int, b_turned: int, a_pitch: int,
    b_pitch: int, bf16: int,
):  # fmt: skip
    def multiply(sums, a, b):
        thread: Any = threading.current_thread()
        given = exchanged((a, b))
        first = thread.thread_id // 32 * 32
        lanes = [given[first + lane] for lane in range(32)]
        total = np.array(sums, np.float32).reshape(m_tiles, n_tiles, 2, 2)
        g, t = thread.thread_id % 32 // 4, thread.thread_id % 4 * 2
        for s in range(steps):
            xs = [_block([p[0] for p in lanes], s, i, a_turned, a_pitch, bf16, False)
                  for i in range(m_tiles)]  # fmt: skip
            ys = [_block([p[1] for p in lanes], s, j, b_turned, b_pitch, bf16, True)
                  for j in range(n_tiles // 2)]  # fmt: skip
            for i, x in enumerate(xs):
                for j, y in enumerate(ys):
                    made = (x @ y.T)[[g, g + 8]]
                    total[i, 2 * j] += made[:, t : t + 2]
                    total[i, 2 * j + 1] += made[:, t + 8 : t + 10]
        exchanged(None)  # nothing is overwritten before all have read
        return tuple(total.reshape(-1))

    return multiply


def _block(pointers, step: int, tile: int, turned: int, pitch: int, bf16: int, right: bool):
    """Rows (or columns) by terms, 16 x 16, as the lanes' addresses give them."""
    across, down = (tile, step) if turned else (step, tile)
    matrices = []
    for q in range(4):
        rows = []
        for pointer in pointers[8 * q : 8 * q + 8]:
            start = (pointer.start ^ 16 * across) + 8 * pitch * down
            if start % 8:
                raise IndexError(f"a row of ldmatrix at element {start}")
            rows.append(pointer.array[start : start + 8])
        bits = np.array(rows, np.uint16)
        matrices.append(bits.T if turned else bits)
    if right:  # matrices 0 and 1 are columns 0 to 7
        whole = np.block([[matrices[0], matrices[1]], [matrices[2], matrices[3]]])
    else:
        whole = np.block([[matrices[0], matrices[2]], [matrices[1], matrices[3]]])
    if bf16:
        return (whole.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(whole).view(np.float16).astype(np.float32)
