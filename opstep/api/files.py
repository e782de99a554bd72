"""A program from its text, verified on the mesh of its ranks, and the files beside it.

``model.opg`` is the text. ``model.safetensors`` has the values of params and states without an
initialiser, by name; ``model.example.safetensors`` has inputs that its graph takes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import OpstepError, did_you_mean, in_order
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.foreign import LIBRARIES
from opstep.runtime.ir.graph import Declaration, Module
from opstep.runtime.ir.mesh import MOST_RANKS, ONE_RANK, WORLD, Mesh
from opstep.runtime.ir.parser import parse_with_diagnostics
from opstep.runtime.ir.verified import Verified
from opstep.runtime.ir.verify import errors_beside, verify_with_diagnostics
from opstep.runtime.ir.wording import Argument, Wording

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program
    from opstep.api.tensors import Tensors

# Modules with a function `load_file` for files that hold a program in another form, by suffix. They
# are imported when such a file is met: nothing here depends on them.
IMPORTERS = {
    ".onnx": "opstep.frontends.onnx.importing", ".pt2": "opstep.frontends.torch.importing"
}  # fmt: skip
PICKLES = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle")


class Files:
    """What is beside a program's file; nothing, for a program that was not read from one."""

    def __init__(self, program: str | os.PathLike | None = None):
        path = None if program is None else Path(program)
        self.weights = path.with_suffix(".safetensors") if path and path.stem else None
        self.example = path.with_suffix(".example.safetensors") if path and path.stem else None

    @cached_property
    def names(self) -> frozenset[str]:
        """Of the tensors whose values are there."""
        if self.weights is None or not self.weights.is_file():
            return frozenset()
        return frozenset(arrays.list_safetensors(self.weights))

    def tensors(self, names: Collection[str], params: Tensors) -> dict[str, np.ndarray]:
        """The values of those that are there, as `params` take them. The file is mapped: nothing
        else of it is read.
        """
        held = self.names.intersection(names) if names else frozenset()
        if not held or self.weights is None:
            return {}
        return params.read(self.weights, held)

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The example inputs by name; none where there are none. May be set."""
        if self.example is None or not self.example.is_file():
            return {}
        return arrays.read_safetensors(self.example)


def importer_of(path: str | os.PathLike) -> Callable[[Any, str | None], Program] | None:
    """What reads a file that is no text in the language. Raises `InputError` for a pickle, and for
    Python.
    """
    suffix = Path(os.fspath(path)).suffix.lower()
    check_not_python(path)
    if suffix in IMPORTERS:
        return importlib.import_module(IMPORTERS[suffix]).load_file
    if suffix in PICKLES:
        raise InputError(
            f"{path}: {suffix} files are pickles, which are never read: they can run code",
            hint="export the model: torch.export.save(torch.export.export(model, args), "
            f'"{Path(path).stem}.pt2")',
        )
    return None


def check_not_python(path: str | os.PathLike) -> None:
    """Complains of a script in place of a program. Raises `InputError`."""
    if Path(path).suffix.lower() == ".py":
        raise InputError(
            f"{path} is a Python script, not a program",
            hint="opstep run, opstep hunt and opstep debug take scripts",
        )


def parsed(text: str, path: str) -> Module:
    """The syntax tree. Raises `OpstepError` with all syntax errors, and with the other errors of
    graphs that have none.
    """
    from opstep.kernels.stdlib import library

    module, faults = parse_with_diagnostics(text, path)
    if faults:
        raise OpstepError(list(in_order([*faults, *errors_beside(module, faults, library())])))
    return module


def mesh_for(declared: Mesh | None, given: Mapping[str, int] | None, ranks: int | None) -> Mesh:
    """The mesh of a run: what its text declares, with the extents `given` in their place, for so
    many ranks; of one rank where nobody says how many. Raises `InputError`.
    """
    mesh = declared or ONE_RANK
    if given:
        unknown = [name for name in given if declared and name not in declared.names]
        if unknown:
            hint = did_you_mean(unknown[0], mesh.names) or f"it has {', '.join(mesh.names)}"
            raise InputError(f"the mesh has no axis {unknown[0]}", hint=hint)
        extents = dict(mesh.axes) | dict(given) if declared else dict(given)
        mesh = Mesh(tuple(extents.items()), True)
    elif given is None and (ranks is None or ranks == 1):
        return mesh if mesh is ONE_RANK else mesh.alone()
    elif declared is None and ranks is not None:
        mesh = Mesh(((WORLD, ranks),))
    if ranks is not None and mesh.ranks != ranks:
        example = dict.fromkeys(mesh.names, 1) | {mesh.names[0]: ranks}
        hint = Wording(Argument("mesh", example), " gives it other extents")
        message = f"the mesh ({mesh}) is of {mesh.ranks:,} ranks, not {ranks:,}"
        raise InputError(message, hint=hint)
    if mesh.ranks > MOST_RANKS:
        message = f"the mesh ({mesh}) is of {mesh.ranks:,} ranks; {MOST_RANKS:,} are the most"
        raise InputError(message)
    return mesh


def verified_on(mesh: Mesh, module: Module, library: Sequence[Module]) -> Verified:
    """What is known about a module on a mesh. Raises `OpstepError`: where it is right on the mesh
    that it declares, it says so.
    """
    verified, errors = verify_with_diagnostics(module, library=library, mesh=mesh)
    if not errors:
        return verified
    declared = module.mesh
    if declared not in (None, mesh) and not verify_with_diagnostics(module, library=library)[1]:
        first, wanted = errors[0], declared.ranks if declared else 1
        hint = Wording(Argument("ranks", wanted), f" has the mesh {declared}")
        errors = [replace(first, message=f"on the mesh {mesh}: {first.message}", hint=hint)]
    raise OpstepError(errors)


def check_fallback(fallback: str | None) -> None:
    """Complains of a library that there is none of."""
    if fallback is not None and fallback not in LIBRARIES:
        raise SettingError("fallback", fallback, f"None or {' or '.join(map(repr, LIBRARIES))}")


def kept(program: Program) -> dict[str, np.ndarray]:
    """The values that are saved with a program: those that no initialiser gives. Of shards all
    ranks call this, and rank 0 gets the whole.
    """
    return program.params.whole(_kept_names(program))


def _kept_names(program: Program) -> list[str]:
    params = program.params
    return [name for name in params.known() if not params.drawable(name)]


def text_for(program: Program, folder: Path) -> str:
    """A program's text as it is saved in a folder."""
    from opstep.api.origins import relocated
    from opstep.runtime.ir.printer import print_module

    module = _without_initialisers(program.module, _kept_names(program))
    return print_module(relocated(module, _folder_of(program), folder))


def save(program: Program, path: str | os.PathLike) -> list[Path]:
    """Writes a program's text, the values that no initialiser gives, and the example inputs; gives
    the paths of the files.
    """
    target = Path(path)
    if target.suffix != ".opg":
        raise InputError(f"{target}: programs are saved as .opg files")
    if not target.parent.is_dir():
        raise InputError(f"{target}: there is no folder {target.parent}")
    files = Files(target)
    assert files.weights is not None and files.example is not None
    values = kept(program)
    example = program.example
    written = [target]
    if values:
        arrays.write_safetensors(files.weights, values)
        written.append(files.weights)
    if example:
        arrays.write_safetensors(files.example, example)
        written.append(files.example)
    arrays.replace_text(target, text_for(program, target.absolute().parent))
    return written


def _without_initialisers(module: Module, names: Collection[str]) -> Module:
    """The module, where the named tensors have the values that are saved."""
    items = tuple(
        replace(i, init=None, attrs=(), value=None)
        if isinstance(i, Declaration) and i.name.text in names
        else i
        for i in module.items
    )
    return Module(items, module.closing, module.source)


def _folder_of(program: Program) -> Path:
    """Where relative paths in the text begin."""
    source = program.module.source
    if source is not None and Path(source.path).is_file():
        return Path(source.path).absolute().parent
    return Path.cwd()
