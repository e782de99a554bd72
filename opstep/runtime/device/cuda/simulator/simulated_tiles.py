"""The intrinsics of `cuda.compiling.tiles` as plain Python, for the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.device.cuda.simulator.simulated import this_thread

_LINE = 64  # halves, of operands of tensor cores


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


def await_copies(groups: int, for_warpgroups: int = 0):
    return lambda: None


def stored_bits():
    return lambda pointer: pointer.as_stored()


def warp_product(m_tiles: int, n_tiles: int, steps: int, a_turned: int, b_turned: int, bf16: int):
    def multiply(sums, a, b):
        lane, lanes = _warp((a, b))
        total = np.array(sums, np.float32).reshape(m_tiles, n_tiles, 2, 2)
        g, t = lane // 4, lane % 4 * 2
        for s in range(steps):
            xs = [
                _block([p[0] for p in lanes], s, i, a_turned, bf16, False) for i in range(m_tiles)
            ]
            for j in range(n_tiles // 2):
                y = _block([p[1] for p in lanes], s, j, b_turned, bf16, True)
                for i, x in enumerate(xs):
                    made = (x @ y.T)[[g, g + 8]]
                    total[i, 2 * j] += made[:, t : t + 2]
                    total[i, 2 * j + 1] += made[:, t + 8 : t + 10]
        this_thread().exchanged(None)  # nothing is overwritten before all have read
        return tuple(total.reshape(-1))

    return multiply


def _warp(value: Any) -> tuple[int, list]:
    """This thread's lane, and what each lane of its warp gives."""
    thread = this_thread()
    given = thread.exchanged(value)
    first = thread.thread_id // 32 * 32
    return thread.thread_id % 32, [given[first + lane] for lane in range(32)]


def _block(pointers, step: int, tile: int, turned: int, bf16: int, right: bool):
    """Rows (or columns) by terms, 16 x 16, as the lanes' addresses give them."""
    across, down = (tile, step) if turned else (step, tile)
    matrices = []
    for q in range(4):
        rows = []
        for pointer in pointers[8 * q : 8 * q + 8]:
            start = (pointer.start ^ 16 * across) + 16 * _LINE * down
            if start % 8:
                raise IndexError(f"a row of ldmatrix at element {start}")
            rows.append(pointer.array[start : start + 8])
        bits = np.array(rows, np.uint16)
        matrices.append(bits.T if turned else bits)
    if right:  # matrices 0 and 1 are columns 0 to 7
        whole = np.block([[matrices[0], matrices[1]], [matrices[2], matrices[3]]])
    else:
        whole = np.block([[matrices[0], matrices[2]], [matrices[1], matrices[3]]])
    return _numbers(whole, bf16)


def _numbers(bits: np.ndarray, bf16: int) -> np.ndarray:
    if bf16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)


def warpgroup_product(columns: int, steps: int, a_turned: int, b_turned: int, bf16: int):
    def multiply(sums, a, b):
        lane, _ = _warp(None)
        thread = this_thread()
        x = _numbers(_operand(a, 64, 16 * steps, a_turned), bf16)
        y = _numbers(_operand(b, columns, 16 * steps, b_turned), bf16)
        row = thread.thread_id // 32 % 4 * 16 + lane // 4
        made = (x[[row, row + 8]] @ y.T).reshape(2, columns // 8, 8)
        t = lane % 4 * 2
        total = np.array(sums, np.float32).reshape(columns // 8, 2, 2)
        total += made[:, :, t : t + 2].swapaxes(0, 1)
        this_thread().exchanged(None)
        return tuple(total.reshape(-1))

    return multiply


def _operand(pointer, extent: int, terms: int, turned: int) -> np.ndarray:
    """Rows by terms, out of lines of swizzled chunks."""
    if pointer.start * 2 % 1024:
        raise IndexError(f"an operand of wgmma at element {pointer.start}")
    lines = pointer.array[pointer.start : pointer.start + extent * terms].reshape(-1, 8, 8)
    chunks = np.arange(8) ^ (np.arange(len(lines)) % 8)[:, None]
    plain = np.take_along_axis(lines, chunks[:, :, None], 1).reshape(-1, _LINE)
    if not turned:
        return plain
    return plain.reshape(extent // _LINE, terms, _LINE).swapaxes(1, 2).reshape(extent, terms)


def warpgroup_wait():
    return lambda sums: sums


def put_sums(m_tiles: int, n_tiles: int, pitch: int):
    def put(pointer, sums):
        for k in range(0, len(sums), 2):
            i, j, lower = k // (4 * n_tiles), k // 4 % n_tiles, k // 2 % 2
            pointer.store((16 * i + 8 * lower) * pitch + 8 * j, sums[k : k + 2], 2)

    return put


def as_f32():
    from opstep.runtime.device.cuda.simulator.simulator import Pointer

    return lambda pointer: Pointer(pointer.array.view(np.float32), np.dtype(np.float32))


def unchanged():
    return lambda value: value
