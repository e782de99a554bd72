"""Names of parameters, buffers, gradients and modules, for what is reported."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import torch
from torch import nn


class Names:
    """As they are now: `tensors` by their storages, `modules` by their ids; `values` by name."""

    def __init__(self, optimizers: Any = ()) -> None:
        self.tensors: dict[int, str] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.modules: dict[int, tuple[str, str]] = {}
        for root in roots():
            for name, module in root.named_modules():
                self.modules.setdefault(id(module), (name, type(module).__name__))
            for name, t in (*root.named_parameters(), *root.named_buffers()):
                self._add(t, name)
                self._add(t.grad if t.is_leaf else None, f"{name}.grad")
        for optimizer in optimizers:
            for p, state in list(optimizer.state.items()):
                name = self.of(p)
                for key, t in state.items() if name else ():
                    self._add(t, f"{key} of {name}")

    def _add(self, t: Any, name: str) -> None:
        if isinstance(t, torch.Tensor):
            try:
                self.tensors.setdefault(t.untyped_storage()._cdata, name)
                self.values[name] = t
            except (NotImplementedError, RuntimeError):  # it has none: sparse, a subclass
                return

    def of(self, t: torch.Tensor) -> str:
        try:
            return self.tensors.get(t.untyped_storage()._cdata, "")
        except (NotImplementedError, RuntimeError):
            return ""

    def module(self, key: int) -> str:
        """``blocks.2.attn``, of the outermost module its class; "" where it is gone."""
        name, kind = self.modules.get(key, ("", ""))
        return name or kind


def modules() -> list[nn.Module]:
    """All that there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]


def roots() -> list[nn.Module]:
    """The modules that are part of no other one."""
    every = modules()
    inner = {id(c) for m in every for c in m._modules.values() if c is not None}
    return [m for m in every if id(m) not in inner]


def leaves() -> list[torch.Tensor]:
    """Tensors that a script trains though they are no parameters."""
    return [
        t for t in gc.get_objects()
        if type(t) is torch.Tensor and t.requires_grad and t.is_leaf
    ]  # fmt: skip
