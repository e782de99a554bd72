"""Matrix products: `matmul` with NumPy's rules, and `linear`, a fully connected layer."""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.kernels.matmul import cuda_gemm
from opstep.kernels.matmul.products import (
    LAID_OUT,
    OVERREAD,
    PANEL,
    READY,
    STANDING,
    Side,
    add_parts,
    dot_rows,
    lay_out_right,
    multiply,
    pieces,
    weigh_rows,
)
from opstep.kernels.matmul.vendor import products
from opstep.kernels.pointwise.broadcast import broadcast_shape, broadcast_strides
from opstep.kernels.rules.faults import LINEAR, MATRIX_PRODUCT
from opstep.runtime.device.builtin import SIGNED_LEFT, SIGNED_RIGHT
from opstep.runtime.device.cpu import processor
from opstep.runtime.device.launch import NO_LIMITS, Arg, Held, Launch, Scratch, Tiles
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType

_ROWS = 128  # of the left operand in a block of the result, where not all are
_LEFT = 256 << 10  # bytes of all rows' terms at a time up to which they are one block
_COLUMNS = 384  # bytes of the right one's rows in it: up to four times as many where sums are short
_CACHED = 24 << 10  # bytes of a panel of the right one, about: of a first-level cache of 32 KiB
_TERMS = 256  # of the sums at a time, at most: what a panel takes is memory of the program's
_FEW_TERMS = 128  # ... about, where the right one is read as it stands
_LAID_OUT = 32 << 20  # bytes of a right operand that may be laid out as a whole
_FEW_ROWS = 96  # of a left operand for which the right one is not worth laying out
_SETS, _WAYS = 64, 8  # of a first-level cache of 32 KiB
_PARTS = 16  # of the sum that a large matrix is shared by
_WHOLE_ROWS = 512 << 10  # bytes of the result's rows up to which blocks along them come first
_GRAIN = 1 << 20  # floating-point operations under which another lane is not woken
_GRAIN_LAID_OUT = 16 << 10  # elements that are laid out, in the same way


def product(
    a: Side,
    b: Side,
    c: Arg | Held,
    shape: tuple[int, ...],
    m: int,
    n: int,
    k: int,
    bias: Arg | Scratch | None = None,
    kind: int = 0,
) -> list[Launch]:
    """Launches for c = a·b: matrices [m, k] and [k, n], as many as `shape` counts. A bias is added
    for each column. `kind` is that of the tiles.
    """
    if not c.size:
        return []
    if not kind and (m == 1 or n == 1):
        vector, matrix, count = (a, _turned(b), n) if m == 1 else (_turned(b), a, m)
        if vector.column == 1 and (bias is None or m == 1):
            if matrix.column == 1:
                return [_dots(vector, matrix, c, shape, count, k, bias)]
            return _weighted(vector, matrix, c, shape, count, k, bias)
    if b.row == 1 and b.column != 1 and m < n and not shape:
        # few rows under many: the columns of b, contiguous, serve as rows of a product turned
        # around
        sides = _turned(b), _turned(a)
        kind = {SIGNED_LEFT: SIGNED_RIGHT, SIGNED_RIGHT: SIGNED_LEFT}.get(kind, 0)
        return _blocks(*sides, c, shape, n, m, k, bias, kind, turned=True)
    return _blocks(a, b, c, shape, m, n, k, bias, kind)


def products_of_panels(
    a: Side, b: Side, c: Held, count: int, m: int, n: int, k: int, apart: int
) -> list[Launch]:
    """So many products, whose right matrices stand in panels, as `lay_out_right` makes them; the
    results begin so many elements `apart`.
    """
    return _blocks(a, b, c, (count,), m, n, k, None, 0, packed=True, apart=apart)


def _turned(side: Side) -> Side:
    return Side(side.array, side.column, side.row, side.batch)


def _grain(units: int, work: int) -> int:
    return max(1, units * _GRAIN // max(work, 1))


def _dots(
    x: Side, matrix: Side, y: Arg | Held, shape, count: int, k: int, bias: Arg | Scratch | None
) -> Launch:
    """A vector by the rows of a matrix, contiguous."""
    block = 8 * max(1, min(16, (1 << 16) // max(1, k) // 8))
    units = prod(shape) * -(-count // block)
    return Launch(
        *(
            dot_rows,
            x.array,
            matrix.array,
            bias or x.array,
            y,
            tuple(j * matrix.row for j in range(8)),
        ),
        *(shape, x.batch, matrix.batch, len(shape), count, k, matrix.row, bias is not None, block),
        units=units,
        grain=_grain(units, 8 * y.size * k),  # bound by memory: worth a lane earlier
    )


def _weighted(
    x: Side, matrix: Side, y: Arg | Held, shape, count: int, k: int, bias: Arg | Scratch | None
) -> list[Launch]:
    """A vector by the columns of a matrix that are contiguous along the result.

    Whole rows are read, as memory likes it; lanes share a large matrix by parts of the sum.
    """
    block = min(count, 4096)
    batches = prod(shape)
    parts = max(1, min(_PARTS, 4 * count * k * batches // _GRAIN) // batches)
    part_steps = max(4, -(-k // (4 * parts)) * 4)
    parts = max(1, -(-k // part_steps))
    units = batches * parts * -(-count // block)
    sums = Scratch(y.dtype, batches * parts * count) if parts > 1 else y
    launches = [
        Launch(
            *(weigh_rows, x.array, matrix.array, bias or x.array, sums),
            *(shape, x.batch, matrix.batch, len(shape), count, k, matrix.column),
            *(bias is not None and parts == 1, block, parts, part_steps),
            units=units,
            grain=_grain(units, 8 * y.size * k),
        )
    ]
    if parts > 1:
        units = batches * -(-count // 64)
        launches.append(
            Launch(
                *(add_parts, sums, bias or x.array, y, count, parts, bias is not None),
                units=units,
                grain=_grain(units, 8 * y.size * parts),
            )
        )
    return launches


def _blocks(
    a: Side,
    b: Side,
    c: Arg | Held,
    shape,
    m: int,
    n: int,
    k: int,
    bias: Arg | Scratch | None,
    kind: int,
    turned: bool = False,
    packed: bool = False,
    apart: int = 0,
) -> list[Launch]:
    """Register tiles over blocks of the result; `turned`: c is stored column by column. `packed`: b
    has been laid out as tiles read it. `apart`: elements from result to result, m * n if 0.
    """
    size = c.dtype.itemsize
    panel = PANEL // size
    standing = not packed and m <= _FEW_ROWS and b.column == 1
    standing = standing and _spread(b.row * size, _even(k, _FEW_TERMS))
    most = _FEW_TERMS if standing else min(_TERMS, _CACHED // (3 * processor.this().registers[0]))
    steps = _even(k, most)
    n_block = _columns(n, size, _COLUMNS * max(1, min(4, most // steps)))
    batches = prod(shape)
    wanted = min(pieces(), 2 * c.size * k // _GRAIN)
    m_block = -(-m // 8) * 8
    if shape or m_block * steps * size > _LEFT or -(-n // n_block) < wanted:
        m_block = min(m_block, _ROWS)

    def units() -> int:
        return batches * -(-m // m_block) * -(-n // n_block)

    # Columns are cut first, for each block of rows lays the right operand out anew; unless that is
    # done once, for all of them.
    once = not shape and n * k * size <= _LAID_OUT
    while units() < wanted and n_block > panel and not (once and m > _ROWS):
        n_block = -(-n_block // (2 * panel)) * panel
    while units() < wanted and m_block > 32:
        m_block = -(-m_block // 16) * 8  # whole panels of eight rows
    ready = LAID_OUT
    if packed or (once and m > m_block):
        ready = READY
    elif standing:
        ready = STANDING
    right: Arg | Scratch = b.array
    launches = []
    if ready == READY and not packed:
        right = Scratch(c.dtype, -(-n // panel) * panel * k + OVERREAD // size)
        launches.append(
            Launch(
                *(lay_out_right, b.array, right, k, n, b.row, b.column),
                units=-(-k // 64),
                grain=max(1, _GRAIN_LAID_OUT // (64 * n)),
            )
        )
    laid_out = 0 if ready == READY else n_block * steps + OVERREAD // size
    left = m_block * (steps + 2) if a.column != 1 else 0
    held = m_block * n_block if turned else 0
    lane = -(-(laid_out + left + held) // 64) * 64
    # where a tile's step k looks, in panels of as many columns as the processor's tiles have
    tables = tuple(k * (panel // parts) for parts in (1, 2, 4) for k in range(steps))
    tables += tuple(k * b.row for k in range(steps))
    along = not turned and n * m_block * size <= _WHOLE_ROWS
    launches.append(
        Launch(
            *(
                multiply(kind),
                a.array,
                right,
                bias or a.array,
                c,
                Scratch(c.dtype, lane, per_lane=True),
            ),
            *(lane, laid_out, laid_out + left, tables),
            *(shape, a.batch, b.batch, len(shape)),
            *(m, n, k, a.row, a.column, b.row, b.column, apart or m * n),
            *((1, m) if turned else (n, 1)),
            0 if bias is None else 1 if turned else 2,
            *(m_block, n_block, steps, panel, ready, along, NO_LIMITS),
            units=units(),
            grain=_grain(units(), 2 * c.size * k),
            tiles=Tiles(c, n, m, n_block, m_block, along=True)
            if turned
            else Tiles(c, m, n, m_block, n_block, along),
            clamps=isinstance(c, Arg) and c.size == batches * m * n,
        )
    )
    return launches


def _even(k: int, most: int) -> int:
    """Terms in a piece of a sum of k: pieces alike, of about `most`."""
    return max(1, -(-k // max(1, round(k / most))))


def _spread(apart: int, count: int) -> bool:
    """Whether rows so many bytes apart, of three lines each, stay in a first-level cache: they may
    be far from each other, but in some of its sets only.
    """
    sets = {k * apart // 64 % _SETS for k in range(count)}
    return 3 * count <= len(sets) * _WAYS


def _columns(n: int, itemsize: int, nbytes: int) -> int:
    """Columns in a block: about so many bytes, blocks alike, in whole panels."""
    blocks = max(1, round(n * itemsize / nbytes))
    panel = PANEL // itemsize
    return -(-n // (blocks * panel)) * panel


class matmul(Op):
    """The matrix product over the last two axes; leading axes broadcast.

    a [..., M, K] (or [..., K, M] with `transpose_a`), b [..., K, N] (or [..., N, K]); y [..., M,
    N]. A vector [K] is a row on the left and a column on the right, and has no axis in y.
    """

    signature = "matmul(a: N, b: N, *, transpose_a: bool = false, transpose_b: bool = false)"
    source = "torch.matmul and mm and bmm and mv and dot, numpy.dot, ONNX MatMul"
    formula = "y[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]"
    faults = MATRIX_PRODUCT
    traits = Traits(epilogues=True)

    def infer(a, b, *, transpose_a, transpose_b):
        m, left = _matrix(a, transpose_a, 0)
        n, right = _matrix(b, transpose_b, 1, left=False)
        if left != right:
            hint = "transpose_a and transpose_b swap an operand's last two axes"
            i, j = -2 if transpose_a else -1, -1 if transpose_b or b.rank == 1 else -2
            sizes = f"axis {i} of {a} is {left}, axis {j} of {b} is {right}"
            raise Mismatch(f"{sizes}: they must be equal", 1, hint)
        batch = _batch(a, b)
        return a.with_shape((*batch, *m, *n))

    def oracle(a, b, *, transpose_a, transpose_b):
        a = a.swapaxes(-1, -2) if transpose_a else a
        return np.matmul(a, b.swapaxes(-1, -2) if transpose_b else b)

    def cpu(a, b, y, *, transpose_a, transpose_b):
        _, _, _, shape, strides, m, n, k, _ = matrices_of(a, b, y, transpose_a, transpose_b)
        left = Side(a, *((1, m) if transpose_a else (k, 1)), strides[0])
        right = Side(b, *((1, k) if transpose_b else (n, 1)), strides[1])
        return product(left, right, y, shape, m, n, k)

    def cuda(a, b, y, *, transpose_a, transpose_b):
        _, _, _, shape, strides, m, n, k, _ = matrices_of(a, b, y, transpose_a, transpose_b)
        left = Side(a, *((1, m) if transpose_a else (k, 1)), strides[0])
        right = Side(b, *((1, k) if transpose_b else (n, 1)), strides[1])
        return cuda_gemm.product(left, right, y, shape, m, n, k)

    def vendor(a, b, y, *, transpose_a, transpose_b):
        return products(*matrices_of(a, b, y, transpose_a, transpose_b))

    def grad(g, operands, results, grads, *, transpose_a, transpose_b):
        a, b = operands
        (gy,) = grads
        # vectors become matrices, so that there is one rule
        if a.type.rank == 1:
            gy = g.unsqueeze(gy, axes=[-1 if b.type.rank == 1 else -2])
        if b.type.rank == 1:
            gy = g.unsqueeze(gy, axes=[-1])
        left = g.unsqueeze(a, axes=[0]) if a.type.rank == 1 else a
        right = g.unsqueeze(b, axes=[1]) if b.type.rank == 1 else b
        if transpose_a:
            ga = g.matmul(right, gy, transpose_a=transpose_b, transpose_b=True)
        else:
            ga = g.matmul(gy, right, transpose_b=not transpose_b)
        if transpose_b:
            gb = g.matmul(gy, left, transpose_a=True, transpose_b=transpose_a)
        else:
            gb = g.matmul(left, gy, transpose_a=not transpose_a)
        return _sum_to(g, ga, left, a), _sum_to(g, gb, right, b)

    def flops(a, b, *, transpose_a, transpose_b):
        n = b.shape[-2 if transpose_b else -1] if b.rank > 1 else 1
        size = 2 * n
        for d in (*_batch(a, b), *a.shape[-2:]):
            size = size * d
        return size


def _sum_to(g, gradient, matrix, operand):
    found = g.sum_to(gradient, matrix)
    return found if matrix is operand else g.reshape(found, shape=operand.shape)


def _matrix(t: TensorType, transposed: bool, at: int, left: bool = True):
    """(the axes that it gives to the result, the extent that it is summed over)."""
    if t.rank == 0:
        raise Mismatch("matmul takes vectors and matrices, not a scalar", at, hint="use mul")
    if t.rank == 1:
        if transposed:
            raise Mismatch(f"{t} is a vector: there is nothing to transpose", at)
        return (), t.shape[0]
    rows, columns = t.shape[-2:] if not transposed else t.shape[:-3:-1]
    return ((rows,), columns) if left else ((columns,), rows)


def _matrices(t) -> TensorType:
    """Its axes before the last two, as a type."""
    return TensorType(t.dtype, tuple(t.shape[:-2]))


def _batch(a, b):
    if a.rank <= 2 and b.rank <= 2:
        return ()
    try:
        return broadcast_shape(_matrices(a), _matrices(b))
    except Mismatch as error:
        raise Mismatch(f"{a} · {b}: {error.message}", error.at, error.hint) from None


def _extents(shape, transposed: bool) -> tuple[int, int]:
    if len(shape) == 1:
        return 1, shape[0]
    return (shape[-1], shape[-2]) if transposed else (shape[-2], shape[-1])


def matrices_of(a: Arg, b: Arg, y: Arg, transpose_a: bool, transpose_b: bool) -> tuple:
    """Operands of `matmul` as `gpu.vendor.products` takes them: matrices, as many as a shape says,
    each so many elements behind the one before.
    """
    m, k = _extents(a.shape, transpose_a)
    k, n = _extents(b.shape, transpose_b) if b.rank > 1 else (k, 1)
    shape = tuple(broadcast_shape(_matrices(a), _matrices(b)))
    strides = (_batch_strides(a, shape), _batch_strides(b, shape))
    if not transpose_a and not any(strides[1]) and a.shape[:-2] == shape:
        m, shape, strides = m * prod(shape), (), ((), ())  # one matrix of all the rows
    return a, b, y, shape, strides, m, n, k, (transpose_a, transpose_b)


def _batch_strides(t: Arg, shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes: tuple[int, ...] = t.shape  # pyright: ignore[reportAssignmentType] - concrete here
    size = prod(sizes[-2:])
    return tuple(s * size for s in broadcast_strides(sizes[:-2], len(shape)))


class linear(Op):
    """A fully connected layer: x·Wᵀ + b over the last axis.

    x [..., K], w [N, K] (or [K, N] with `transpose_w`: then x·W + b), b [N]; y [..., N].
    """

    signature = "linear(x: N, w: N, b: N?, *, transpose_w: bool = false)"
    source = "torch.nn.functional.linear, torch.addmm, ONNX Gemm"
    formula = "y[..., j] = b[j] + sum over k of x[..., k] * w[j, k]"
    faults = LINEAR
    traits = Traits(epilogues=True)

    def infer(x, w, b, *, transpose_w):
        kind = "[in, out]" if transpose_w else "[out, in]"
        if w.rank != 2:
            raise Mismatch(f"linear takes weights {kind}, not {w}", 1)
        n, k = w.shape[::-1] if transpose_w else w.shape
        if x.rank == 0 or x.shape[-1] != k:
            has = f"the last axis of x {x} has {x.shape[-1]}" if x.rank else "x is a scalar"
            raise Mismatch(f"{has}, but weights {w} take {k} features", 1, f"w is {kind}")
        if b is not None and b.shape != (n,):
            raise Mismatch(f"the bias is {b}, but there are {n} outputs", 2)
        return x.with_shape((*x.shape[:-1], n))

    def oracle(x, w, b=None, *, transpose_w):
        y = np.matmul(x, w if transpose_w else w.T)
        return y if b is None else y + b

    def cpu(x, w, b, y, *, transpose_w):
        return product(*_layer(x, w, y, transpose_w), b)

    def cuda(x, w, b, y, *, transpose_w):
        return cuda_gemm.product(*_layer(x, w, y, transpose_w), b)

    def vendor(x, w, b, y, *, transpose_w):
        *_, m, n, k = _layer(x, w, y, transpose_w)
        return products(x, w, y, (), ((), ()), m, n, k, (False, not transpose_w), b)

    def grad(g, operands, results, grads, *, transpose_w):
        x, w, b = operands
        (gy,) = grads
        if x.type.rank == 1:
            gy_rows, x_rows = g.unsqueeze(gy, axes=[0]), g.unsqueeze(x, axes=[0])
        elif x.type.rank == 2:
            gy_rows, x_rows = gy, x
        else:
            gy_rows, x_rows = (g.flatten(t, start=0, end=-2) for t in (gy, x))
        left, right = (x_rows, gy_rows) if transpose_w else (gy_rows, x_rows)
        return (
            g.matmul(gy, w, transpose_b=transpose_w),
            g.matmul(left, right, transpose_a=True),
            None if b is None else g.sum_to(gy, b),
        )

    def flops(x, w, b, *, transpose_w):
        return 2 * x.size * w.shape[1 if transpose_w else 0]


def _layer(x: Arg, w: Arg, y: Arg, transposed: bool) -> tuple:
    """Operands of `product` for a layer: x [m, k] and w [n, k], or w [k, n] where `transposed`."""
    n, k = w.shape[::-1] if transposed else w.shape
    right = Side(w, n, 1, ()) if transposed else Side(w, 1, k, ())
    return Side(x, k, 1, ()), right, y, (), prod(x.shape[:-1]), n, k
