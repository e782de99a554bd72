"""Files of ONNX: nothing in them is trusted.

What a file says of sizes is compared with what is there before memory is taken. Weights that lie in
files of their own are mapped, and only those in the model's folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from opstep.api.files import Files
from opstep.frontends.onnx.types import DTYPES, name_of
from opstep.runtime.ir.errors import InputError, NoSuchFile
from opstep.runtime.ir.types import DType, TensorType, bf16, boolean, f16

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from opstep.api.tensors import Tensors

GRAPH = 5  # AttributeProto.GRAPH
EXTERNAL = 1  # TensorProto.EXTERNAL
MOST_BYTES = 2**31 - 1  # of a protobuf


def read(path: Path) -> ModelProto:
    """A model as it stands in a file, without weights in other files. Raises `InputError`."""
    if not path.exists():
        raise NoSuchFile(path)
    if not path.is_file():
        raise InputError(f"{path} is no file")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(
            f"{path} has more than 2 GiB, the most that a protobuf can have",
            hint="save the weights beside it: onnx.save(model, path, save_as_external_data=True)",
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (OSError, ValueError, RuntimeError) as error:  # what protobuf raises is one of these
        raise InputError(f"{path} cannot be read as ONNX: {_line(error)}") from None
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        if "MaxDepth" in str(error):
            raise InputError(f"{path}: its graphs are in each other too deep to be read") from None
        raise InputError(f"{path} is no ONNX file, or a part of it is missing") from None
    return model


def check(model: ModelProto, path: str) -> None:
    """Raises `InputError` with what `onnx.checker` finds: the first thing that is wrong."""
    if not model.HasField("graph"):
        raise InputError(f"{path} has no graph")
    parts = [model.graph, *model.functions]
    if not all(isinstance(t, str) for part in parts for t in _texts(part)):
        raise InputError(f"{path} has a name that is no UTF-8")
    try:
        onnx.checker.check_model(_without_places(model))
    except onnx.checker.ValidationError as error:
        raise InputError(f"{path}: {_told(error)}") from None
    except (ValueError, RuntimeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {_line(error)}") from None


def _texts(part: Any) -> Iterator[Any]:
    """The names in a graph or function; bytes where they are no text."""
    if isinstance(part, onnx.GraphProto):
        for value in (*part.input, *part.output):
            yield value.name
            for dim in value.type.tensor_type.shape.dim:
                yield dim.dim_param
        yield from (t.name for t in part.initializer)
    else:
        yield from (part.name, part.domain, *part.input, *part.output)
    for node in part.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (v for p in node.metadata_props for v in (p.key, p.value))
        for attribute in node.attribute:
            yield attribute.name
            yield attribute.ref_attr_name
            if attribute.type == GRAPH:
                yield from _texts(attribute.g)


def _without_places(model: ModelProto) -> ModelProto:
    """The model with small stand-ins for large weights: the checker looks for external ones from
    the present folder, and copies all of them. We look at them ourselves (`array_of`).
    """
    if not any(_is_large(t) for t in model.graph.initializer):
        return model
    copy = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _set(copy, field, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _set(copy.graph, field, value)
    for tensor in model.graph.initializer:
        if _is_large(tensor):
            copy.graph.initializer.add(name=tensor.name, data_type=2, dims=[0], raw_data=b"")
        else:
            copy.graph.initializer.append(tensor)
    return copy


def _is_large(tensor: TensorProto) -> bool:
    return tensor.data_location == EXTERNAL or len(tensor.raw_data) > 64


def _set(message: Any, field: Any, value: Any) -> None:
    if hasattr(value, "extend") or (
        hasattr(value, "MergeFrom") and not hasattr(value, "ListFields")
    ):
        getattr(message, field.name).extend(value)
    elif hasattr(value, "CopyFrom"):
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def _told(error: Exception) -> str:
    """What the checker says, with the place, on one line."""
    lines = [t.strip() for t in str(error).splitlines() if t.strip()]
    what = [t for t in lines if not t.startswith("==>")] or [type(error).__name__]
    where = [t.removeprefix("==> Context:").strip() for t in lines if t.startswith("==> Context:")]
    return " ".join([*what[:3], *(f"({w})" for w in where)])[:600]


def _line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


# --- tensors --------------------------------------------------------------------------------------


def type_of(tensor: TensorProto) -> TensorType:
    """Raises `InputError` where there is no such type."""
    if tensor.data_type not in DTYPES:
        raise InputError(
            f"tensor {tensor.name}: {name_of(tensor.data_type)} has no counterpart here"
        )
    if any(d < 0 for d in tensor.dims):
        raise InputError(f"tensor {tensor.name} has a size below 0: {list(tensor.dims)}")
    return TensorType(DTYPES[tensor.data_type], tuple(tensor.dims))


def array_of(tensor: TensorProto, folder: Path | None) -> np.ndarray:
    """A tensor's elements, where they lie if that can be. Raises `InputError` where they are not
    as many as its shape says.
    """
    dtype, shape = type_of(tensor).dtype, tuple(tensor.dims)
    bytes = prod(shape) * dtype.itemsize
    if tensor.data_location == EXTERNAL:
        return _mapped(tensor, folder, bytes, dtype, shape)
    if tensor.HasField("raw_data"):
        _check_size(tensor, len(tensor.raw_data), bytes)
        found = np.frombuffer(tensor.raw_data, dtype.numpy)
        return (found != 0 if dtype is boolean else found).reshape(shape)
    found = _listed(tensor, dtype)
    _check_size(tensor, len(found) * dtype.itemsize, bytes)
    return found.reshape(shape)


def _listed(tensor: TensorProto, dtype: DType) -> np.ndarray:
    """Elements that stand one by one in a field that depends on the type."""
    for field in ("float_data", "int32_data", "int64_data", "double_data"):
        values = getattr(tensor, field)
        if not values:
            continue
        if dtype in (f16, bf16) and field == "int32_data":
            return np.array(values, np.int32).astype(np.uint16).view(dtype.numpy)
        return np.array(values).astype(dtype.numpy)
    return np.zeros(0, dtype.numpy)


def _check_size(tensor: TensorProto, found: int, wanted: int) -> None:
    if found != wanted:
        shape = list(tensor.dims)
        raise InputError(f"tensor {tensor.name}: {found} bytes for the shape {shape}, not {wanted}")


def _mapped(
    tensor: TensorProto, folder: Path | None, bytes: int, dtype: DType, shape: tuple
) -> np.ndarray:
    entries = {e.key: e.value for e in tensor.external_data}
    place = entries.get("location", "")
    if folder is None:
        raise InputError(
            f"tensor {tensor.name} is in the file {place}, but the model has no folder",
            hint="give the path of the model's file",
        )
    path = _inside(folder, place, tensor.name)
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or bytes)
    except ValueError:
        raise InputError(f"tensor {tensor.name}: its place in {place} is no number") from None
    _check_size(tensor, length, bytes)
    if offset < 0 or offset + bytes > path.stat().st_size:
        raise InputError(f"tensor {tensor.name}: {path} ends before it does")
    if not bytes:
        return np.zeros(shape, dtype.numpy)
    raw = np.memmap(path, np.uint8, "r", offset, bytes)
    if offset % dtype.itemsize:
        return np.frombuffer(raw.tobytes(), dtype.numpy).reshape(shape)
    found = raw.view(dtype.numpy)
    return (found != 0 if dtype is boolean else found).reshape(shape)


def _inside(folder: Path, place: str, name: str) -> Path:
    """The file, which has to be in the folder, links followed."""
    wrong = not place or "\0" in place or os.path.isabs(place)
    try:
        path = folder if wrong else (folder / place).resolve()
    except RuntimeError:
        raise InputError(f"tensor {name}: {place!r} is a link to itself") from None
    if wrong or not path.is_relative_to(folder.resolve()):
        raise InputError(
            f"tensor {name}: {place!r} is outside of the model's folder, where nothing is read"
        )
    if not path.is_file():
        raise InputError(
            f"{path}: tensor {name} is in a file that is not there",
            hint="move or copy a model together with the files of its weights",
        )
    return path


class Weights(Files):
    """The values of a program's named tensors, in the model that it came from: each is taken from
    there when it is needed.
    """

    def __init__(self, path: Path | None):
        super().__init__()
        self.weights = path
        self._folder = None if path is None else path.parent
        self._found: dict[str, TensorProto | np.ndarray] = {}

    def add(self, name: str, value: TensorProto | np.ndarray) -> None:
        self._found[name] = value

    @property
    def names(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset(self._found)

    def tensors(self, names: Collection[str], params: Tensors) -> dict[str, np.ndarray]:
        return dict(self._values(names))

    def _values(self, names: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            value = self._found[name]
            yield name, value if isinstance(value, np.ndarray) else array_of(value, self._folder)

    @property
    def inputs(self) -> Mapping[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.given

    @inputs.setter
    def inputs(self, inputs: Mapping[str, Any]) -> None:
        self.given = inputs

    given: Mapping[str, Any] = {}
