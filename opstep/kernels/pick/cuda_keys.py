"""Elements as integers of the wanted order, to sort on CUDA, and back.

A key has as many bits as the element, and is made of its bits: NaN is larger than anything else,
-0.0 equals 0.0, and for the descending order all bits are inverted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.launch import CARRIERS
from opstep.runtime.ir.types import DType

_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


class Keys(NamedTuple):
    """`of`: the key of an element's bits. `bits`: those of a key, where `unique` says that no other
    element has it. `carrier`: the integers that hold either.
    """

    carrier: DType
    of: Callable
    bits: Callable
    unique: Callable


@cache
def keys_of(dtype: DType, descending: bool) -> Keys:
    """Of elements as they are stored."""
    most = (1 << dtype.bits - 1) - 1
    infinity = _INFINITY.get(dtype.name, most)
    flip = -1 if descending else 0
    lowest = 0 if dtype.kind == "i" else -most - 1

    def float_key(bits):
        size = bits & most
        k = bits ^ ((bits >> 63) & most)
        if size == 0:
            k = np.int64(0)
        if size > infinity:
            k = np.int64(most)
        return k ^ flip

    def float_bits(key):
        k = key ^ flip
        return k ^ ((k >> 63) & most)

    def float_unique(key):
        k = key ^ flip
        return k != 0 and k != most

    def integer_key(bits):
        return bits ^ lowest ^ flip

    def integer_unique(key):
        return True

    carrier = CARRIERS[dtype.itemsize]
    if dtype.is_float:
        return Keys(carrier, float_key, float_bits, float_unique)
    return Keys(carrier, integer_key, integer_key, integer_unique)


def itself(key):
    return key


def place(held, row, i, n, inner):
    """The place in the row comes with a key where nothing is held."""
    return i


def element(held, row, i, n, inner):
    return held[first_of(row, n, inner) + i * inner]


def first_of(row, n, inner):
    """The first element of a sequence along an axis of n elements that are `inner` apart."""
    if inner == 1:  # without a division
        return row * n
    outer = row // inner
    return outer * n * inner + row - outer * inner


@cache
def into_results(keys: Keys, with_values: bool) -> Callable:
    """Writes a sorted element: its place, and what stands there in x. Sequences begin at `source`
    in x, at `target` in the results.
    """
    bits_of, unique = keys.bits, keys.unique

    def put_both(x, values, indices, source, target, at, key, place, inner):
        into = target + at * inner
        indices[into] = place
        values[into] = bits_of(key) if unique(key) else x[source + np.int64(place) * inner]

    def put_index(x, values, indices, source, target, at, key, place, inner):
        indices[target + at * inner] = place

    return put_both if with_values else put_index


def into_pairs(x, keys, held, source, target, at, key, value, inner):
    """Writes a sorted pair."""
    keys[target + at] = key
    held[target + at] = value
