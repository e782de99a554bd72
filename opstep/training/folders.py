"""Folders of images as tables: a folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime.ir.diagnostics import first_line
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.types import TensorType
from opstep.training.tables import TRAINED, VALIDATED, Table

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
