"""A program as a file of ONNX: what users call.

`export_model` puts the model together, `export_functions` writes graphs and ops as functions,
`export_writer` the statements of a graph, `export_control` control flow, `export_nodes` nodes, by
the `export_rules` for single ops.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from opstep.frontends.onnx.importing import check_installed
from opstep.frontends.onnx.types import NUMBERS
from opstep.runtime import arrays
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DType, dtype_of
from opstep.runtime.ir.wording import Argument, Wording

if TYPE_CHECKING:
    from onnx import TensorProto

    from opstep.api.program import Program

INSIDE = 64 << 20  # bytes of weights that stay in the model's file; more are put beside it
_MOST = (1 << 31) - (1 << 24)  # of a file of ONNX, with room for its nodes
_SMALL = 1 << 10  # bytes of a tensor that is never put beside it
_ALIGNED = 1 << 12  # where tensors begin in the file of weights: they can be mapped


def to_onnx(
    program: Program, path: str | os.PathLike, graph: str | None = None, *,
    symbols: Mapping[str, int | str | DType] | None = None, updates: bool = False,
    drop_asserts: bool = False, external: bool | None = None,
) -> list[Path]:  # fmt: skip
    """Writes a graph of a program, and all that it calls, as a model of ONNX; gives the paths.

    `symbols`: sizes that are to be numbers in the model, and what type variables are. `updates`:
    named tensors that the graph updates are further inputs, which may be left out, and their new
    values further results. `drop_asserts`: the model has none. `external`: whether the weights are
    in a file of their own, ``model.onnx.data``; None: if they are large. Raises `InputError`, or
    `OpstepError` with everything that ONNX cannot say, at its line.
    """
    check_installed()
    from onnx import numpy_helper

    from opstep.frontends.onnx.export_model import exported

    target = Path(path)
    if target.suffix.lower() != ".onnx":
        raise InputError(f"{target}: programs are exported as .onnx files")
    if not target.parent.is_dir():
        raise InputError(f"{target}: there is no folder {target.parent}")
    if target.is_dir():
        raise InputError(f"{target} is a folder")
    model, names = exported(
        program, graph, symbols or {}, updates=updates, drop_asserts=drop_asserts
    )
    weights = {n: program.params[n] for n in names}
    if external is None:
        external = sum(a.nbytes for a in weights.values()) > INSIDE
    apart = {n: a for n, a in weights.items() if external and a.nbytes >= _SMALL}
    if sum(a.nbytes for n, a in weights.items() if n not in apart) >= _MOST:
        raise InputError(
            f"{target}: a file of ONNX holds less than 2 GiB",
            hint=Wording("put the weights beside it: ", Argument("external", True)),
        )
    beside = target.with_name(f"{target.name}.data")
    places = _places(apart)
    for name, array in weights.items():
        tensor = (
            _reference(name, array, beside.name, places[name])
            if name in apart
            else numpy_helper.from_array(array, name)
        )
        model.graph.initializer.append(tensor)
    content = model.SerializeToString(deterministic=True)

    def write(file: IO[bytes]) -> None:  # a model that is there keeps its weights if this fails
        file.write(content)
        file.flush()
        if apart:
            arrays.replace_file(beside, lambda file: _write(file, apart, places))

    arrays.replace_file(target, write)
    return [target, beside] if apart else [target]


def _places(tensors: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Where each begins in the file of weights."""
    places, end = {}, 0
    for name, array in tensors.items():
        places[name] = end + -end % _ALIGNED
        end = places[name] + array.nbytes
    return places


def _reference(name: str, array: np.ndarray, file: str, place: int) -> TensorProto:
    """A tensor that is in another file."""
    from onnx import TensorProto

    number = NUMBERS[dtype_of(array.dtype)]
    tensor = TensorProto(name=name, dims=array.shape, data_type=number)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", place), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _write(file: IO[bytes], tensors: Mapping[str, np.ndarray], places: Mapping[str, int]) -> None:
    for name, array in tensors.items():
        file.write(b"\0" * (places[name] - file.tell()))
        file.write(array.reshape(-1).view(np.uint8).data)
