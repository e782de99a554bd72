"""The intrinsics of `cuda.compiling.tiles` as plain Python, for the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.device.cuda.simulator.simulated import plain, this_thread

_LINE = 64  # halves, of operands of tensor cores


def fill(count: int):
    return lambda value: (value,) * count


@plain
def spread(pointer, values):
    for k, value in enumerate(values):
        pointer[k] = value


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


commit_copies = plain(lambda: None)


def await_copies(groups: int, for_warpgroups: int = 0):
    return lambda: None


stored_bits = plain(lambda pointer: pointer.as_stored())


def warp_product(
    m_tiles: int, n_tiles: int, steps: int, a_turned: int, b_turned: int, bf16: int,
    a_extent: int = 0, b_extent: int = 0,
):  # fmt: skip
    def product(given):
        lefts, rights = zip(*given, strict=True)
        rows = [
            np.hstack(
                [halves_block(lefts, s, i, a_turned, a_extent, bf16, False) for s in range(steps)]
            )
            for i in range(m_tiles)
        ]
        columns = [
            np.hstack(
                [halves_block(rights, s, j, b_turned, b_extent, bf16, True) for s in range(steps)]
            )
            for j in range(n_tiles // 2)
        ]
        return product_of(np.vstack(rows), np.vstack(columns))

    def multiply(sums, a, b):
        made = for_lanes(32, (a, b), product)
        return tuple(np.array(sums, np.float32) + of_warp(made, m_tiles))

    return multiply


def of_warp(made: np.ndarray, m_tiles: int) -> np.ndarray:
    """A lane's part of a warp's product, in the order of its sums."""
    lane = this_thread().thread_id % 32
    tiles = made.reshape(m_tiles, 2, 8, -1, 8)
    return tiles[:, :, lane // 4, :, lane % 4 * 2 :][..., :2].swapaxes(1, 2).reshape(-1)


def for_lanes(count: int, value: Any, compute: Any) -> Any:
    """What `compute` gives for the values of the `count` threads that this one is with: done once,
    with memory as it is when all of the block are here.
    """
    thread = this_thread()
    given = thread.exchanged(value)
    first = thread.thread_id // count * count
    if -1 - first not in given:
        given[-1 - first] = compute([given[first + lane] for lane in range(count)])
    thread.exchanged(None)  # nothing is overwritten before all have read
    return given[-1 - first]


def halves_block(pointers, step: int, tile: int, turned: int, extent: int, bf16: int, right: bool):
    """Rows (or columns) by terms, 16 x 16, as the lanes' addresses give them."""
    across, down = (tile, step) if turned else (step, tile)
    block, across = divmod(across, 4)
    matrices = []
    for q in range(4):
        rows = []
        for pointer in pointers[8 * q : 8 * q + 8]:
            start = (pointer.start ^ 16 * across) + (16 * down + extent * block) * _LINE
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


def product_of(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Of halves, whose sums are as good as exact: the same whatever else is multiplied with them,
    as those of tensor cores are.
    """
    return (rows.astype(np.float64) @ columns.T.astype(np.float64)).astype(np.float32)


def warpgroup_product(
    columns: int, steps: int, a_turned: int, b_turned: int, bf16: int,
    a_extent: int = 0, b_extent: int = 0,
):  # fmt: skip
    def product(given):
        a, b = given[0]
        x = halves_operand(a, 64, 16 * steps, a_turned, a_extent, bf16)
        return product_of(x, halves_operand(b, columns, 16 * steps, b_turned, b_extent, bf16))

    def multiply(sums, a, b):
        return tuple(np.array(sums, np.float32) + of_warpgroup(for_lanes(128, (a, b), product)))

    return multiply


def of_warpgroup(made: np.ndarray) -> np.ndarray:
    """A thread's part of 64 rows, in the order of its sums."""
    thread = this_thread().thread_id
    row, column = thread // 32 % 4 * 16 + thread % 32 // 4, thread % 4 * 2
    mine = made[[row, row + 8]].reshape(2, -1, 8)[:, :, column : column + 2]
    return mine.swapaxes(0, 1).reshape(-1)


def halves_operand(
    pointer, extent: int, terms: int, turned: int, lines: int, bf16: int
) -> np.ndarray:  # fmt: skip
    """Rows by terms, out of lines of swizzled chunks; a block of terms `lines` after another."""
    if pointer.start * 2 % 1024:
        raise IndexError(f"an operand of wgmma at element {pointer.start}")
    if turned:
        firsts = range(0, extent, _LINE)
        blocks = [_lines(pointer, c // _LINE * terms, terms)[:, : extent - c] for c in firsts]
        return _numbers(np.hstack(blocks).T, bf16)
    blocks = [_lines(pointer, b * lines, extent) for b in range(-(-terms // _LINE))]
    return _numbers(np.hstack(blocks)[:, :terms], bf16)


def _lines(pointer, first: int, count: int) -> np.ndarray:
    start = pointer.start + first * _LINE
    lines = pointer.array[start : start + count * _LINE].reshape(-1, 8, 8)
    chunks = np.arange(8) ^ (np.arange(len(lines)) % 8)[:, None]
    return np.take_along_axis(lines, chunks[:, :, None], 1).reshape(-1, _LINE)


def rounded_to_half(numbers: np.ndarray, bf16: int) -> np.ndarray:
    """f32 as they are after a cast to a half."""
    if not bf16:
        return numbers.astype(np.float16).astype(np.float32)
    import ml_dtypes

    return numbers.astype(ml_dtypes.bfloat16).astype(np.float32)


warpgroup_wait = plain(lambda sums: sums)


def put_sums(m_tiles: int, n_tiles: int, pitch: int):
    def put(pointer, sums):
        for k in range(0, len(sums), 2):
            i, j, lower = k // (4 * n_tiles), k // 4 % n_tiles, k // 2 % 2
            pointer.store((16 * i + 8 * lower) * pitch + 8 * j, sums[k : k + 2], 2)

    return put


def as_f32():
    from opstep.runtime.device.cuda.simulator.simulator import Pointer

    return lambda pointer: Pointer(pointer.array.view(np.float32), np.dtype(np.float32))


unchanged = plain(lambda value: value)
