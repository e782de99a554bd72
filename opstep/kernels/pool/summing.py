"""Ops whose results are weighted sums over windows, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from opstep.kernels.schedules.cpu import window as on_cpu
from opstep.kernels.schedules.cuda import window as on_cuda
from opstep.kernels.schedules.window import Terms, summed
from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import TensorType, f64


class Summing(Op):
    """Base of ops of `axes` dimensions. `windows`, given the sizes of a channel of x and of y, and
    all attributes, says what each axis sums.
    """

    axes: ClassVar[int]
    windows: ClassVar[Callable[..., list[Terms]]]

    @classmethod
    def terms(cls, sizes: Sequence[int], out: Sequence[int], attrs: dict) -> list[Terms]:
        return cls.windows(sizes, out, **attrs)

    @classmethod
    def oracle(cls, x, **attrs):
        out = cls.infer(TensorType(f64, x.shape), **attrs).shape
        return summed(x, cls.terms(x.shape[2:], out[2:], attrs))

    @classmethod
    def cpu(cls, x: Arg, y: Arg, **attrs) -> list[Launch]:
        return on_cpu.sums(x, y, cls.terms(x.shape[2:], y.shape[2:], attrs))

    @classmethod
    def cuda(cls, x: Arg, y: Arg, **attrs) -> list[Grid]:
        return on_cuda.sums(x, y, cls.terms(x.shape[2:], y.shape[2:], attrs))


class SummingGradient(Summing):
    """Base of the derivatives: `windows` are those of the op itself, x has `size`."""

    results = ("gx",)

    @classmethod
    def terms(cls, sizes: Sequence[int], out: Sequence[int], attrs: dict) -> list[Terms]:
        given = {key: value for key, value in attrs.items() if key != "size"}
        terms = cls.windows(out, sizes, **given)
        return [own.transposed(n) for own, n in zip(terms, out, strict=True)]
