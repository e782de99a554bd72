"""Matrix products through cuBLASLt: y = a·b, and a bias for each column.

cuBLASLt stores matrices column by column. A row-major y [m, n] is, read that way, its transpose
[n, m], and yᵀ = bᵀ·aᵀ: so its A is our b, its B our a, and its rows our columns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from opstep.runtime.device.cuda.driver.driver import current
from opstep.runtime.device.cuda.vendor.libraries import Library, library
from opstep.runtime.device.routine import Enqueue

_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}  # cudaDataType
_COMPUTE_32F, _COMPUTE_64F = 68, 70  # cublasComputeType_t; f32 without TF32
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 4, 7, 8
_EPILOGUE_BIAS = 4
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6
_PREF_WORKSPACE, _PREF_REDUCTION, _PREF_ALIGNMENT = 1, 3, (5, 6, 7, 8)
_REDUCED_APART = 2  # partial sums are added from the workspace, in a fixed order
WORKSPACE = 32 << 20  # bytes; what Hopper's kernels may want
WORKSPACE_ALIGNMENT = 256  # bytes: else algorithms are refused, not before they run
_ASKED = 8  # algorithms, best first


class Product(NamedTuple):
    """y[i] = a[i]·b[i] for i < batch: matrices [m, k], [k, n], [m, n], row-major.

    `turned_a`: a is stored [k, m]; `turned_b`: b is stored [n, k]. `strides`: elements from one
    matrix of a, b and y to the next. `alignment`: bytes that all addresses are multiples of.
    """

    dtype: str
    m: int
    n: int
    k: int
    turned_a: bool = False
    turned_b: bool = False
    batch: int = 1
    strides: tuple[int, int, int] = (0, 0, 0)
    bias: bool = False
    alignment: int = 256


def supports(dtype: str) -> bool:
    return dtype in _TYPES


def algorithms(product: Product) -> Iterator[Matmul]:
    """Ways to compute it, what the library thinks best first. The GPU's context is current."""
    lib = library("cublasLt")
    parts = _Parts(lib, product)
    preference = _Opaque(lib, "cublasLtMatmulPreference")
    preference.set(_PREF_WORKSPACE, ctypes.c_size_t(WORKSPACE))
    preference.set(_PREF_REDUCTION, ctypes.c_uint32(_REDUCED_APART))
    for attribute in _PREF_ALIGNMENT:
        preference.set(attribute, ctypes.c_uint32(product.alignment))
    found, count = (_Heuristic * _ASKED)(), ctypes.c_int()
    lib.cublasLtMatmulAlgoGetHeuristic(
        _handle(current()), parts.operation.address,
        *(layout.address for layout in (parts.a, parts.b, parts.y, parts.y)),
        preference.address, _ASKED, found, ctypes.byref(count),
    )  # fmt: skip
    for rank in range(count.value):
        if found[rank].state == 0:
            yield Matmul(product, rank, found[rank])


class Matmul:
    """A product with an algorithm; bound to a, b, y and, where there is one, the bias."""

    def __init__(self, product: Product, rank: int, found: _Heuristic):
        self.name = f"cublas {rank}"
        self._workspace: int = found.workspace
        # an address that is no multiple of what the library wants is moved on
        self.workspace = self._workspace and self._workspace + WORKSPACE_ALIGNMENT
        self._product = product
        self._algorithm = found.algorithm

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        lib, product = library("cublasLt"), self._product
        parts = _Parts(lib, product)
        a, b, y, *bias = pointers
        aligned = -(-workspace // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        if bias:
            parts.operation.set(_DESC_BIAS_POINTER, ctypes.c_void_p(bias[0]))
        real = ctypes.c_double if product.dtype == "f64" else ctypes.c_float
        out = (ctypes.c_void_p(y), parts.y.address)
        args = (
            *(_handle(current()), parts.operation.address, ctypes.byref(real(1.0))),
            *(ctypes.c_void_p(b), parts.a.address, ctypes.c_void_p(a), parts.b.address),
            *(ctypes.byref(real(0.0)), *out, *out, ctypes.byref(self._algorithm)),
            *(ctypes.c_void_p(aligned), ctypes.c_size_t(self._workspace)),
        )
        run = lib.cublasLtMatmul

        def enqueue(stream: int, parts: _Parts = parts) -> None:  # which owns what args point to
            run(*args, ctypes.c_void_p(stream))

        return enqueue


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class _Opaque:
    """A descriptor of the library: ``<kind>Create``, ``SetAttribute``, ``Destroy``."""

    def __init__(self, lib: Library, kind: str, *args: object):
        self.address = ctypes.c_void_p()
        self._lib, self._kind = lib, kind
        getattr(lib, f"{kind}Create")(ctypes.byref(self.address), *args)

    def set(self, attribute: int, value: ctypes._SimpleCData) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        call = getattr(self._lib, f"{self._kind}SetAttribute")
        call(self.address, attribute, ctypes.byref(value), size)

    def __del__(self) -> None:
        if self.address:
            getattr(self._lib.loaded, f"{self._kind}Destroy")(self.address)


class _Parts:
    """The descriptors of a product, in the library's order: its a is our b."""

    def __init__(self, lib: Library, product: Product):
        m, n, k = product.m, product.n, product.k
        double = product.dtype == "f64"
        compute, scale = (_COMPUTE_64F, "f64") if double else (_COMPUTE_32F, "f32")
        self.operation = _Opaque(lib, "cublasLtMatmulDesc", compute, _TYPES[scale])
        self.operation.set(_DESC_TRANSA, ctypes.c_int32(product.turned_b))
        self.operation.set(_DESC_TRANSB, ctypes.c_int32(product.turned_a))
        if product.bias:
            self.operation.set(_DESC_EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
            # until the address is known, one as good as any
            self.operation.set(_DESC_BIAS_POINTER, ctypes.c_void_p(256))
        a, b, y = product.strides
        self.a = self._layout(lib, product, (k, n) if product.turned_b else (n, k), b)
        self.b = self._layout(lib, product, (m, k) if product.turned_a else (k, m), a)
        self.y = self._layout(lib, product, (n, m), y)

    def _layout(
        self, lib: Library, product: Product, shape: tuple[int, int], stride: int
    ) -> _Opaque:
        """Of contiguous columns, one behind the other."""
        rows, columns = shape
        made = _Opaque(
            lib, "cublasLtMatrixLayout", _TYPES[product.dtype], ctypes.c_uint64(rows),
            ctypes.c_uint64(columns), ctypes.c_int64(rows),
        )  # fmt: skip
        if product.batch > 1:
            made.set(_LAYOUT_BATCH_COUNT, ctypes.c_int32(product.batch))
            made.set(_LAYOUT_BATCH_STRIDE, ctypes.c_int64(stride))
        return made


@cache
def _handle(ordinal: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    library("cublasLt").cublasLtCreate(ctypes.byref(made))
    return made
