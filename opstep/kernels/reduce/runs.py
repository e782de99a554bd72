"""Runs of elements that become one number: what stands here is the meaning, and what a GPU's thread
does; the CPU's bodies are vectors, in an order of additions that is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.runtime.device.builtin import (
    buffer_f32_512,
    buffer_f64_512,
    fixed_dot,
    fixed_largest,
    fixed_product,
    fixed_sum,
    offset,
)
from opstep.runtime.device.source import vectorised

RUN = 512  # terms that are computed before they are added, at most


def _on_floats(body: Callable):
    """Marks a function whose loop over a run of floats the CPU replaces by `body`."""
    return vectorised(f32=body, f64=body)


@_on_floats(fixed_sum)
def sum_of(x, n):
    """In the elements' type."""
    total = x[0] - x[0]
    for i in range(n):
        total += x[i]
    return total


def row_sum(x, n):
    """In blocks, in the elements' type, and in order over blocks in f64."""
    total = np.float64(0.0)
    for start in range(0, n, RUN):
        total += sum_of(offset(x, start), min(RUN, n - start))
    return total


def _product(x, n):
    terms = buffer_f64_512()
    for i in range(n):
        terms[i] = x[i]
    return fixed_product(terms, n)


@_on_floats(_product)
def product_of(x, n):
    """In f64; n is at most `RUN`."""
    product = np.float64(1)
    for i in range(n):
        product *= x[i]
    return product


@_on_floats(fixed_largest)
def largest_of(x, n):
    """Of n > 0 elements; where one is NaN, any of them."""
    top = x[0]
    for i in range(1, n):
        top = x[i] if x[i] > top else top
    return top


@_on_floats(fixed_dot)
def dot_of(a, x, centre, n):
    """The sum of a * (x - centre), in the elements' type."""
    total = centre - centre
    for i in range(n):
        total += a[i] * (x[i] - centre)
    return total


@cache
def sum_of_terms(term: Callable) -> Callable:
    """A function (x, other, c, n) for n up to `RUN`: the sum of term(x[i], other[i], c) in the type
    of c, the kernel's.
    """

    def single(x, other, c, n):
        terms = buffer_f32_512()
        for i in range(n):
            terms[i] = term(x[i], other[i], c)
        return fixed_sum(terms, n)

    def double(x, other, c, n):
        terms = buffer_f64_512()
        for i in range(n):
            terms[i] = term(x[i], other[i], c)
        return fixed_sum(terms, n)

    @vectorised(f32=single, f64=double)
    def plain(x, other, c, n):
        total = c - c
        for i in range(n):
            total += term(x[i], other[i], c)
        return total

    return plain
