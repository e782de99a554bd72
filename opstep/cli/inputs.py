"""What ``--input``, ``--symbol``, ``--params`` and ``--output`` say, as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api import sources
from opstep.api.sources import (
    check_symbols,
    choose_graph,
    is_generated,
    load_params,
    parse_symbols,
)
from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import Diagnostic, names_listed
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import Graph, Return

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program
    from opstep.runtime.ir.types import DType

__all__ = [
    "batches",
    "check_outputs",
    "check_params_target",
    "check_symbols",
    "check_target",
    "choose_graph",
    "gather",
    "load_params",
    "parse_symbols",
    "result_names",
    "save",
]


def gather(
    program: Program, graph: Graph, words: Sequence[str], symbols: Mapping[str, int | DType],
    seed: int, at_hand: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """As `api.sources.gather`; inputs may be columns of tables and folders of images, too."""
    found = {**table_columns(graph, words), **(at_hand or {})}
    return sources.gather(program, graph, words, symbols, seed, found)


def table_columns(graph: Graph, words: Sequence[str]) -> dict[str, np.ndarray]:
    """``x=FILE.parquet:COLUMN``, ``images=FOLDER``: as training reads them; in the element type of
    the input where that has all of the values.
    """
    import numpy as np

    from opstep.training.files import ARROW, column_of, split

    found: dict[str, np.ndarray] = {}
    types = {b.name.text: b.type for b in graph.inputs}
    for name, _, source in (text.partition("=") for text in words):
        t, (path, key) = types.get(name), split(source)
        is_images = (key or name) in ("images", "labels") and bool(source) and path.is_dir()
        is_table = is_images or path.suffix.lower() in ARROW
        if t is None or name in found or is_generated(source) or not is_table:
            continue
        array = np.asarray(column_of(source, name)(t))
        if not t.dtype.is_generic:
            with np.errstate(all="ignore"):
                cast = array.astype(t.dtype.numpy)
            array = cast if (cast.astype(array.dtype) == array).all() else array
        found[name] = array
    return found


def batches(graph: Graph, sources: Sequence[str], inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """``name=file`` of inputs that change: arrays whose first axis is the steps. `inputs`: what is
    given for the others.
    """
    names = [b.name.text for b in graph.inputs]
    found: dict[str, np.ndarray] = {}
    for text in sources:
        name, equals, source = text.partition("=")
        if not (equals and source) or name not in names or is_generated(source):
            hint = f"write --data NAME=FILE.npy, with NAME of {names_listed(names) or 'no inputs'}"
            raise InputError(f"--data {text}: which input, and from which file?", hint=hint)
        if name in found:
            raise InputError(f"--data {text}: {name} was given before")
        if any(word.startswith(f"{name}=") for word in inputs):
            message = f"input {name} is given by --input and by --data"
            raise InputError(message, hint="leave out one of them")
        array = arrays.load(source)
        if array.ndim == 0 or not len(array):
            raise InputError(f"--data {text}: it has no axis of steps, or none of them")
        found[name] = array
    return found


def result_names(graph: Graph) -> list[str]:
    """The names that the graph returns, in order."""
    returned = [s for s in graph.body if isinstance(s, Return)]
    return [name.text for name in returned[0].values] if returned else []


def check_outputs(outputs: Sequence[str], names: Iterable[str]) -> list[tuple[str | None, Path]]:
    """``y=FILE.npy`` and ``FILE.npz`` as (name or None, path), before anything runs."""
    results = list(names)
    targets: list[tuple[str | None, Path]] = []
    for text in outputs:
        name, equals, file = text.partition("=")
        path = Path(file if equals else name)
        if equals and name not in results:
            message = f"--output {text}: the graph returns no {name}"
            raise UnknownName(message, name, results, "it returns")
        if path.suffix not in (".npy", ".npz", ".safetensors"):
            raise InputError(f"--output {text}: write to a .npy, .npz or .safetensors file")
        if path.suffix == ".npy" and not equals and len(results) != 1:
            raise InputError(
                f"--output {text}: an .npy file holds one array, the graph returns {len(results)}",
                hint=f"write --output {results[0]}={path}, or to an .npz file" if results else "",
            )
        check_target(path, f"--output {text}", [p for _, p in targets])
        targets.append((name if equals else None, path))
    return targets


def check_params_target(file: str, outputs: Sequence[tuple[str | None, Path]]) -> None:
    """Complains, before anything runs, of a file that params cannot be saved to."""
    if Path(file).suffix != ".safetensors":
        raise InputError(f"--save-params {file}: write to a .safetensors file")
    check_target(Path(file), f"--save-params {file}", [p for _, p in outputs])


def check_target(path: Path, what: str, others: Sequence[Path]) -> None:
    """Complains, before anything runs, of a file that cannot be written, or that is written twice.

    What a long run has computed must not be lost to a slip of the pen.
    """
    if not os.path.isdir(path.parent):
        raise InputError(f"{what}: there is no folder {path.parent}")
    if os.path.isdir(path):
        raise InputError(f"{what}: {path} is a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{what}: the folder {path.parent} cannot be written to")
    if any(path.absolute() == p.absolute() for p in others):
        raise InputError(f"{what}: this file is written to already")


def save(
    targets: Sequence[tuple[str | None, Path]],
    results: Mapping[str, Any],
    params: tuple[str, Mapping[str, Any]] | None = None,
) -> None:
    """Writes results and params to the files that were accepted. One that fails stops no other."""
    work = [partial(_write_results, path, name, results) for name, path in targets]
    if params:
        work.append(partial(arrays.write_safetensors, *params))
    faults: list[Diagnostic] = []
    for write in work:
        try:
            write()
        except InputError as error:
            faults += error.diagnostics
    if faults:
        raise InputError(faults)


def _write_results(path: Path, name: str | None, results: Mapping[str, Any]) -> None:
    write_arrays(path, dict(results) if name is None else {name: results[name]})


def write_arrays(path: Path, named: Mapping[str, Any]) -> None:
    """Writes a .npy file, of which there is one array, an .npz or a .safetensors file."""
    if path.suffix == ".npy":
        arrays.write_npy(path, next(iter(named.values())))
    elif path.suffix == ".npz":
        arrays.write_npz(path, named)
    else:
        arrays.write_safetensors(path, named)
