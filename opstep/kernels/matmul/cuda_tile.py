"""Tiles of matrix products, for kernels that multiply out of shared memory: products themselves,
and convolutions, which differ only in where they get their elements from.

A block of threads makes a tile of the result, some terms of the sums at a time. In f32 and f64
(`Tile`) each thread multiplies with fused multiply-adds:

    tile = Tile(128, 128, 16, 8, 8)             # rows, columns, terms; a thread's rows, columns
    multiply, origin_of = tile.product(), thread_origin(tile)
    zeros = Intrinsic("fill", tile.thread_rows * tile.thread_columns)

    def kernel(...):                            # block=tile.threads
        memory = cuda.shared.array(SIZE, real)  # SIZE = tile.stage, twice that for two stages
        left, right = pointer_to(memory), offset(pointer_to(memory), tile.right_at)
        row, column = origin_of(cuda.threadIdx.x)
        sums = zeros(0.0)
        for each `tile.steps` terms:
            write left[k * tile.left_pitch + i] and right[k * tile.right_pitch + j], zero where
            there are no more terms; cuda.syncthreads()
            sums = multiply(sums, offset(left, row), offset(right, column))
            cuda.syncthreads()
        held = pointer_to(cuda.local.array(COUNT, real))
        spread(held, sums)                      # held[i * tile.thread_columns + j] belongs to
                                                # row + tile.row(i), column + tile.column(j)

`fetcher` and `putter` are the loads of an operand that is a matrix: through registers, so that they
go on while the tile before is multiplied.

Halves go through tensor cores (`WarpTile`), which take them from shared memory where rows of
16-byte chunks are swizzled: `chunk_offset` says where a chunk stands, `operand_offsets` where each
thread begins to read. `gemm_tensor` is the pattern: `copier` is what a convolution does in its own
way.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import spread
from opstep.runtime.device.source import Intrinsic

_LANES_DOWN, _LANES_ACROSS = 4, 8  # of a warp, over its part of a tile


class Tile(NamedTuple):
    """A block's part of a product in f32 or f64: `rows` by `columns`, `steps` terms at a time, of
    which a thread has `thread_rows` by `thread_columns`.
    """

    rows: int
    columns: int
    steps: int
    thread_rows: int
    thread_columns: int
    itemsize: int = 4

    @property
    def threads(self) -> int:
        return self.rows * self.columns // (self.thread_rows * self.thread_columns)

    @property
    def run(self) -> int:
        """Neighbours that a thread reads at once."""
        return 16 // self.itemsize

    @property
    def row_gap(self) -> int:
        """From one run of a thread's rows to the next."""
        return _LANES_DOWN * self.run

    @property
    def column_gap(self) -> int:
        return _LANES_ACROSS * self.run

    @property
    def left_pitch(self) -> int:
        """Elements from one term to the next; a run more than there are, against bank conflicts."""
        return self.rows + self.run

    @property
    def right_pitch(self) -> int:
        return self.columns + self.run

    @property
    def right_at(self) -> int:
        """Where the right operand begins, behind the left one."""
        return self.steps * self.left_pitch

    @property
    def stage(self) -> int:
        """Elements of both operands."""
        return self.right_at + self.steps * self.right_pitch

    def product(self) -> Intrinsic:
        """(sums, left, right) -> sums, for pointers moved by the thread's row and column."""
        return Intrinsic(
            *("tile_product", self.thread_rows, self.thread_columns, self.steps),
            *(self.left_pitch, self.right_pitch, self.row_gap, self.column_gap),
        )


@cache
def thread_origin(tile: Tile):
    """thread -> (its first row, its first column) in the tile."""
    warp_rows, warp_columns = _LANES_DOWN * tile.thread_rows, _LANES_ACROSS * tile.thread_columns
    across, run = tile.columns // warp_columns, tile.run

    def origin(thread):
        warp, lane = thread // 32, thread % 32
        row = warp // across * warp_rows + lane // _LANES_ACROSS * run
        column = warp % across * warp_columns + lane % _LANES_ACROSS * run
        return row, column

    return origin


@cache
def fetcher(extent: int, steps: int, threads: int, along: bool, wide: int):
    """(held, source, first, limit, k, k_end, pitch, thread): this thread's part of an operand's
    tile, `extent` rows (of the left operand; columns of the right one) from `first` on by `steps`
    terms from k on, into the local array `held`.

    `along`: memory is contiguous along the sum, else along rows; `pitch` elements lie between its
    lines. It is read `wide` elements at a time: pitch, limit or k_end are multiples of it. Terms
    from k_end on are zeros; rows from `limit` on are others', whose sums nobody may store.
    """
    units = extent * steps // (threads * wide)
    in_line = (steps if along else extent) // wide
    load = Intrinsic("load", wide)
    zeros = Intrinsic("fill", wide)
    last = 1 if along else wide
    rest = extent * steps // wide - units * threads
    assert not rest, "threads share a tile evenly"

    def fetch(held, source, first, limit, k, k_end, pitch, thread):
        for u in range(units):
            unit = thread + u * threads
            line, at = unit // in_line, unit % in_line * wide
            if along:
                step, index = k + at, min(first + line, limit - last) * pitch + k + at
            else:
                step, index = k + line, (k + line) * pitch + min(first + at, limit - last)
            to = offset(held, u * wide)
            if step < k_end:
                if wide > 1:
                    spread(to, load(source, index))
                else:
                    to[0] = source[index]
            else:
                spread(to, zeros(0.0))

    return fetch


@cache
def putter(extent: int, steps: int, threads: int, along: bool, wide: int, pitch: int):
    """(shared, held, thread): what `fetcher` read, to shared memory, where terms are `pitch`
    elements apart.
    """
    units = extent * steps // (threads * wide)
    in_line = (steps if along else extent) // wide
    gather = Intrinsic("gather", wide)
    store = Intrinsic("store", wide)
    whole = not along and wide > 1

    def put(shared, held, thread):
        for u in range(units):
            unit = thread + u * threads
            line, at = unit // in_line, unit % in_line * wide
            if whole:
                store(shared, line * pitch + at, gather(offset(held, u * wide)))
            elif along:
                for j in range(wide):
                    shared[(at + j) * pitch + line] = held[u * wide + j]
            else:
                shared[line * pitch + at] = held[u]

    return put


# --- tensor cores ---------------------------------------------------------------------------------

LINE = 64  # halves, of operands in shared memory: all banks, which eight chunks of 16 bytes share


class WarpTile(NamedTuple):
    """A block's part of a product of halves: `rows` by `columns`, multiples of `LINE`, that many
    terms at a time. A warp has `warp_rows` by `warp_columns`, at most `LINE` of each; copies run
    `stages` - 1 tiles ahead.

    Four warps together (`warpgroups`, on architecture 9.0) multiply 64 rows by all columns; each
    of them then has 16 rows.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    warpgroups: bool = False

    @property
    def steps(self) -> int:
        return LINE

    @property
    def threads(self) -> int:
        return 32 * self.rows * self.columns // (self.warp_rows * self.warp_columns)

    @property
    def right_at(self) -> int:
        """Halves before the right operand in a stage."""
        return self.rows * LINE

    @property
    def stage(self) -> int:
        """Halves of both operands."""
        return (self.rows + self.columns) * LINE

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: for operands, at last for sums."""
        return max(2 * self.stages * self.stage, 4 * self.rows * self.sums_pitch)

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.warp_rows * self.warp_columns // 32

    @property
    def sums_pitch(self) -> int:
        """f32 from row to row of sums in shared memory; 8 more than a row, against conflicts."""
        return self.columns + 8

    def product(self, left_along: bool, right_along: bool, bf16: bool) -> Intrinsic:
        """(sums, left, right) -> sums of a thread, after `settled`; `along`: lines of shared memory
        run along the sum. The pointers are those of `operand_offsets`.
        """
        turned = (int(not left_along), int(not right_along))
        if self.warpgroups:
            return Intrinsic("warpgroup_product", self.columns, LINE // 16, *turned, int(bf16))
        shape = (self.warp_rows // 16, self.warp_columns // 8, LINE // 16)
        return Intrinsic("warp_product", *shape, *turned, int(bf16))

    def put_sums(self) -> Intrinsic:
        """(pointer, sums): to shared memory, where `sums_origin` says the thread's first stands."""
        return Intrinsic("put_sums", self.warp_rows // 16, self.warp_columns // 8, self.sums_pitch)

    def settled(self) -> Intrinsic:
        """sums -> sums: waits for them."""
        return Intrinsic("warpgroup_wait" if self.warpgroups else "unchanged")

    def arrived(self) -> Intrinsic:
        """(): waits for the copies of the next tile; `cuda.syncthreads()` follows."""
        return Intrinsic("await_copies", self.stages - 2, int(self.warpgroups))


def chunk_offset(line, chunk):
    """The half in shared memory where a chunk of eight stands: eight lines of an operand that are
    read together lie in different banks.

    Line i is row (or column) i of the tile where memory runs along the sum; else it is term
    i % LINE of rows (or columns) from i // LINE * LINE on.
    """
    return line * LINE + (chunk ^ (line & 7)) * 8


@cache
def operand_offsets(tile: WarpTile, left_along: bool, right_along: bool):
    """thread -> (where it begins to read the left operand in shared memory, the right one)."""
    across = tile.columns // tile.warp_columns
    warp_rows, warp_columns = tile.warp_rows, tile.warp_columns

    def of_warpgroup(thread):
        return thread // 128 * (LINE * LINE), 0

    def of_lane(thread):
        warp, lane = thread // 32, thread % 32
        row, column = warp // across * warp_rows, warp % across * warp_columns
        # matrices 0 to 3 of a fragment, eight lanes each; see `mma.m16n8k16` in the PTX manual
        if left_along:
            left = chunk_offset(row + lane % 16, lane // 16)
        else:
            line = row // LINE * LINE + lane // 16 * 8 + lane % 8
            left = chunk_offset(line, row % LINE // 8 + lane // 8 % 2)
        if right_along:
            right = chunk_offset(column + lane // 16 * 8 + lane % 8, lane // 8 % 2)
        else:
            line = column // LINE * LINE + lane % 16
            right = chunk_offset(line, column % LINE // 8 + lane // 16)
        return left, right

    return of_warpgroup if tile.warpgroups else of_lane


@cache
def sums_origin(tile: WarpTile):
    """thread -> (row, column) of its first sum. Of four for each 16 x 8 tile of its warp, in order
    of rows, two are neighbours; the other two stand eight rows further down.
    """
    across = tile.columns // tile.warp_columns
    warp_rows, warp_columns = tile.warp_rows, tile.warp_columns

    def origin(thread):
        warp, lane = thread // 32, thread % 32
        row = warp // across * warp_rows + lane // 4
        return row, warp % across * warp_columns + lane % 4 * 2

    return origin
