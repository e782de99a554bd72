"""Packets that are made once and filled in often.

The protobuf classes make the bytes, with marks in the place of what differs each time (times,
numbers, flows); compiled code puts the figures of many records there at once: a `Template`. Marks
have the size of what replaces them, so that no length changes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.device.builtin import offset
from opstep.runtime.ir.types import i64

_TIME_BYTES, _NUMBER_BYTES = 9, 5
TIME = 1 << 7 * (_TIME_BYTES - 1) + 6  # a varint of 9 bytes; times have 63 bits
NUMBER = 1 << 7 * (_NUMBER_BYTES - 1) + 6  # of 5 bytes: numbers have 35 bits
_FLOW, _DOUBLE = b"\x0b\xf7\xc3\xde", b"\xc3\x5e\xb7\x41"
_DIGIT = "\x01"
_VARINT, _RAW, _DECIMAL = range(3)  # how a figure is written


class Number(NamedTuple):
    """In an argument's place: the k-th of the `numbers` that a template is filled with."""

    k: int


class Double(NamedTuple):
    """In an argument's place: the k-th of its `doubles`."""

    k: int


def flow(k: int) -> int:
    """In the place of a flow's id: the k-th of the template's `flow` number."""
    return int.from_bytes(struct.pack("<I", k) + _FLOW, "little")


def double(k: int) -> float:
    return struct.unpack("<d", struct.pack("<I", k) + _DOUBLE)[0]


def digits(count: int) -> str:
    """In a name: the first of the `numbers`, of so many digits."""
    return _DIGIT * count


def write_figures(template, nbytes, fields, count, figures, width, out, lo, hi):
    """Copies lo..hi of the template, with the figures of a row each; `fields`: of each its place,
    size, kind and column.
    """
    for k in range(lo, hi):
        packet = offset(out, k * nbytes)
        row = offset(figures, k * width)
        for i in range(nbytes):
            packet[i] = template[i]
        for f in range(count):
            at, size, kind = fields[4 * f], fields[4 * f + 1], fields[4 * f + 2]
            value = row[fields[4 * f + 3]]
            if kind == 0:
                for i in range(size - 1):
                    packet[at + i] = np.uint8(((value >> (7 * i)) & 0x7F) | 0x80)
                packet[at + size - 1] = np.uint8((value >> (7 * (size - 1))) & 0x7F)
            elif kind == 1:
                for i in range(size):
                    packet[at + i] = np.uint8((value >> (8 * i)) & 0xFF)
            else:
                for i in range(size):
                    packet[at + size - 1 - i] = np.uint8(48 + value % 10)
                    value = value // 10


class Template:
    """Packets with marks; `pick` has for each packet which of a record's times it gets."""

    def __init__(self, data: bytes, pick: Sequence[int]):
        self._bytes = np.frombuffer(data, np.uint8)
        self._times = max(pick, default=-1) + 1
        self._numbers = 0
        self._doubles = 0
        found = list(self._mark_positions(data, pick))
        # columns of a row: the times, then the numbers, the flow, the doubles
        starts = {"time": 0, "number": self._times, "digits": self._times}
        starts["flow"] = self._times + self._numbers
        starts["double"] = starts["flow"] + 1
        self._fields = np.array(
            [(at, size, kind, starts[what] + k) for what, at, size, kind, k in found], np.int64
        ).reshape(-1, 4)

    def _mark_positions(self, data: bytes, pick: Sequence[int]):
        """Marks and their places: (what, place, size, kind, which of those)."""
        times = iter(pick)
        for match in marks().finditer(data):
            what = str(match.lastgroup)
            at, end = match.span(what)
            match what:
                case "time":
                    yield what, at, _TIME_BYTES, _VARINT, next(times)
                case "number":
                    k = data[at] & 0x7F
                    self._numbers = max(self._numbers, k + 1)
                    yield what, at, _NUMBER_BYTES, _VARINT, k
                case "digits":
                    self._numbers = max(self._numbers, 1)
                    yield what, at, end - at, _DECIMAL, 0
                case "flow":  # the upper half of the id; the lower one tells the flows apart
                    yield what, at + 4, 4, _RAW, 0
                case "double":
                    k = struct.unpack_from("<I", data, at)[0]
                    self._doubles = max(self._doubles, k + 1)
                    yield what, at, 8, _RAW, k

    def fill(
        self,
        times: np.ndarray,
        numbers: np.ndarray,
        flows: np.ndarray | None = None,
        doubles: np.ndarray | None = None,
    ) -> np.ndarray:
        """The packets of n records: u8[n, bytes].

        `times`: i64[n, _], ns; `numbers`: i64[n, _]; `flows`: i64[n], each tells the flows of this
        use from those of all others, below 2^32; `doubles`: f64[n, _].
        """
        from opstep.runtime.device.cpu import native

        n = len(times)
        figures = np.zeros((n, self._times + self._numbers + 1 + self._doubles), np.int64)
        at = self._times + self._numbers
        figures[:, : self._times] = times[:, : self._times]
        figures[:, self._times : at] = numbers[:, : self._numbers]
        if flows is not None:
            figures[:, at] = flows
        if doubles is not None and self._doubles:
            figures[:, at + 1 :].view(np.float64)[...] = doubles[:, : self._doubles]
        out = np.empty((n, len(self._bytes)), np.uint8)
        fields, width = self._fields, figures.shape[1]
        words = np.array(
            [self._bytes.ctypes.data, len(self._bytes), fields.ctypes.data, len(fields),
             figures.ctypes.data, width, out.ctypes.data], np.int64,
        )  # fmt: skip
        native.call(prepare(), words.ctypes.data, 0, n)
        return out


def prepare() -> int:
    """Loads what templates need; the address of `write_figures`, compiled."""
    from opstep.runtime.device.cpu import jit

    marks()
    kinds = ("*u8", "i", "*i64", "i", "*i64", "i", "*u8")
    return jit.address(write_figures, kinds, i64, True)


@cache
def marks() -> re.Pattern[bytes]:
    """The pattern of marks, which figures replace. Each is found with its field's tag before it."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    def tag(message: Any, field: str, wire: int) -> bytes:
        # https://protobuf.dev/programming-guides/encoding/#structure
        return re.escape(varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | wire))

    moment = tag(pb.TracePacket, "timestamp", 0)
    number = tag(pb.DebugAnnotation, "uint_value", 0)
    flows = [tag(pb.TrackEvent, f, 1) for f in ("flow_ids", "terminating_flow_ids")]
    name, double = tag(pb.TrackEvent, "name", 2), tag(pb.DebugAnnotation, "double_value", 1)
    return re.compile(
        moment + rb"(?P<time>\x80{8}\x40)|"
        + number + rb"(?P<number>[\x80-\x8f]\x80{3}\x40)|"
        + name + rb".[a-z]+ (?P<digits>" + re.escape(_DIGIT.encode()) + rb"+)|"
        + rb"(?:" + b"|".join(flows) + rb")(?P<flow>.{4}" + re.escape(_FLOW) + rb")|"
        + double + rb"(?P<double>.{4}" + re.escape(_DOUBLE) + rb")",
        re.DOTALL,
    )  # fmt: skip


def varint(number: int) -> bytes:
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
