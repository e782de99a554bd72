"""opstep: a debugger for computation graphs that is also the runtime they run on."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from opstep.version import __version__

if TYPE_CHECKING:
    from opstep import jax, optim
    from opstep.api.debugging import Debugger
    from opstep.api.kernel_debugging import debug_kernel
    from opstep.api.program import Program, Result, load, loads
    from opstep.api.settings import policy
    from opstep.dap import attach as debug
    from opstep.frontends.jax.importing import from_jax
    from opstep.frontends.onnx.exporting import to_onnx
    from opstep.frontends.onnx.importing import from_onnx
    from opstep.frontends.torch.importing import from_torch
    from opstep.hunting.report import Hunt
    from opstep.hunting.search import hunt
    from opstep.hunting.stepwise import Diverged
    from opstep.runtime.ir.diagnostics import OpstepError
    from opstep.trace.recording import Recording
    from opstep.trace.workspace.workspace import Workspace
    from opstep.training.train import train
    from opstep.training.watching import Tripped

__all__ = [
    "Debugger",
    "Diverged",
    "Hunt",
    "OpstepError",
    "Program",
    "Recording",
    "Result",
    "Tripped",
    "Workspace",
    "__version__",
    "debug",
    "debug_kernel",
    "from_jax",
    "from_onnx",
    "from_torch",
    "hunt",
    "jax",
    "load",
    "loads",
    "optim",
    "policy",
    "to_onnx",
    "train",
]


def __getattr__(name: str):
    """Imports what is asked for when it is first asked for: `opstep --help` needs none of it."""
    if name == "OpstepError":
        from opstep.runtime.ir.diagnostics import OpstepError

        return OpstepError
    if name == "Debugger":
        from opstep.api.debugging import Debugger

        return Debugger
    if name == "Recording":
        from opstep.trace.recording import Recording

        return Recording
    if name == "Workspace":
        from opstep.trace.workspace.workspace import Workspace

        return Workspace
    if name == "train":
        from opstep.training.train import train

        return train
    if name == "Tripped":
        from opstep.training.watching import Tripped

        return Tripped
    if name == "Diverged":
        from opstep.hunting.stepwise import Diverged

        return Diverged
    if name == "debug":
        from opstep.dap import attach

        return attach
    if name == "debug_kernel":
        from opstep.api.kernel_debugging import debug_kernel

        return debug_kernel
    if name == "jax":
        return importlib.import_module("opstep.jax")
    if name == "optim":
        return importlib.import_module("opstep.optim")
    if name == "from_jax":
        from opstep.frontends.jax.importing import from_jax

        return from_jax
    if name == "from_onnx":
        from opstep.frontends.onnx.importing import from_onnx

        return from_onnx
    if name == "to_onnx":
        from opstep.frontends.onnx.exporting import to_onnx

        return to_onnx
    if name == "from_torch":
        from opstep.frontends.torch.importing import from_torch

        return from_torch
    if name in ("Hunt", "hunt"):
        from opstep.hunting import search

        return getattr(search, name)
    if name == "policy":
        from opstep.api.settings import policy

        return policy
    if name in __all__:
        from opstep.api import program

        return getattr(program, name)
    raise AttributeError(f"module 'opstep' has no attribute {name!r}")
