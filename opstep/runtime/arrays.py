"""Arrays in files: `.npy`, `.npz` and safetensors, read without trusting them.

What a file says about itself is compared with its real size before any memory is asked for. Pickled
objects are never read. Every complaint is an `InputError` that names the file.
"""

from __future__ import annotations

import lzma
import os
import stat
import struct
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf, prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from opstep.runtime.ir.diagnostics import first_line
from opstep.runtime.ir.errors import InputError, NoSuchFile, UnknownName
from opstep.runtime.ir.types import DTYPES, DType, bf16, boolean, dtype_of

# Element types as safetensors call them.
_SAFE = {t.name.upper(): t for t in DTYPES.values()} | {"BOOL": boolean}
_INFLATES_AT_MOST = 1100  # times: DEFLATE's limit is 1032
_LARGE = 1 << 28  # bytes; only of less there may be more than _DENSE times as many as in the file
_DENSE = 64
_CHUNK = 1 << 24  # bytes read at once

# What zipfile and NumPy's parser of headers raise over files that are not what they claim.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError,
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


Expect = Callable[[DType, tuple[int, ...]], Any]
"""Is asked, before elements are read, whether these are those of the array that is wanted."""


def load(spec: str, most: float = inf, expect: Expect | None = None) -> np.ndarray:
    """The array that ``FILE.npy``, ``FILE.npz`` (with one array), ``FILE.npz:key`` or
    ``FILE.safetensors:name`` names. One of more bytes than `most`, or that `expect` raises
    `InputError` for, is refused before it is read.
    """
    path, key = split_key(spec)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return read_npy(path, most, expect)
    if suffix not in (".npz", ".safetensors"):
        raise InputError(
            f"{path}: not a kind of file that arrays are read from",
            hint="arrays come from .npy, .npz and .safetensors files",
        )
    read = read_npz if suffix == ".npz" else read_safetensors
    if key is not None:
        return read(path, key, most, expect=expect)[key]
    names = list_npz(path) if suffix == ".npz" else list_safetensors(path)
    if len(names) != 1:
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise InputError(
            f"{path}: holds {len(names)} arrays: say which",
            hint=f"write {path.name}:KEY with one of {listed}" if names else "",
        )
    return read(path, names[0], most, expect=expect)[names[0]]


def split_key(spec: str) -> tuple[Path, str | None]:
    """``FILE.npz:key`` as its parts; no key, no colon behind the suffix."""
    for suffix in (".npz", ".safetensors"):
        at = spec.lower().rfind(suffix + ":")
        if at >= 0:
            return Path(spec[: at + len(suffix)]), spec[at + len(suffix) + 1 :]
    return Path(spec), None


# --- npy ------------------------------------------------------------------------------------------


def read_npy(path: str | Path, most: float = inf, expect: Expect | None = None) -> np.ndarray:
    """The array of an .npy file, row-major and in this machine's byte order."""
    path = Path(path)
    with _opened(path) as (file, size):
        return _read_array(file, size, str(path), most, expect)


def map_npy(path: str | Path) -> np.ndarray:
    """`read_npy` that leaves the elements in the file until they are looked at, where it can."""
    path = Path(path)
    with _opened(path) as (file, size):
        shape, fortran, dtype, begin = _header(file, str(path))
        plain = dtype.isnative and dtype.kind in "iuf" and not fortran
        if plain and 0 < prod(shape) * dtype.itemsize == size - begin:
            return np.memmap(path, dtype, "r", begin, shape)
    return read_npy(path)


def _read_array(
    file: IO[bytes], size: int, where: str, most: float = inf, expect: Expect | None = None
) -> np.ndarray:
    """One array in .npy format from a stream that holds `size` bytes."""
    shape, fortran, dtype, begin = _header(file, where)
    element = _element(dtype, where)
    expected = prod(shape) * dtype.itemsize
    if expected != size - begin:
        less = "truncated" if expected > size - begin else "longer than that"
        raise InputError(
            f"{where}: says it holds {expected:,} bytes of data ({_shape(shape)} of "
            f"{element.name}), but is {less}: {size - begin:,} bytes are there"
        )
    _check_size(expected, where, most)
    if expect:
        expect(element, shape)
    flat = np.empty(expected, np.uint8)
    _fill(file, flat, where)
    raw = flat.view(element.numpy if dtype.kind == "V" else dtype)
    try:
        array = raw.reshape(shape, order="F" if fortran else "C")
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {_shape(shape)} is not a shape that NumPy can hold") from None
    return _tidy(array, element)


def _check_size(nbytes: int, where: str, most: float) -> None:
    if nbytes > most:
        raise InputError(f"{where}: {nbytes:,} bytes are more than are read here: {most:,}")


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    try:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version} of the format is not known")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except DAMAGE as error:
        raise InputError(f"{where}: not an .npy array: {first_line(error)}") from None
    if dtype.hasobject:
        raise InputError(
            f"{where}: holds Python objects, which are never read: they can run code when loaded",
            hint="save an array of numbers, with allow_pickle=False",
        )
    if any(type(d) is not int or d < 0 for d in shape):
        raise InputError(f"{where}: {shape} is not a shape")
    return shape, fortran, dtype, file.tell()


def _fill(file: IO[bytes], flat: np.ndarray, where: str) -> None:
    view, done = memoryview(flat), 0  # pyright: ignore[reportArgumentType]
    while done < len(view):
        try:
            piece = file.read(min(_CHUNK, len(view) - done))
        except DAMAGE as error:
            raise InputError(f"{where}: damaged: {first_line(error)}") from None
        if not piece:
            raise InputError(f"{where}: truncated: {len(view) - done:,} bytes are missing")
        view[done : done + len(piece)] = piece
        done += len(piece)


def _element(dtype: np.dtype, where: str) -> DType:
    """The element type that the file's dtype stands for, whatever its byte order."""
    if dtype == np.dtype("V2"):  # how NumPy writes bf16
        return bf16
    try:
        return dtype_of(dtype.newbyteorder("="))
    except (KeyError, TypeError):
        raise InputError(
            f"{where}: {dtype} is not an element type of the language",
            hint=f"convert it to one of {', '.join(DTYPES)}",
        ) from None


def _tidy(array: np.ndarray, element: DType) -> np.ndarray:
    """Row-major, in this machine's byte order, bools 0 or 1 whatever byte the file has for true."""
    if element is boolean:
        array = array.view(np.uint8) != 0
    return np.asarray(array, element.numpy, order="C")


# --- npz ------------------------------------------------------------------------------------------


def list_npz(path: str | Path) -> list[str]:
    """The names of the arrays in an .npz file."""
    with _zip(Path(path)) as (_, members, _):
        return list(members)


def read_npz(
    path: str | Path, only: str | None = None, most: float = inf, expect: Expect | None = None
) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, or the one named `only`."""
    path = Path(path)
    with _zip(path) as (archive, members, size):
        if only is not None:
            members = {only: _member(members, only, str(path))}
        return {n: _read_member(archive, m, size, path, most, expect) for n, m in members.items()}


@contextmanager
def _zip(path: Path):
    with _opened(path) as (file, size):
        try:
            archive = zipfile.ZipFile(file)
        except DAMAGE as error:
            raise InputError(f"{path}: not an .npz archive: {first_line(error)}") from None
        with archive:
            entries = [m for m in archive.infolist() if m.filename.endswith(".npy")]
            members = {m.filename.removesuffix(".npy"): m for m in entries}
            if len(members) != len(entries):
                raise InputError(f"{path}: holds two arrays of one name")
            yield archive, members, size


def _read_member(
    archive: zipfile.ZipFile,
    m: zipfile.ZipInfo,
    size: int,
    path: Path,
    at_most: float,
    expect: Expect | None,
) -> np.ndarray:
    where = f"{path}:{m.filename.removesuffix('.npy')}"
    if m.flag_bits & 1:
        raise InputError(f"{where}: is encrypted")
    stored = m.compress_type == zipfile.ZIP_STORED
    most = m.compress_size * (1 if stored else _INFLATES_AT_MOST)
    if m.compress_size > size or m.file_size > most:
        raise InputError(
            f"{where}: says it holds {m.file_size:,} bytes, more than fit in a file of {size:,}"
        )
    if m.file_size > max(_LARGE, _DENSE * m.compress_size):
        raise InputError(
            f"{where}: its {m.compress_size:,} bytes become {m.file_size:,}, which is not read",
            hint="save the array without compression: numpy.savez",
        )
    try:
        with archive.open(m) as file:
            array = _read_array(file, m.file_size, where, at_most, expect)
            file.read(1)  # at the end the check sum is compared
            return array
    except DAMAGE as error:
        raise InputError(f"{where}: damaged: {first_line(error)}") from None


# --- safetensors ----------------------------------------------------------------------------------


def list_safetensors(path: str | Path) -> list[str]:
    """The names of the tensors in a safetensors file."""
    with _safe(Path(path)) as file:
        return sorted(file.keys())


def read_safetensors(
    path: str | Path, only: str | Collection[str] | None = None, most: float = inf,
    parts: Mapping[str, tuple[Sequence[int], tuple[slice, ...]]] = {},
    expect: Expect | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The tensors of a safetensors file by name, bf16 included, or those named `only`. `parts`: of
    tensors, which must have these shapes, nothing but these elements is read.
    """
    path = Path(path)
    with _safe(path) as file:
        names = sorted(file.keys())
        if only is not None:
            wanted = [only] if isinstance(only, str) else only
            names = [_member(dict.fromkeys(names, n), n, str(path)) for n in wanted]
        arrays = {}
        for name in names:
            part = file.get_slice(name)
            kind = part.get_dtype()
            if kind not in _SAFE:
                raise InputError(
                    f"{path}:{name}: {kind} is not an element type of the language",
                    hint=f"convert it to one of {', '.join(DTYPES)}",
                )
            _check_size(prod(part.get_shape()) * _SAFE[kind].itemsize, f"{path}:{name}", most)
            _ = _SAFE[kind].numpy  # bf16: makes the type known to NumPy
            if expect:
                expect(_SAFE[kind], tuple(part.get_shape()))
            shape, chosen = parts.get(name, (part.get_shape(), ()))
            if [*shape] != part.get_shape():
                has = f"{_shape(part.get_shape())}, and the whole tensor {_shape(shape)}"
                raise InputError(f"{path}:{name}: has the shape {has}")
            arrays[name] = _tidy(part[chosen] if chosen else file.get_tensor(name), _SAFE[kind])
        return arrays


@contextmanager
def _safe(path: Path):
    from safetensors import SafetensorError, safe_open

    check_file(path)  # absent, a folder, not readable: the same words as for the other kinds
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except (SafetensorError, *DAMAGE) as error:
        reason = first_line(error).removeprefix("Error while deserializing header: ")
        raise InputError(f"{path}: not a safetensors file, or a damaged one: {reason}") from None


# --- writing --------------------------------------------------------------------------------------


def write_npy(path: str | Path, array: Any) -> None:
    """Writes one array; bf16 as NumPy does, as two raw bytes an element."""
    replace_file(path, lambda file: np.save(file, np.asarray(array, order="C"), False))


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name."""

    def write(file: IO[bytes]) -> None:
        # not np.savez(**arrays): a tensor may be called `file`, like its argument
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, np.asarray(array, order="C"), allow_pickle=False)

    replace_file(path, write)


def write_safetensors(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Writes tensors by name, bf16 included."""
    from safetensors.numpy import save

    packed = save({name: np.asarray(a, order="C") for name, a in arrays.items()})
    replace_file(path, lambda file: file.write(packed))


def replace_text(path: str | Path, text: str) -> None:
    """Writes a text file in one step: a reader sees the old text or the new, never half of one."""
    replace_file(path, lambda file: file.write(text.encode("utf-8")))


def replace_file(path: str | Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes beside the file and puts the result in its place, with the old one's permissions."""
    try:
        path = Path(path).resolve()  # through a link to the file it names
    except RuntimeError:
        raise InputError(f"{path}: cannot be written: it is a link to itself") from None
    temporary = path.with_name(f".{path.name[:32]}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
        if path.exists():
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


# --- shared ---------------------------------------------------------------------------------------


def check_file(path: str | Path) -> None:
    """Complains of a file that is not there, or cannot be read."""
    with _opened(Path(path)):
        pass


@contextmanager
def _opened(path: Path):
    """The file and its size; a complaint that says what is there instead."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise InputError(f"{path}: is {kind}")
        file = open(path, "rb")  # noqa: SIM115 - closed below, where errors are not mistaken for ours
    except FileNotFoundError:
        raise NoSuchFile(path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}") from None
    with file:
        yield file, found.st_size


def _member(members: Mapping[str, Any], key: str, path: str) -> Any:
    if key not in members:
        raise UnknownName(f"{path}: holds no array {key}", key, members, "it holds")
    return members[key]


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
