"""Tensors in a workspace: their bytes, stored once however many refer to them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DTYPES, dtype_of
from opstep.trace.workspace.transactions import transaction

PART = 64 << 20  # bytes of a part; SQLite holds at most 1 GB in one value


class Stored(Protocol):
    """The fields of a tensor that reading it takes."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def digest(self) -> str: ...


def now() -> str:
    """UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def storable(name: str, value: Any) -> np.ndarray:
    """As an array of a dtype that the language has; raises `InputError` where there is none."""
    try:
        array = np.asarray(value)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        dtype_of(array.dtype)
    except (ValueError, TypeError, KeyError, InputError):
        dtype = getattr(value, "dtype", None) or f"Python's {type(value).__name__}"
        raise InputError(
            f"{name} cannot be kept: {dtype} is not a dtype that tensors have",
            hint=f"these can: {', '.join(DTYPES)}",
        ) from None
    return array


def typed(array: np.ndarray) -> str:
    """``f32[6, 1, 3, 3]``"""
    return f"{dtype_of(array.dtype).name}[{', '.join(map(str, array.shape))}]"


def digest(array: np.ndarray) -> str:
    """BLAKE2b-128 of the elements as they are stored, hexadecimal."""
    return hashlib.blake2b(_bytes(array), digest_size=16).hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a program's text, hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _bytes(array: np.ndarray) -> memoryview:
    """The elements, row-major, little-endian."""
    array = np.ascontiguousarray(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    content: Any = array.reshape(-1).view(np.uint8)
    return memoryview(content)


def put_bytes(connection: sqlite3.Connection, array: np.ndarray) -> str:
    """Stores the elements where they are not stored yet; gives their digest."""
    content, name = _bytes(array), digest(array)
    if connection.execute("select 1 from blobs where digest = ?", (name,)).fetchone() is None:
        parts = range(0, max(len(content), 1), PART)
        connection.executemany(
            "insert into blobs values (?, ?, ?)",
            ((name, k, content[at : at + PART]) for k, at in enumerate(parts)),
        )
    return name


def put_tensor(
    connection: sqlite3.Connection,
    name: str,
    array: np.ndarray,
    kind: str,
    run: int | None = None,
    step: int | None = None,
    checkpoint: int | None = None,
) -> int:
    """A row of `tensors` with its bytes; its id. To be called within a transaction."""
    row = (name, run, step, kind, checkpoint, dtype_of(array.dtype).name)
    row += (json.dumps(array.shape), array.nbytes, put_bytes(connection, array), now())
    cursor = connection.execute(
        "insert into tensors (name, run, step, kind, checkpoint, dtype, shape, nbytes, digest, "
        f"saved) values ({', '.join('?' * len(row))})",
        row,
    )
    return int(cursor.lastrowid or 0)


def insert_checkpoint(
    connection: sqlite3.Connection, run: int, step: int, kind: str, tensors: Iterable[tuple]
) -> None:
    """A checkpoint with these tensors: (kind, name, array). Within a transaction."""
    cursor = connection.execute(
        "insert into checkpoints (run, step, kind, saved) values (?, ?, ?, ?)",
        (run, step, kind, now()),
    )
    for of, name, array in tensors:
        put_tensor(connection, name, array, of, run, step, cursor.lastrowid)


def save_tensor(connection: sqlite3.Connection, name: str, array: np.ndarray) -> None:
    """Keeps a tensor by hand, in place of one that was saved under this name before."""
    with transaction(connection):
        connection.execute("delete from tensors where name = ? and kind = 'saved'", (name,))
        put_tensor(connection, name, array, "saved")
        drop_unused_blobs(connection)


def drop_unused_blobs(connection: sqlite3.Connection) -> int:
    """Removes the bytes that no tensor refers to; how many parts."""
    return connection.execute(
        "delete from blobs where digest not in (select digest from tensors)"
    ).rowcount


def read_array(connection: sqlite3.Connection, tensor: Stored) -> np.ndarray:
    """The elements of a tensor, an array of its own. Raises `InputError` where they are damaged."""
    parts = connection.execute(
        "select data from blobs where digest = ? order by part", (tensor.digest,)
    )
    content: Any = np.empty(tensor.nbytes, np.uint8)
    at = 0
    for (data,) in parts:
        if at + len(data) > content.size:
            raise _damaged(tensor)
        content[at : at + len(data)] = np.frombuffer(data, np.uint8)
        at += len(data)
    found = hashlib.blake2b(memoryview(content), digest_size=16).hexdigest()
    if at != content.size or found != tensor.digest or tensor.dtype not in DTYPES:
        raise _damaged(tensor)
    try:
        return content.view(DTYPES[tensor.dtype].numpy).reshape(tensor.shape)
    except ValueError:  # the row says another shape than its bytes have
        raise _damaged(tensor) from None


def _damaged(tensor: Stored) -> InputError:
    return InputError(
        f"the bytes of {tensor.name} in the workspace are damaged",
        hint="its other tensors can be read: opstep ws FILE list",
    )
