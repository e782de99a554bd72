"""What users call. onnx is imported, and asked for its version, only then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.frontends import installed
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto

    from opstep.api.program import Program

OLDEST = (1, 16)


def from_onnx(
    model: ModelProto | str | os.PathLike, *, constants: Mapping[str, Any] | None = None
) -> Program:
    """A program that computes what an ONNX model computes, with the model's weights.

    `model`: a path, or a model that is loaded. `constants`: elements of inputs, by name, which are
    the same in every run; those that decide shapes have to be given, as a shape is part of a type.

    The program's graph `main` takes the model's inputs in order and gives its outputs; functions of
    the model are graphs, and so are blocks that it repeats. Named tensors have the names of its
    initializers. Raises `InputError` where the file is no model, `ImportFailed` where nodes of it
    have no counterpart.
    """
    check_installed()
    import onnx

    from opstep.frontends.onnx.assembling import program_of
    from opstep.frontends.onnx.reading import read

    if isinstance(model, onnx.ModelProto):
        return program_of(model, "<model>", None, constants or {})
    path = Path(model)
    return program_of(read(path), str(path), path, constants or {})


def load_file(path: str | os.PathLike, fallback: str | None = None) -> Program:
    """The program of an ``.onnx`` file. Raises as `from_onnx` does."""
    if fallback is not None:
        raise InputError(f"{path}: the ops of an ONNX model are not left to {fallback}")
    return from_onnx(path)


def check_installed() -> None:
    """Complains where onnx is missing or too old."""
    installed.check_installed("onnx", "onnx", "models of ONNX need the package onnx", OLDEST)
