"""What users call. PyTorch is imported, and asked for its version, only then."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.files import check_fallback
from opstep.frontends import installed

if TYPE_CHECKING:
    import torch

    from opstep.api.program import Program
    from opstep.frontends.torch.assembling import Translated

OLDEST = (2, 6)  # its exported programs have what the translator reads


def from_torch(
    model: torch.nn.Module | torch.export.ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fallback: str | None = None,
) -> Program:
    """A program that computes what a PyTorch model computes, with the model's weights.

    `model`: a module, which `torch.export` traces with the example arguments `args` and `kwargs`;
    or an exported program; or the path of a ``.pt2`` file. `dynamic_shapes`: as in
    `torch.export.export`: sizes that are symbols of the program. `fallback`: "torch" has PyTorch
    run the ops that have no counterpart, each as a statement of its own.

    The program's graph `main` takes the model's tensors in order and gives its outputs; each kind
    of module is a graph of its own. Named tensors have the names of the model's `state_dict`.
    `program.example` has the example inputs by name; `program.save` writes all of it to files.
    Raises `InputError` where PyTorch cannot export the model, `ImportFailed` where ops of it have
    no counterpart here.
    """
    check_fallback(fallback)
    found = translated(
        model, args, kwargs, dynamic_shapes=dynamic_shapes, fallback=fallback is not None
    )
    return found.program


def translated(
    model: torch.nn.Module | torch.export.ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fallback: bool = False,
) -> Translated:
    """`from_torch`, with what it found on the way."""
    check_installed()
    from opstep.frontends.torch.exporting import translate_exported, translate_model
    from opstep.frontends.torch.pt2 import read

    if isinstance(model, str | os.PathLike):
        path = f"<{Path(model).name}>"
        return translate_exported(read(Path(model)), {}, path, fallback=fallback)
    return translate_model(model, args, kwargs, dynamic_shapes, fallback)


def load_file(path: str | os.PathLike, fallback: str | None = None) -> Program:
    """The program of a ``.pt2`` file. Raises as `from_torch` does."""
    return translated(Path(path), fallback=fallback is not None).program


def check_installed() -> None:
    """Complains where PyTorch is missing or too old."""
    installed.check_installed("torch", "PyTorch", "models of PyTorch need PyTorch", OLDEST)
