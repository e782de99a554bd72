"""Parquet and Arrow files as tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import first_line
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.types import TensorType
from opstep.training.tables import Table


def arrow_table(path: Path) -> Table:
    arrays.check_file(path)
    try:
        import pyarrow
        from pyarrow import feather, parquet
    except ImportError:
        raise DeviceError(
            f"{path}: reading it needs pyarrow", hint='pip install "opstep[data]"'
        ) from None
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            names = parquet.read_schema(path).names
            read = partial(parquet.read_table, path)
        else:
            table = feather.read_table(path)
            names, read = table.column_names, lambda columns: table.select(columns)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: it cannot be read: {first_line(error)}") from None

    def column(name: str, wanted: TensorType) -> np.ndarray:
        where = f"{path}: {name}"
        try:
            return _array(read(columns=[name]).column(0), wanted, where)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{where}: it cannot be read: {first_line(error)}") from None

    return Table(str(path), {name: partial(column, name) for name in names})


def _array(column: Any, wanted: TensorType, where: str) -> np.ndarray:
    """A column of numbers, or of lists of them, which are taken to be rows of the wanted shape."""
    import pyarrow.types as kinds

    array = column.combine_chunks()
    if hasattr(array, "chunks"):
        array = array.chunk(0) if array.num_chunks else array.type.empty_array()
    rows, lengths = len(array), []
    while True:
        if array.null_count:
            row = array.is_null().index(True).as_py()
            raise InputError(f"{where}: row {row} has no value", hint="fill it, or leave it out")
        if not (kinds.is_list(array.type) or kinds.is_large_list(array.type)
                or kinds.is_fixed_size_list(array.type)):  # fmt: skip
            break
        sizes = np.asarray(array.value_lengths())
        if len(sizes) and (sizes != sizes[0]).any():
            row = int((sizes != sizes[0]).argmax())
            raise InputError(f"{where}: lists have different lengths: {sizes[0]}, and {sizes[row]}")
        lengths.append(int(sizes[0]) if len(sizes) else 0)
        array = array.flatten()
    if not (kinds.is_integer(array.type) or kinds.is_floating(array.type)
            or kinds.is_boolean(array.type)):  # fmt: skip
        raise InputError(f"{where}: values are {array.type}, not numbers")
    flat = array.to_numpy(zero_copy_only=False)
    shape: Any = wanted.shape[1:]
    known = len(lengths) == 1 and all(isinstance(d, int) for d in shape)
    if known and np.prod(shape, dtype=int) == lengths[0]:
        return flat.reshape(rows, *shape)
    return flat.reshape(rows, *lengths)
