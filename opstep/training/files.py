"""Files that data comes from, by their kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opstep.runtime import arrays
from opstep.runtime.ir.errors import InputError, NoSuchFile, UnknownName
from opstep.training.arrow import arrow_table
from opstep.training.folders import Folder
from opstep.training.tables import Read, Table

KINDS = ".npz, .npy, .safetensors, .parquet, .arrow and .feather files, and folders of images"
ARROW = (".parquet", ".pq", ".arrow", ".feather")


def table_of(spec: str | Path) -> Table:
    """The table of a file or folder, or of its part: ``FILE:PART``. Raises `InputError`."""
    path, key = split(str(spec))
    table = _table(path)
    if key is None:
        return table
    part = table.part(key)
    if part is None:
        message = f"{path} has no part {key}: no column is called {key}_…"
        raise UnknownName(message, key, table.columns, "its columns are")
    return part


def column_of(spec: str | Path, name: str) -> Read:
    """One column: ``FILE.npy``, ``FILE.npz:KEY``. Without a key it has the name, or is alone. Of
    several, ``FILE.parquet:a,b,c``, each row has a number from each.
    """
    path, key = split(str(spec))
    table = _table(path)
    if key is None:
        alone = len(table.columns) == 1
        key = next(iter(table.columns)) if alone and name not in table.columns else name
    keys = [key] if key in table.columns else key.split(",")
    for one in keys:
        if one not in table.columns:
            message = f"{path} has no column {one}"
            raise UnknownName(message, one, table.columns, "its columns are")
    if len(keys) == 1:
        return table.columns[keys[0]]
    return lambda t: np.stack([table.columns[k](t.with_shape(t.shape[:1])) for k in keys], axis=1)


def split(spec: str) -> tuple[Path, str | None]:
    """``FILE:KEY`` as its parts, where there is no file of the whole name."""
    head, colon, key = spec.rpartition(":")
    if colon and head and not Path(spec).exists():
        return Path(head), key
    return Path(spec), None


def _table(path: Path) -> Table:
    if path.is_dir():
        return Folder(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return Table(str(path), {path.stem: lambda t: arrays.map_npy(path)})
    if suffix in (".npz", ".safetensors"):
        npz = suffix == ".npz"
        names = (arrays.list_npz if npz else arrays.list_safetensors)(path)
        read = arrays.read_npz if npz else arrays.read_safetensors
        return Table(str(path), {n: lambda t, n=n: read(path, n)[n] for n in names})
    if suffix in ARROW:
        return arrow_table(path)
    if not path.exists():
        raise NoSuchFile(path, "there is no such file or folder")
    raise InputError(
        f"{path}: not a kind of file that data is read from", hint=f"data comes from {KINDS}"
    )
