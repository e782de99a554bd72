"""What PyTorch refuses, in a few words and with the line of the user's model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from opstep.frontends.missing import source_line
from opstep.frontends.torch.dims import element_of
from opstep.frontends.torch.errors import Untranslatable, cause
from opstep.frontends.torch.sources import is_pytorch
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Source, Span

_HERE = str(Path(__file__).parent)
DATA = "which way the model goes here depends on the values of a tensor"
_REASONS = (  # (in PyTorch's message, ours, hint)
    (r"Could not guard on data-dependent|data-dependent", DATA,
     "choose with torch.where, or compute the number outside the model and pass it as an argument"),
    (r"\.numpy\(\) is not supported|not supported for tensor subclasses",
     "the model leaves PyTorch here, for NumPy", "stay with tensors: torch has the same functions"),
    (r"aten\.(_nested\w*|nested\w*)", "nested tensors have no counterpart", "pad them"),
    (r"quantized nyi|torch\.classes\.quantized", "quantised tensors have no counterpart",
     "use the model as it was before"),
    (r"uninitialized parameter", "a lazy module has no weights yet", "call the model once before"),
    (r"Exporting a ScriptModule", "TorchScript modules cannot be imported",
     "pass the module that was scripted"),
    (r"^list assignment index out of range$",
     "dynamic_shapes names an axis that its input does not have", ""),
    (r"specialized it to be a constant \((\d+)\)",
     r"a size is marked as dynamic, and the model works for \1 only", ""),
)  # fmt: skip


def refusal(error: Exception) -> InputError:
    """Of an export."""
    text = str(error)
    message, hint = f"PyTorch cannot export the model: {_named(error)}", ""
    for pattern, ours, advice in _REASONS:
        found = re.search(pattern, text)
        if found:
            message, hint = found.expand(ours), advice
            break
    if _is_packed(error):
        message = "packed sequences have no counterpart: their lengths are values of a tensor"
        hint = "pass padded sequences, and mask what lies behind their ends"
    suggested = re.search(r"Suggested fixes:\n((?: +.+\n?)+)", text)
    if suggested:
        hint = "PyTorch suggests " + "; ".join(suggested[1].strip().split("\n  "))
    source, span = _place(error)
    return InputError(message, span=span, source=source, hint=hint)


def _is_packed(error: Exception) -> bool:
    """Whether it was raised while a recurrent layer had packed sequences."""
    frames = [f for f, _ in walk_tb(error.__traceback__) if is_pytorch(f.f_code.co_filename)]
    return any(
        f.f_code.co_filename.endswith("rnn.py") and f.f_locals.get("batch_sizes") is not None
        for f in frames
    )


def _named(error: Exception) -> str:
    """What PyTorch says; errors that the model raises itself with their class."""
    if type(error).__module__ == "builtins" and not isinstance(error, RuntimeError):
        return f"{type(error).__name__}: {cause(error)}"
    return cause(error)


def _place(error: Exception) -> tuple[Source | None, Span | None]:
    """The innermost line that is not PyTorch's own."""
    frames = [
        f for f in extract_tb(error.__traceback__)
        if not is_pytorch(f.filename) and not f.filename.startswith((_HERE, "<"))
    ]  # fmt: skip
    below = [k for k, f in enumerate(frames) if f.name == "forward"]
    if not below:
        return None, None
    return source_line(frames[-1].filename, frames[-1].lineno or 0)


def check_tensors(exported: ExportedProgram) -> None:
    """Complains of params, buffers and constants that are no plain arrays of numbers."""
    found = []
    for name, value in (*exported.state_dict.items(), *exported.constants.items()):
        if isinstance(value, torch.Tensor):
            try:
                element_of(value)
            except Untranslatable as error:
                found.append(f"{name}: {error}")
        else:
            found.append(f"{name} is a {type(value).__name__}, not a tensor")
    if found:
        raise InputError(Diagnostic("error", text) for text in found)


def check_args(args: Any, kwargs: Any) -> None:
    """Complains of example inputs that `torch.export` has no good words for."""
    if isinstance(args, torch.Tensor) or not isinstance(args, Sequence) or isinstance(args, str):
        raise InputError(
            f"args is a {type(args).__name__}; it is a tuple of the model's arguments",
            hint="for one argument write (x,)",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"kwargs is a {type(kwargs).__name__}; it is a dict of arguments by name")
    for name, value in (*((f"args[{k}]", a) for k, a in enumerate(args)), *(kwargs or {}).items()):
        if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            raise InputError(
                f"{name} is an array of NumPy; PyTorch's models take tensors",
                hint=f"torch.from_numpy({name})",
            )
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and (leaf.is_nested or leaf.is_quantized):
                kind, hint = (
                    ("nested", "pad it") if leaf.is_nested else ("quantised", "dequantise it")
                )
                raise InputError(f"{name}: {kind} tensors have no counterpart", hint=hint)
