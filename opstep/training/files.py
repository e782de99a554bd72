"""Files that data comes from, by their kinds: NumPy's, safetensors, Parquet and Arrow, and folders
of images, with a folder for each class. They are tables: columns by name, read when wanted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import first_line
from opstep.runtime.ir.errors import DeviceError, InputError, NoSuchFile, UnknownName
from opstep.runtime.ir.types import TensorType

Read = Callable[[TensorType], Any]  # the column for an input of that type, as an array or like one

TRAINED = ("train", "training")
VALIDATED = ("validation", "valid", "val", "test", "dev")


class Table:
    """Columns by name. `source`: where they are, in messages; `classes`: what the numbers of a
    column stand for, of those that are numbered here.
    """

    def __init__(
        self, source: str, columns: Mapping[str, Read],
        classes: Mapping[str, Sequence[str]] | None = None,
    ):  # fmt: skip
        self.source = source
        self.columns = dict(columns)
        self.classes = dict(classes or {})

    def part(self, name: str) -> Table | None:
        """The columns of a part, such as ``train``: ``train_x`` and ``x_train`` are its x. None
        where it has none.
        """
        found = {}
        for column, read in self.columns.items():
            for mark in "_./-":
                if column.startswith(name + mark):
                    found[column[len(name) + 1 :]] = read
                elif column.endswith(mark + name):
                    found[column[: -len(name) - 1]] = read
        return Table(f"{self.source}:{name}", found) if found else None

    def part_with(self, wanted: Collection[str], parts: Sequence[str]) -> Table:
        """This table, or the first of these parts that has all columns that are wanted, where the
        table itself does not.
        """
        if not self.columns.keys() >= set(wanted):
            for name in parts:
                part = self.part(name)
                if part is not None and part.columns.keys() >= set(wanted):
                    return part
        return self


IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


class Folder(Table):
    """A folder for each class of images; or for each part, which then has those."""

    def __init__(self, path: Path):
        self.path = path
        parts = (*TRAINED, *VALIDATED)
        family = [path.parent / name for name in parts] if path.name in parts else [path]
        names = {p.name for part in family if part.is_dir() for p in _folders(part)}
        self._classes = [path / name for name in sorted(names)]  # a class has one number in all
        columns = {"images": self._images, "labels": self._labels}
        super().__init__(f"{path}", columns, {"labels": [p.name for p in self._classes]})

    def part(self, name: str) -> Table | None:
        return Folder(self.path / name) if (self.path / name).is_dir() else None

    def part_with(self, wanted: Collection[str], parts: Sequence[str]) -> Table:
        names = {p.name for p in self._classes}
        if names and names <= {*TRAINED, *VALIDATED}:
            return next((Folder(self.path / n) for n in parts if n in names), self)
        return self

    def _files(self) -> list[tuple[Path, int]]:
        """Files with the numbers of their classes."""
        found: list[tuple[Path, int]] = []
        for k, folder in enumerate(self._classes or [self.path]):
            if not folder.is_dir():  # another part has this class
                continue
            files = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in IMAGES]
            if not files:  # later classes would have other numbers than they have without it
                raise InputError(
                    f"{folder}: there are no images in this folder",
                    hint=f"{self.path} is to have a folder for each class, with images in it",
                )
            found += [(path, k) for path in files]
        return found

    def _labels(self, wanted: TensorType) -> np.ndarray:
        if not self._classes:
            raise InputError(
                f"{self.path}: there are no folders of classes in it, so no labels",
                hint=f"{self.path}/CLASS/IMAGE.png has the label of its class, from 0, by name",
            )
        return np.array([label for _, label in self._files()], np.int64)

    def _images(self, wanted: TensorType) -> np.ndarray:
        return _images([path for path, _ in self._files()], wanted)


def _folders(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if p.is_dir() and p.name[0] != "."]


def _images(paths: Sequence[Path], wanted: TensorType) -> np.ndarray:
    """All of them, decoded, as u8 in the order of axes that the input has."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DeviceError(
            f"{paths[0]}: reading images needs Pillow", hint='pip install "opstep[data]"'
        ) from None
    mode, axes = _layout(wanted)
    found: np.ndarray | None = None
    for k, path in enumerate(paths):
        try:
            if not path.is_file():
                raise InputError(f"{path} is no file that can be read")
            with _no_bombs(), Image.open(path) as image:
                _check_kind(image, path)
                pixels = np.asarray(image.convert(mode), np.uint8)
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
            raise InputError(f"{path}: not an image, or damaged: {first_line(error)}") from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            most = (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
            raise InputError(
                f"{path} has more than {most} million pixels", hint="scale it down"
            ) from None
        if found is None:
            found = np.empty((len(paths), *pixels.shape), np.uint8)
        if pixels.shape != found.shape[1:]:
            first, this = (f"{s[1]}x{s[0]}" for s in (found.shape[1:], pixels.shape))
            raise InputError(
                f"{path} is {this} pixels, and {paths[0]} is {first}", hint="scale them to one size"
            )
        found[k] = pixels
    assert found is not None
    if axes == "N1HW":
        return found[:, None]
    return np.ascontiguousarray(found.transpose(0, 3, 1, 2)) if axes == "NCHW" else found


@contextmanager
def _no_bombs() -> Iterator[None]:
    """Pillow only warns of an image that has up to twice as many pixels as it allows."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _check_kind(image: Any, path: Path) -> None:
    """Complains of an image that would lose what it is: Pillow cuts values above 255 off."""
    if image.mode[0] in "IF":
        kind = "floats" if image.mode == "F" else "more than 8 bits"
        raise InputError(
            f"{path} has pixels of {kind}; they are to be 0 to 255",
            hint="convert it, or give the images as a .npy file",
        )
    if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: photos, a preview
        raise InputError(f"{path} has {image.n_frames} frames; it is to be one image")


def _layout(wanted: TensorType) -> tuple[str, str]:
    """The mode that images are read in, and the order of their axes."""
    shape: Any
    modes, shape = {1: "L", 3: "RGB", 4: "RGBA"}, wanted.shape
    if len(shape) == 3:
        return "L", "NHW"
    if len(shape) == 4 and shape[1] in modes:
        return modes[shape[1]], "NCHW" if shape[1] != 1 else "N1HW"
    if len(shape) == 4 and shape[3] in modes and shape[3] != 1:
        return modes[shape[3]], "NHWC"
    raise InputError(
        f"an input of type {wanted} takes no images",
        hint="images are [N, H, W], [N, C, H, W] or [N, H, W, C], with 1, 3 or 4 channels",
    )


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
