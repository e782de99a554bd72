"""Pointers whose elements are stored in one type and computed with in another.

`x[i]` reads what is stored and widens it, `x[i] = v` rounds v, once, to what is stored. f16 and
bf16 are seen as f32; an i32 that was promoted is seen as the f32 that the op computes with.

Imported only where something is compiled.
"""

# numba.cuda ships no types, and type checkers find an older one inside numba.
# pyright: reportAttributeAccessIssue=none, reportCallIssue=none

from __future__ import annotations

import operator
from functools import cache, partial

from llvmlite import ir
from numba.cuda import cgutils, models, types
from numba.cuda.extending import intrinsic, overload, register_model

from opstep.runtime.device.shared_intrinsics import emitting
from opstep.runtime.ir.types import DTYPES, DType

emits = partial(emitting, intrinsic)

SEEN_AS = {"f64": types.float64, "f32": types.float32, "i64": types.int64, "i32": types.int32}
SEEN_AS |= {"i16": types.int16, "i8": types.int8, "u8": types.uint8, "bool": types.uint8}
SEEN_AS |= {"u16": types.uint16, "f16": types.uint16, "bf16": types.uint16}


class Elements(types.Type):
    """A pointer to elements `stored` that are seen as `dtype`, a number type of numba."""

    mutable = True

    def __init__(self, stored: DType, seen: DType):
        self.stored = stored
        self.storage = SEEN_AS[stored.name]  # a half: its bits
        self.dtype = SEEN_AS[seen.name]
        super().__init__(name=f"Elements({stored.name}, {seen.name})")


@register_model(Elements)
class _ElementsModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        pointer = dmm.lookup(fe_type.storage).get_data_type().as_pointer()
        super().__init__(dmm, fe_type, pointer)


@cache
def pointer_type(stored: str, seen: str):
    """The numba type of a pointer; a plain one where nothing has to be converted."""
    if stored == seen or DTYPES.get(stored) is None:
        return types.CPointer(SEEN_AS[seen])
    return Elements(DTYPES[stored], DTYPES[seen])


# --- one element, or a vector of them ------------------------------------------------------------


def converted(context, builder, pointer, value):
    """From what is stored to what is seen."""
    if not isinstance(pointer, Elements):
        return value
    name = pointer.stored.name
    if name == "f16":
        value = builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
    elif name == "bf16":
        bits = builder.shl(builder.zext(value, ir.IntType(32)), ir.IntType(32)(16))
        value = builder.bitcast(bits, ir.FloatType())
    else:
        return context.cast(builder, value, pointer.storage, pointer.dtype)
    return context.cast(builder, value, types.float32, pointer.dtype)


def as_stored(context, builder, pointer, value):
    """From what is seen to what is stored."""
    if not isinstance(pointer, Elements):
        return value
    name = pointer.stored.name
    if name not in ("f16", "bf16"):
        return context.cast(builder, value, pointer.dtype, pointer.storage)
    value = context.cast(builder, value, pointer.dtype, types.float32)
    if name == "f16":
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))
    return builder.trunc(_as_bf16(builder, "0f00000000, $1", value), ir.IntType(16))


def _as_bf16(builder, operands: str, value):
    """Two numbers as bf16 in 32 bits, the first of them in the upper half. The instruction that
    converts one alone takes four times as long.
    """
    kind = ir.FunctionType(ir.IntType(32), [ir.FloatType()])
    text = f"cvt.rn.bf16x2.f32 $0, {operands};"
    return builder.call(ir.InlineAsm(kind, text, "=r,f", side_effect=False), [value])


def through_half(context, builder, name: str, value):
    """An f32 as it is read again where it is stored as a half."""
    if name == "bf16":  # whose bits are the upper ones
        return builder.bitcast(_as_bf16(builder, "$1, 0f00000000", value), ir.FloatType())
    half = Elements(DTYPES[name], DTYPES["f32"])
    return converted(context, builder, half, as_stored(context, builder, half, value))


@emits(lambda pointer, index: pointer.dtype(pointer, types.int64))
def get_element(context, builder, signature, args):
    stored = builder.load(builder.gep(args[0], [args[1]]))
    return converted(context, builder, signature.args[0], stored)


@emits(lambda pointer, index, value: types.void(pointer, types.int64, pointer.dtype))
def set_element(context, builder, signature, args):
    stored = as_stored(context, builder, signature.args[0], args[2])
    builder.store(stored, builder.gep(args[0], [args[1]]))


@overload(operator.getitem)
def _getitem(pointer, index):
    if isinstance(pointer, Elements) and isinstance(index, types.Integer):
        return lambda pointer, index: get_element(pointer, index)
    return None


@overload(operator.setitem)
def _setitem(pointer, index, value):
    if isinstance(pointer, Elements) and isinstance(index, types.Integer):
        return lambda pointer, index, value: set_element(pointer, index, value)
    return None


def storage_of(pointer):
    return pointer.storage if isinstance(pointer, Elements) else pointer.dtype


def load(count: int):
    """(pointer, i) -> elements i to i + count as a tuple; i is a multiple of count."""

    @emits(lambda pointer, i: types.UniTuple(pointer.dtype, count)(pointer, types.int64))
    def load_elements(context, builder, signature, args):
        pointer = signature.args[0]
        storage = context.get_data_type(storage_of(pointer))
        words = _words(storage, count)
        place = builder.bitcast(builder.gep(args[0], [args[1]]), words.as_pointer())
        loaded = builder.load(place, align=_align(storage, count))
        parts = (_part(builder, loaded, storage, k) for k in range(count))
        values = [converted(context, builder, pointer, part) for part in parts]
        return cgutils.pack_array(builder, values)

    return load_elements


def store(count: int):
    """(pointer, i, values): writes `count` values to elements i to i + count."""

    @emits(lambda pointer, i, values: types.void(pointer, types.int64, values))
    def store_elements(context, builder, signature, args):
        pointer, _, kinds = signature.args
        storage = context.get_data_type(storage_of(pointer))
        words = _words(storage, count)
        parts = [
            context.cast(builder, builder.extract_value(args[2], k), kinds[k], pointer.dtype)
            for k in range(count)
        ]
        if _is_half(pointer) and pointer.dtype is types.float32 and count % 2 == 0:
            parts = halves(builder, pointer.stored.name, parts)
            storage = ir.IntType(32)
        else:
            parts = [as_stored(context, builder, pointer, value) for value in parts]
        place = builder.bitcast(builder.gep(args[0], [args[1]]), words.as_pointer())
        vector = _joined(builder, parts, storage, words)
        builder.store(vector, place, align=_align(storage, len(parts)))

    return store_elements


def _is_half(pointer) -> bool:
    return isinstance(pointer, Elements) and pointer.stored.name in ("f16", "bf16")


def halves(builder, name: str, parts: list) -> list:
    """Neighbouring f32 rounded to words of two halves: one instruction for both."""
    kind = ir.FunctionType(ir.IntType(32), [ir.FloatType(), ir.FloatType()])
    asm = ir.InlineAsm(kind, f"cvt.rn.{name}x2.f32 $0, $1, $2;", "=r,f,f", side_effect=False)
    return [builder.call(asm, [parts[k + 1], parts[k]]) for k in range(0, len(parts), 2)]


# Elements of fewer than 32 bits travel as vectors of 32-bit words: that is what wide loads are
# made of, and NVVM does not gather smaller ones.


def _bits(storage) -> int:
    return {"float": 32, "double": 64}.get(str(storage)) or storage.width


def _words(storage, count: int):
    bits = _bits(storage)
    if bits >= 32:
        return ir.VectorType(storage, count)
    if bits * count < 32:
        return ir.IntType(bits * count)
    return ir.VectorType(ir.IntType(32), bits * count // 32)


def _align(storage, count: int) -> int:
    return min(16, _bits(storage) * count // 8)


def _part(builder, loaded, storage, k: int):
    bits = _bits(storage)
    if bits >= 32:
        return builder.extract_element(loaded, ir.IntType(32)(k))
    at = k * bits
    word = loaded
    if isinstance(loaded.type, ir.VectorType):
        word = builder.extract_element(loaded, ir.IntType(32)(at // 32))
        at %= 32
    if at:
        word = builder.lshr(word, word.type(at))
    return builder.trunc(word, storage)


def _joined(builder, parts, storage, words):
    bits = _bits(storage)
    if bits >= 32:
        vector = ir.Constant(words, ir.Undefined)
        for k, part in enumerate(parts):
            vector = builder.insert_element(vector, part, ir.IntType(32)(k))
        return vector
    whole = words.element if isinstance(words, ir.VectorType) else words
    each = whole.width // bits
    made = []
    for first in range(0, len(parts), each):
        word = builder.zext(parts[first], whole)
        for k in range(1, each):
            wide = builder.zext(parts[first + k], whole)
            word = builder.or_(word, builder.shl(wide, whole(k * bits)))
        made.append(word)
    if not isinstance(words, ir.VectorType):
        return made[0]
    vector = ir.Constant(words, ir.Undefined)
    for k, word in enumerate(made):
        vector = builder.insert_element(vector, word, ir.IntType(32)(k))
    return vector
