"""Bytes of tensors: readMemory, writeMemory. No others can be read."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.dap.registry import BAD_ARGUMENTS, DapError, request
from opstep.dap.requests.variables import change
from opstep.dap.tensor_origins import NamedTensor, Origin

if TYPE_CHECKING:
    from opstep.dap.session import Session

MOST = 4 << 20  # bytes of one response
NO_MEMORY = 2210


def origin_of(session: Session, reference: str) -> Origin:
    """The tensor that a memory reference stands for. Raises `DapError`."""
    kind, _, number = reference.partition(":")
    if kind != "tensor" or not (number.isascii() and number.isdigit() and len(number) < 16):
        text = f"{reference[:80]!r} is not memory of a tensor: only that can be read"
        raise DapError(text, NO_MEMORY)
    return session.references.get(int(number), Origin, "memory reference")


@request("readMemory", capability="supportsReadMemoryRequest")
def read_memory(
    session: Session, memory_reference: str, count: int, offset: int = 0
) -> dict[str, Any]:
    """Bytes of a tensor as its device holds them; no more is copied than is asked for."""
    if count < 0:
        raise DapError("readMemory: count is not negative", BAD_ARGUMENTS)
    origin = origin_of(session, memory_reference)
    t: Any = origin.handle().type
    first = offset
    node = origin.node()
    base = node.address if node is not None and node.present else 0
    address = f"{max(base + first, 0):#x}"
    if first < 0 or first >= t.nbytes:
        return {"address": address, "unreadableBytes": count}
    last = min(first + min(count, MOST), t.nbytes)
    data = bytes_of(session, origin, first, last)
    found: dict[str, Any] = {"address": address, "data": base64.b64encode(data).decode("ascii")}
    beyond = first + count - t.nbytes
    if beyond > 0 and last == t.nbytes:
        found["unreadableBytes"] = beyond
    return found


def bytes_of(session: Session, origin: Origin, first: int, last: int) -> bytes:
    """A range of a tensor's bytes."""
    node, size = origin.node(), origin.handle().type.dtype.itemsize
    if node is None:
        return np.ascontiguousarray(origin.handle().array()).tobytes()[first:last]
    if last <= first:
        return b""
    begin, end = first // size, -(-last // size)
    part = session.debugger.machine.executor.part(node, begin, end - begin)
    return part.tobytes()[first - begin * size : last - begin * size]


@request("writeMemory", capability="supportsWriteMemoryRequest")
def write_memory(
    session: Session, memory_reference: str, data: str, offset: int = 0, allow_partial: bool = False
) -> dict[str, Any]:
    """Sets bytes of a tensor that has a name; what depends on it is computed again."""
    origin = origin_of(session, memory_reference)
    if not isinstance(origin, NamedTensor):
        raise DapError("only a tensor with a name can be written to", NO_MEMORY)
    try:
        written = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise DapError("writeMemory: data is not base64", BAD_ARGUMENTS) from None
    t: Any = origin.handle().type
    first = offset
    room = t.nbytes - first if 0 <= first <= t.nbytes else 0
    if len(written) > room and not (allow_partial and room):
        text = f"{t} has {t.nbytes:,} bytes; {len(written):,} at {first:,} do not fit"
        raise DapError(text, NO_MEMORY)
    written = written[:room]
    if written:
        array = np.array(origin.handle().array(), order="C")
        raw = array.reshape(-1).view(np.uint8)
        raw[first : first + len(written)] = np.frombuffer(written, np.uint8)
        part = np.zeros(t.nbytes, np.uint8)
        part[first : first + len(written)] = 1
        changed = np.asarray(part.reshape(-1, t.dtype.itemsize).any(axis=1))
        change(session, origin.frame_handle, origin.name, array, changed.reshape(array.shape))
        send_memory_event(session, memory_reference, first, len(written))
    return {"offset": 0, "bytesWritten": len(written)}


def send_memory_event(session: Session, reference: str, offset: int, count: int) -> None:
    """Sends a ``memory`` event behind the response."""
    if session.client.supports_memory_event:
        body = {"memoryReference": reference, "offset": offset, "count": count}
        session.after(lambda: session.event("memory", body))
