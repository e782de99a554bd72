"""Matrix products in registers: what one thread, or one warp, multiplies out of shared memory.

A thread's part of a product is a tuple of numbers, so it lives in registers, whatever the compiler
does with loops. Imported only where something is compiled.
"""

# numba.cuda ships no types, and type checkers find an older one inside numba.
# pyright: reportAttributeAccessIssue=none, reportCallIssue=none

from __future__ import annotations

from llvmlite import ir
from numba.cuda import cgutils, types

from opstep.runtime.device.cuda.compiling.elements import emits, storage_of

_WHOLE = ir.IntType(32)
_SINGLE = ir.FloatType()
_LONG = ir.IntType(64)
_SHARED = 3  # address space
_LINE = 128  # bytes, of operands of tensor cores
_NAMES = ("f16", "bf16")


def _as_it_is(context, builder, signature, args):
    return args[0]


def fill(count: int):
    """value -> a tuple of `count` of it."""

    @emits(lambda value: types.UniTuple(value, count)(value))
    def repeat(context, builder, signature, args):
        return cgutils.pack_array(builder, [args[0]] * count)

    return repeat


def spread():
    """(pointer, values): writes a tuple to elements 0, 1, ... of a local array."""

    @emits(lambda pointer, values: types.void(pointer, values))
    def write(context, builder, signature, args):
        values = signature.args[1]
        for k in range(len(values)):
            place = builder.gep(args[0], [_WHOLE(k)])
            builder.store(builder.extract_value(args[1], k), place)

    return write


def gather(count: int):
    """A pointer into a local array -> elements 0 to `count` as a tuple."""

    @emits(lambda pointer: types.UniTuple(pointer.dtype, count)(pointer))
    def read(context, builder, signature, args):
        places = [builder.gep(args[0], [_WHOLE(k)]) for k in range(count)]
        return cgutils.pack_array(builder, [builder.load(place) for place in places])

    return read


def tile_product(
    rows: int, columns: int, steps: int, a_pitch: int, b_pitch: int, a_gap: int, b_gap: int
):
    """(sums, a, b) -> sums[i, j] + the sum over k < steps of a[k, i] * b[k, j], for one thread.

    a and b point into shared memory. Row k begins k * pitch further on; its elements are runs of 16
    bytes (or the whole of fewer), `gap` apart.
    """

    @emits(lambda sums, a, b: sums(sums, a, b))
    def multiply(context, builder, signature, args):
        sums = signature.args[0]
        element = context.get_data_type(sums.dtype)
        floating = isinstance(sums.dtype, types.Float)
        size = sums.dtype.bitwidth // 8
        left, right = (builder.addrspacecast(p, ir.PointerType(element, _SHARED)) for p in args[1:])
        total = cgutils.unpack_tuple(builder, args[0])
        for k in range(steps):
            xs = _runs(builder, left, element, size, k * a_pitch, rows, a_gap)
            ys = _runs(builder, right, element, size, k * b_pitch, columns, b_gap)
            for i, x in enumerate(xs):
                for j, y in enumerate(ys):
                    at = i * columns + j
                    if floating:
                        total[at] = builder.fma(x, y, total[at])
                    else:
                        total[at] = builder.add(builder.mul(x, y), total[at])
        return cgutils.pack_array(builder, total)

    return multiply


def _runs(builder, pointer, element, size: int, start: int, count: int, gap: int) -> list:
    """`count` elements as wide loads from shared memory."""
    wide = min(16 // size, count)
    vector = ir.VectorType(element, wide)
    found = []
    for run in range(count // wide):
        place = builder.gep(pointer, [_WHOLE(start + run * gap)])
        place = builder.bitcast(place, ir.PointerType(vector, _SHARED))
        loaded = builder.load(place, align=wide * size)
        found += [builder.extract_element(loaded, _WHOLE(k)) for k in range(wide)]
    return found


# --- copies from global to shared memory that the thread does not wait for ------------------------


def copy_async(nbytes: int):
    """(shared pointer, global pointer, i, there): copies 4, 8 or 16 bytes from element i on, or
    writes zeros where they are not there. Both stand at a multiple of so many bytes.
    """
    kind = ir.FunctionType(ir.VoidType(), [_WHOLE, ir.IntType(64), _WHOLE])
    cached = "cg" if nbytes == 16 else "ca"
    text = f"cp.async.{cached}.shared.global [$0], [$1], {nbytes}, $2;"

    def typed(target, source, index, there):
        return types.void(target, source, types.int64, types.boolean)

    @emits(typed)
    def copy(context, builder, signature, args):
        place = builder.gep(args[1], [args[2]])
        size = builder.select(args[3], _WHOLE(nbytes), _WHOLE(0))
        asm = ir.InlineAsm(kind, text, "r,l,r,~{memory}", side_effect=True)
        given = [shared_address(builder, args[0]), builder.ptrtoint(place, ir.IntType(64))]
        builder.call(asm, [*given, size])

    return copy


def shared_address(builder, pointer):
    element = pointer.type.pointee
    return builder.ptrtoint(
        builder.addrspacecast(pointer, ir.PointerType(element, _SHARED)), _WHOLE
    )


def _statement(text: str):
    @emits(lambda: types.void())
    def run(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), [])

    return run


def commit_copies():
    """(): the copies that this thread asked for since the last call are one group."""
    return _statement("cp.async.commit_group;")


def await_copies(groups: int, for_warpgroups: int = 0):
    """(): waits until at most `groups` of the thread's groups of copies are under way; then what
    they wrote can also be seen by `warpgroup_product`, if it is for that.
    """
    fence = " fence.proxy.async.shared::cta;" if for_warpgroups else ""
    return _statement(f"cp.async.wait_group {groups};{fence}")


def stored_bits():
    """A pointer to halves -> one to their bits, as u16."""

    return emits(lambda pointer: types.CPointer(storage_of(pointer))(pointer))(_as_it_is)


# --- tensor cores ---------------------------------------------------------------------------------
#
# Operands stand in shared memory in lines of 64 halves, 16-byte chunks of which are swizzled: see
# `kernels.matmul.cuda_tile`, which lays them out and says where each thread begins to read.


def warp_product(
    m_tiles: int, n_tiles: int, steps: int, a_turned: int, b_turned: int, bf16: int,
    a_extent: int = 0, b_extent: int = 0,
):  # fmt: skip
    """(sums, a, b) -> sums + a·b for a warp: 16*m_tiles rows by 8*n_tiles columns of halves, over
    16*steps terms; n_tiles is even.

    a and b are where this lane's rows of `ldmatrix` begin. `turned`: lines are terms of the sum,
    else rows of a, columns of b. What is longer than a line goes on `extent` lines further down. A
    thread's sums are those of `mma.m16n8k16`, tile by tile: rows lane/4 and 8 more, columns
    lane%4 * 2 and 1 more.
    """
    mma = halves_product(bf16)

    @emits(lambda sums, a, b: sums(sums, a, b))
    def multiply(context, builder, signature, args):
        total = cgutils.unpack_tuple(builder, args[0])
        left, right = (shared_address(builder, p) for p in args[1:])

        def fragments(s: int):
            xs = [matrices(builder, left, s, i, a_turned, a_extent) for i in range(m_tiles)]
            pairs = [
                matrices(builder, right, s, j, b_turned, b_extent) for j in range(n_tiles // 2)
            ]
            return xs, [half for four in pairs for half in (four[:2], four[2:])]

        ahead = fragments(0)
        for s in range(steps):
            xs, ys = ahead
            if s + 1 < steps:
                ahead = fragments(s + 1)
            for i, x in enumerate(xs):
                # back and forth, so that neighbours share a fragment of b
                for j in range(n_tiles)[:: -1 if i % 2 else 1]:
                    at = 4 * (i * n_tiles + j)
                    made = builder.call(mma, [*x, *ys[j], *total[at : at + 4]])
                    for r in range(4):
                        total[at + r] = builder.extract_value(made, r)
        return cgutils.pack_array(builder, total)

    return multiply


def halves_product(bf16: int) -> ir.InlineAsm:
    """Of 16 rows, 16 terms and 8 columns: four words of a, two of b, four sums -> sums."""
    name = _NAMES[bf16]
    outputs = ",".join(f"${r}" for r in range(4))
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 "
        f"{{{outputs}}}, {{$4,$5,$6,$7}}, {{$8,$9}}, {{$10,$11,$12,$13}};"
    )
    four = ir.LiteralStructType([_SINGLE] * 4)
    kind = ir.FunctionType(four, [_WHOLE] * 6 + [_SINGLE] * 4)
    return ir.InlineAsm(kind, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=False)


def matrices(builder, base, step: int, tile: int, turned: int, extent: int) -> list:
    """Four 8x8 matrices of halves: 16 rows or columns (`tile`) by 16 terms (`step`)."""
    across, down = (tile, step) if turned else (step, tile)
    block, across = divmod(across, 4)
    address = builder.xor(base, _WHOLE(32 * across))
    address = builder.add(address, _WHOLE((16 * down + extent * block) * _LINE))
    words = ir.LiteralStructType([_WHOLE] * 4)
    kind = ir.FunctionType(words, [_WHOLE])
    trans = ".trans" if turned else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
    asm = ir.InlineAsm(kind, text, "=r,=r,=r,=r,r,~{memory}", side_effect=True)
    loaded = builder.call(asm, [address])
    return [builder.extract_value(loaded, r) for r in range(4)]


def warpgroup_product(
    columns: int, steps: int, a_turned: int, b_turned: int, bf16: int,
    a_extent: int = 0, b_extent: int = 0,
):  # fmt: skip
    """(sums, a, b) -> sums + a·b for four warps, when `warpgroup_wait` has been called on them:
    64 rows by `columns` of halves, over 16*steps terms. Architecture 9.0 alone.

    a and b are where the operands begin, at a multiple of 1024 bytes. `turned` and `extent` as for
    `warp_product`, whose order a thread's sums have: warp w of the four has rows 16*w to 16*w + 15.
    """
    name = _NAMES[bf16]
    count = columns // 2
    outputs = ",".join(f"${r}" for r in range(count))
    lines = ["{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.fence.sync.aligned;"]
    for s in range(steps):
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{name}.{name} {{{outputs}}}, "
            f"${count + s}, ${count + steps + s}, p, 1, 1, {a_turned}, {b_turned};"
        )
    lines.append("wgmma.commit_group.sync.aligned; }")
    held = ir.LiteralStructType([_SINGLE] * count)
    kind = ir.FunctionType(held, [_LONG] * (2 * steps) + [_SINGLE] * count)
    inputs = ["l"] * (2 * steps) + [str(r) for r in range(count)]
    constraints = ",".join(["=f"] * count + inputs + ["~{memory}"])

    @emits(lambda sums, a, b: sums(sums, a, b))
    def multiply(context, builder, signature, args):
        given = descriptors(builder, args[1], steps, a_turned, a_extent)
        given += descriptors(builder, args[2], steps, b_turned, b_extent)
        asm = ir.InlineAsm(kind, " ".join(lines), constraints, side_effect=True)
        made = builder.call(asm, [*given, *cgutils.unpack_tuple(builder, args[0])])
        return cgutils.pack_array(builder, [builder.extract_value(made, r) for r in range(count)])

    return multiply


def descriptors(builder, pointer, steps: int, turned: int, extent: int = 0) -> list:
    """Where `wgmma` finds 16 terms each: "Matrix descriptor" in the PTX manual, swizzled by 128
    bytes. Groups of eight lines follow each other; turned, so do blocks of 64 rows or columns.
    """
    leading = 16 * steps * _LINE if turned else 16  # bytes
    layout = (1 << 62) | (8 * _LINE // 16 << 32) | (leading // 16 << 16)
    start = builder.and_(builder.lshr(shared_address(builder, pointer), _WHOLE(4)), _WHOLE(0x3FFF))
    first = builder.or_(builder.zext(start, _LONG), _LONG(layout))
    found = []
    for s in range(steps):
        ahead = s * 16 * _LINE if turned else s // 4 * extent * _LINE + s % 4 * 32  # bytes
        found.append(builder.add(first, _LONG(ahead // 16)))
    return found


def warpgroup_wait():
    """sums -> sums: those that `warpgroup_product` gave are there."""

    @emits(lambda sums: sums(sums))
    def wait(context, builder, signature, args):
        count = len(signature.return_type)
        held = ir.LiteralStructType([_SINGLE] * count)
        kind = ir.FunctionType(held, [_SINGLE] * count)
        constraints = ",".join(["=f"] * count + [str(r) for r in range(count)] + ["~{memory}"])
        asm = ir.InlineAsm(kind, "wgmma.wait_group.sync.aligned 0;", constraints, side_effect=True)
        made = builder.call(asm, cgutils.unpack_tuple(builder, args[0]))
        return cgutils.pack_array(builder, [builder.extract_value(made, r) for r in range(count)])

    return wait


def put_sums(m_tiles: int, n_tiles: int, pitch: int):
    """(pointer, sums): writes what `warp_product` or `warpgroup_product` gave to shared memory,
    rows `pitch` f32 apart (even); the pointer is to the place of the thread's first sum.
    """

    @emits(lambda pointer, sums: types.void(pointer, sums))
    def put(context, builder, signature, args):
        sums = signature.args[1]
        base = builder.addrspacecast(args[0], ir.PointerType(_SINGLE, _SHARED))
        pair = ir.VectorType(_SINGLE, 2)
        for k in range(0, len(sums), 2):
            i, j, lower = k // (4 * n_tiles), k // 4 % n_tiles, k // 2 % 2
            place = builder.gep(base, [_WHOLE((16 * i + 8 * lower) * pitch + 8 * j)])
            place = builder.bitcast(place, ir.PointerType(pair, _SHARED))
            both = ir.Constant(pair, ir.Undefined)
            for e in range(2):
                one = builder.extract_value(args[1], k + e)
                both = builder.insert_element(both, one, _WHOLE(e))
            builder.store(both, place, align=8)

    return put


def as_f32():
    """A pointer to shared memory -> one to the same bytes, as f32."""

    @emits(lambda pointer: types.CPointer(types.float32)(pointer))
    def look(context, builder, signature, args):
        return builder.bitcast(args[0], _SINGLE.as_pointer())

    return look


def unchanged():
    """x -> x: where another kind of tile has something to wait for."""

    @emits(lambda value: value(value))
    def keep(context, builder, signature, args):
        return args[0]

    return keep
