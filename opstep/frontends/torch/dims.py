"""PyTorch's symbolic sizes as dims: sympy expressions become polynomials over our symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opstep.frontends.torch.errors import OF_DATA, Untranslatable
from opstep.runtime.ir import types
from opstep.runtime.ir.dims import Dim, symbol
from opstep.runtime.ir.types import DType, TensorType

DTYPES = {
    torch.float64: types.f64,
    torch.float32: types.f32,
    torch.float16: types.f16,
    torch.bfloat16: types.bf16,
    torch.int64: types.i64,
    torch.int32: types.i32,
    torch.int16: types.i16,
    torch.int8: types.i8,
    torch.uint8: types.u8,
    torch.bool: types.boolean,
}


def dtype_of(dtype: torch.dtype) -> DType:
    """Our element type; raises `Untranslatable` where there is none (complex, float8, ...)."""
    if dtype not in DTYPES:
        raise Untranslatable(f"tensors of {dtype} have no counterpart")
    return DTYPES[dtype]


def element_of(value: torch.Tensor) -> DType:
    """Raises `Untranslatable` for what is no plain array of elements."""
    if value.layout is not torch.strided:
        layout = str(value.layout).removeprefix("torch.").removeprefix("_")
        raise Untranslatable(f"tensors that are {layout} have no counterpart")
    return dtype_of(value.dtype)


def memory_order(t: torch.Tensor) -> list[int] | None:
    """Its axes from that of the largest steps in memory; None where that is not the whole story."""
    if t.is_contiguous():
        return list(range(t.dim()))
    steps = list(map(hinted, t.stride()))
    order = sorted(range(t.dim()), key=lambda k: -steps[k])
    return order if t.permute(order).is_contiguous() else None


def hinted(size: Any) -> Any:
    """A size as it was when it was traced."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


class Symbols:
    """Names of the symbols of one import: those of `torch.export.Dim` where they were given."""

    def __init__(self, names: dict[str, str] | None = None):
        self._names = names or {}  # by sympy's name

    def name(self, theirs: str) -> str:
        """Ours for sympy's symbol: s0, s1, … where it has no name of its own."""
        if theirs not in self._names:
            taken, k = set(self._names.values()), 0
            while f"s{k}" in taken:
                k += 1
            self._names[theirs] = f"s{k}"
        return self._names[theirs]

    def dim(self, size: Any) -> Dim:
        """An int or a SymInt as a dim. Raises `Untranslatable` where it depends on data."""
        if isinstance(size, int):
            return size
        return self._converted(size.node.expr, size.node.shape_env.bound_sympy)

    def number(self, value: torch.SymFloat | torch.SymBool) -> float | bool:
        """One that is computed from sizes. Raises `Untranslatable` where they are not known."""
        raise Untranslatable("a number that is computed while the model runs")

    def type_of(self, value: torch.Tensor) -> TensorType:
        """Raises `Untranslatable`."""
        return TensorType(element_of(value), tuple(self.dim(s) for s in value.shape))

    def _converted(self, e: Any, bounds: Callable[[Any], Any]) -> Dim:
        """`bounds`: between which numbers PyTorch knows an expression to be."""
        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            if e.name.startswith("u"):
                raise Untranslatable(OF_DATA)
            return symbol(self.name(e.name))
        kind = type(e).__name__
        if kind in ("Max", "Min"):
            chosen = _chosen(kind, e.args, bounds)
            if chosen is not None:
                return self._converted(chosen, bounds)
        args = [self._converted(a, bounds) for a in e.args if a.is_Integer or not a.is_number]
        if len(args) == len(e.args):
            found = _combined(kind, args)
            if found is not None:
                return found
        raise Untranslatable(f"the size {e} cannot be written as a dim")


def _chosen(kind: str, args: Sequence[Any], bounds: Callable[[Any], Any]) -> Any:
    """The one that is the largest or smallest for all sizes; None where it may be any of them."""
    for a in args:
        others = (bounds(a - o if kind == "Max" else o - a).lower for o in args)
        if all(lower >= 0 for lower in others):
            return a
    return None


Sizes = Mapping[Any, int]  # what sympy's symbols are in a call


class ConcreteSizes(Symbols):
    """Sizes of one call, for what a program cannot keep open."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self._sizes = sizes

    def dim(self, size: Any) -> Dim:
        if not isinstance(size, int) and not self._are_known(size):
            raise Untranslatable(OF_DATA)
        return evaluated(size, self._sizes)

    def _are_known(self, value: Any) -> bool:
        return value.node.expr.free_symbols <= self._sizes.keys()

    def number(self, value: torch.SymFloat | torch.SymBool) -> float | bool:
        if not self._are_known(value):
            return super().number(value)
        return evaluated(value, self._sizes)


def evaluated(size: Any, sizes: Sizes) -> Any:
    """A size, or a number that is computed from sizes, in a call."""
    if not isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
        return size
    return size.node.pytype(size.node.expr.xreplace(dict(sizes)))


def _combined(kind: str, args: list[Dim]) -> Dim | None:
    result = args[0]
    for arg in args[1:]:
        match kind:
            case "Add":
                result = result + arg
            case "Mul":
                result = result * arg
            case "FloorDiv" | "CleanDiv":
                result = result // arg
            case "Mod" | "PythonMod":
                result = result % arg
            case "Pow" if isinstance(arg, int) and arg > 0:
                base = result
                for _ in range(arg - 1):
                    result = result * base
            case _:
                return None
    return result
