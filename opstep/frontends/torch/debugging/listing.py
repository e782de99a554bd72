"""Ops that ran, and those of a line's last run as text."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch

from opstep.frontends.debugging.listed import Listing, listed, place_of
from opstep.frontends.torch.debugging import values
from opstep.frontends.torch.dims import DTYPES
from opstep.frontends.torch.eager.findings import documented
from opstep.frontends.torch.eager.ops import by_name, without_defaults
from opstep.runtime.ir.types import TensorType

MOST_OPS = 1000  # of a line's last run that are listed


@dataclass(frozen=True)
class Op:
    """One that ran. `arguments`: as its schema has them."""

    name: str
    overload: str
    arguments: list[Any]
    results: list[torch.Tensor]

    @property
    def result(self) -> Any:
        return self.results[0] if len(self.results) == 1 else self.results

    @property
    def operands(self) -> types.SimpleNamespace:
        """By the names that PyTorch documents."""
        schema = by_name(self.name, self.overload)._schema
        names = [documented(a.name) for a in schema.arguments]
        return types.SimpleNamespace(**dict(zip(names, self.arguments, strict=False)))


def add(op: Op, frame: types.FrameType | None) -> None:
    """An op to all listed lines that it runs in."""
    text = ""
    while frame is not None:
        found = listed.get(place := place_of(frame))
        if found is not None:
            if found.is_over:
                found = listed[place] = Listing(is_whole=True)
            found.count += 1
            if len(found.ops) < MOST_OPS:
                text = text or op_text(op)
                found.ops.append(text)
        frame = frame.f_back


def op_text(op: Op) -> str:
    """``aten::add(f32[2, 3], f32[3]) -> f32[2, 3]  mean 0.5  …``"""
    given = without_defaults(by_name(op.name, op.overload), op.arguments)
    operands = ", ".join(map(_operand, given))
    shown = "; ".join(values.text_of(t) for t in op.results)
    return f"{op.name}({operands})" + (f" -> {shown}" if shown else "")


def _operand(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = DTYPES.get(value.dtype)
        if dtype is None:
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return str(TensorType(dtype, tuple(value.shape)))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_operand, value))}]"
    return str(value)
