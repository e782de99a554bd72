"""Names of parameters, buffers, gradients and modules, for what is reported."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from opstep.frontends.torch.eager.tensors import storage_of


class Names:
    """As they are now: `tensors` by their storages, `modules` by their ids; `values` by name."""

    def __init__(self, optimizers: Any = ()) -> None:
        self.tensors: dict[int, str] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.modules: dict[int, tuple[str, str]] = {}
        for root in roots():
            for name, module in _listed(root.named_modules):
                self.modules.setdefault(id(module), (name, type(module).__name__))
            for name, t in _listed(root.named_parameters) + _listed(root.named_buffers):
                self._add(t, name)
                self._add(t.grad if t.is_leaf else None, f"{name}.grad")
        for optimizer in optimizers:
            for p, state in list(optimizer.state.items()):
                name = self.of(p)
                for key, t in state.items() if name else ():
                    self._add(t, f"{key} of {name}")

    def _add(self, t: Any, name: str) -> None:
        if isinstance(t, torch.Tensor):
            storage = storage_of(t)
            if storage is not None:
                self.tensors.setdefault(storage, name)
                self.values[name] = t

    def of(self, t: torch.Tensor) -> str:
        storage = storage_of(t)
        return "" if storage is None else self.tensors.get(storage, "")

    def module(self, key: int) -> str:
        """``blocks.2.attn``, of the outermost module its class; "" where it is gone."""
        name, kind = self.modules.get(key, ("", ""))
        return name or kind


def modules() -> list[nn.Module]:
    return _instances(nn.Module)


def optimizers() -> list[torch.optim.Optimizer]:
    gc.collect()  # those that nothing holds are none
    return _instances(torch.optim.Optimizer)


def _instances(kind: type) -> list[Any]:
    """All that there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [m for m in gc.get_objects() if issubclass(type(m), kind)]


def roots() -> list[nn.Module]:
    """The modules that are part of no other one."""
    every = modules()
    inner = {id(c) for m in every for c in _listed(lambda m=m: m._modules.values())}
    return [m for m in every if id(m) not in inner]


def parameters() -> list[torch.Tensor]:
    """Those of all modules."""
    return [p for root in roots() for p in _listed(root.parameters)]


def _listed(call: Callable[[], Iterable[Any]]) -> list[Any]:
    """Nothing where it raises: a script's module may be half made, or have methods of its own."""
    try:
        return list(call())
    except Exception:
        return []


def leaves() -> list[torch.Tensor]:
    """Tensors that a script trains though they are no parameters."""
    return [
        t for t in gc.get_objects()
        if type(t) is torch.Tensor and t.requires_grad and t.is_leaf
    ]  # fmt: skip
