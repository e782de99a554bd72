"""Where a group of elementwise ops (`plan.fusing`) finds its kernels, once one is launched."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from opstep.runtime.plan.epilogues import epilogued
from opstep.runtime.plan.fusing import fused, measured


def _late(module: str, name: str) -> Callable:
    """A function of a module that is imported when it is called."""

    def call(*args: Any, **attrs: Any) -> Any:
        return getattr(import_module(f"opstep.kernels.pointwise.{module}"), name)(*args, **attrs)

    return call


fused.cpu = _late("fused", "launch")
fused.cuda = _late("cuda_fused", "launch_on_gpu")
measured.cuda = _late("cuda_measured", "launch_measured")
measured.is_taken = _late("cuda_measured", "is_measured")
epilogued.cuda = _late("cuda_epilogue", "epilogued_on_gpu")
epilogued.is_taken = _late("cuda_epilogue", "is_taken")
