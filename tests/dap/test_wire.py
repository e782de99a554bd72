"""Messages on a stream: what comes in is limited, what is wrong is told or ends the session."""

from __future__ import annotations

import io
import json
import signal

import pytest

from opstep.dap.wire import LONGEST_MESSAGE, Wire
from opstep.editors.wire import LONGEST_SKIPPED, MOST_HEADERS, BadMessage, BrokenStream, Gone


def framed(body: bytes, header: bytes = b"") -> bytes:
    return b"Content-Length: %d\r\n%b\r\n%b" % (len(body), header, body)


def reading(*parts: bytes) -> Wire:
    return Wire(io.BytesIO(b"".join(parts)), io.BytesIO())


def test_messages_follow_one_another():
    wire = reading(framed(b'{"a": 1}'), framed('{"b": "é"}'.encode(), b"X-Other: 1\r\n"))
    assert wire.read() == {"a": 1}
    assert wire.read() == {"b": "é"}
    assert wire.read() is None


def test_what_is_written_can_be_read():
    out = io.BytesIO()
    wire = Wire(io.BytesIO(), out)
    assert [wire.write({"type": "event", "event": "e", "body": {"text": "é\ud800"}}), 1] == [1, 1]
    assert wire.write({"type": "event", "event": "f"}) == 2
    back = reading(out.getvalue())
    assert back.read() == {"seq": 1, "type": "event", "event": "e", "body": {"text": "é\ud800"}}
    assert back.read() == {"seq": 2, "type": "event", "event": "f"}


@pytest.mark.parametrize(
    "body, what",
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"[1]", "a message is a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deep"),
    ],
    ids=["open", "empty", "list", "bytes", "nan", "digits", "depth"],
)
def test_one_bad_message_is_passed(body, what):
    wire = reading(framed(body), framed(b'{"next": 1}'))
    with pytest.raises(BadMessage, match=what):
        wire.read()
    assert wire.read() == {"next": 1}


@pytest.mark.parametrize(
    "header, what",
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "not a header"),
        (b"Content-Length: -1\r\n\r\n", "Content-Length is"),
        (b"Content-Length: 1e3\r\n\r\n", "Content-Length is"),
        (b"Content-Length: " + b"9" * 50 + b"\r\n\r\n", "Content-Length is"),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "two Content-Lengths"),
        (b"Other: 1\r\n\r\n{}", "without Content-Length"),
        (b"X: 1\r\n" * (MOST_HEADERS + 1), "header lines"),
        (b"X: " + b"y" * 5000, "not a header"),
        (b"Content-Length: %d\r\n\r\n" % (LONGEST_SKIPPED + 1), "a message of"),
    ],
)
def test_a_stream_without_frames_ends(header, what):
    with pytest.raises(BrokenStream, match=what):
        reading(header).read()


def test_a_long_message_is_skipped_not_read():
    class Endless(io.RawIOBase):
        """So many bytes, made as they are read; `most` is what was asked for at once."""

        left, most = LONGEST_MESSAGE + 1, 0

        def readable(self):
            return True

        def readinto(self, buffer):
            count = min(len(buffer), self.left)
            Endless.most, self.left = max(Endless.most, len(buffer)), self.left - count
            return count

    class Joined(io.RawIOBase):
        parts = [io.BytesIO(b"Content-Length: %d\r\n\r\n" % (LONGEST_MESSAGE + 1)), Endless()]
        parts += [io.BytesIO(framed(b'{"next": 1}'))]

        def readable(self):
            return True

        def readinto(self, buffer):
            while self.parts:
                if count := self.parts[0].readinto(buffer):
                    return count
                self.parts.pop(0)
            return 0

    wire = Wire(io.BufferedReader(Joined()), io.BytesIO())
    with pytest.raises(BadMessage, match="at most"):
        wire.read()
    assert Endless.most <= 1 << 20
    assert wire.read() == {"next": 1}


@pytest.mark.parametrize("cut", range(0, 28, 3))
def test_a_truncated_message_is_an_end(cut):
    whole = framed(json.dumps({"seq": 1}).encode())
    assert cut < len(whole)
    assert reading(whole[:cut]).read() is None or cut == 0


def test_what_is_no_json_is_not_sent():
    out = io.BytesIO()
    wire = Wire(io.BytesIO(), out)
    with pytest.raises(ValueError):
        wire.write({"a": float("nan")})
    with pytest.raises(TypeError):
        wire.write({"a": object()})
    assert out.getvalue() == b""
    assert wire.write({"a": 1}) == 1


def test_a_reader_that_is_gone():
    class Closed(io.BytesIO):
        def write(self, data):
            raise BrokenPipeError

    with pytest.raises(Gone):
        Wire(io.BytesIO(), Closed()).write({"a": 1})


class Interrupted(io.RawIOBase):
    """What is written comes with a Ctrl-C, the first time."""

    def __init__(self):
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        first, self.written = not self.written, self.written + bytes(data)
        if first:
            signal.raise_signal(signal.SIGINT)
        return len(data)


def test_a_message_is_sent_once_though_a_ctrl_c_comes_meanwhile():
    raw = Interrupted()
    wire = Wire(io.BytesIO(), io.BufferedWriter(raw))
    with pytest.raises(KeyboardInterrupt):
        wire.write({"type": "event", "event": "stopped"})
    wire.write({"type": "event", "event": "exited"})
    other = Wire(io.BytesIO(raw.written), io.BytesIO())
    assert [other.read(), other.read(), other.read()] == [
        {"seq": 1, "type": "event", "event": "stopped"},
        {"seq": 2, "type": "event", "event": "exited"},
        None,
    ]
