"""What ``--input``, ``--symbol``, ``--params`` and ``--output`` say, as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.api import sources
from opstep.api.sources import is_generated
from opstep.cli.options import check_kernels, load_program
from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import Diagnostic, names_listed
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import Graph, Return

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program
    from opstep.runtime.ir.types import DType

ARRAYS = (".npy", ".npz", ".safetensors")  # files that arrays are written to


class Asked(NamedTuple):
    """The program, its graph and the sizes that the options of `program_options` name."""

    program: Program
    graph: Graph
    symbols: dict[str, int | DType]
    options: Mapping[str, Any]

    def values(
        self, at_hand: Mapping[str, np.ndarray] | None = None, rank: int | None = None
    ) -> dict[str, np.ndarray]:
        """The inputs, as `api.sources.gather` has them; they may be columns of tables and folders
        of images, too. `rank`: what ``{rank}`` in them stands for. Raises `InputError`.
        """
        words = self.options["inputs"]
        if rank is not None:
            words = [word.replace("{rank}", str(rank)) for word in words]
        found = {**table_columns(self.graph, words), **(at_hand or {})}
        seed = self.options.get("seed", 0)
        return sources.gather(self.program, self.graph, words, self.symbols, seed, found)

    def load_params(self) -> None:
        """Those of ``--params``, where it is given."""
        if self.options["params"]:
            sources.load_params(self.program, self.options["params"])


def asked(file: str, options: Mapping[str, Any]) -> Asked:
    """The program of a file, as a command's options have it. Raises `OpstepError`."""
    program = load_program(file, options)
    graph = sources.choose_graph(program.module, options["graph"], file)
    symbols = sources.parse_symbols(options["symbols"])
    sources.check_symbols(graph, symbols)
    check_kernels(options)
    return Asked(program, graph, symbols, options)


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
        file = file if equals else name
        if equals and name not in results:
            message = f"--output {text}: the graph returns no {name}"
            raise UnknownName(message, name, results, "it returns")
        path = check_target(file, f"--output {text}", ARRAYS, [p for _, p in targets])
        if path.suffix == ".npy" and not equals and len(results) != 1:
            raise InputError(
                f"--output {text}: an .npy file holds one array, the graph returns {len(results)}",
                hint=f"write --output {results[0]}={path}, or to an .npz file" if results else "",
            )
        targets.append((name if equals else None, path))
    return targets


def check_target(
    file: str, what: str, suffixes: Sequence[str], others: Sequence[Path] = ()
) -> Path:
    """The path of a file to be written, once it is known that it can be: of one of these kinds, and
    none of `others`. Raises `InputError`, before anything runs: what a long run has computed must
    not be lost to a wrong name.
    """
    path = Path(file)
    if path.suffix not in suffixes:
        *first, last = suffixes
        kinds = f"{', '.join(first)} or {last}" if first else last
        raise InputError(f"{what}: write to a {kinds} file")
    if not os.path.isdir(path.parent):
        raise InputError(f"{what}: there is no folder {path.parent}")
    if os.path.isdir(path):
        raise InputError(f"{what}: {path} is a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{what}: the folder {path.parent} cannot be written to")
    if any(path.absolute() == p.absolute() for p in others):
        raise InputError(f"{what}: this file is written to already")
    return path


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
