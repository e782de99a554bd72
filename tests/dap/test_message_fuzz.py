"""Messages that no client should send: the server answers with an error or ends cleanly, never
hangs, never grows. ``OPSTEP_FUZZ=100000`` sends that many.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import string
import threading
import time
from typing import Any

import pytest
from dap.client import Client

from opstep.dap.registry import requests
from opstep.dap.server import serve
from opstep.dap.wire import wire_of

COUNT = int(os.environ.get("OPSTEP_FUZZ", "3000"))
# What would end the session, or start processes; the rest is fair game.
SPARED = {"disconnect", "terminate", "opstep/enterKernel"}
WORDS = ["main", "x", "nan(x)", "x[0", "*", "", "../../etc/passwd", "\x00", "\ud800", "a" * 5000]
NUMBERS = [0, 1, -1, 2**31, 2**53, 2**53 + 1, -(2**63), 1.5, 1e308, 10**40]
_KEYS = """
    threadId frameId variablesReference source breakpoints lines line expression name value context
    filters filterOptions start count offset memoryReference data targetId requestId dataId program
    graph inputs steps path text column startFrame levels sourceReference locationReference
    instructionCount condition hitCondition granularity names adapterID linesStartAt1 pathFormat
"""
KEYS = _KEYS.split()


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind in (1, 2):
        return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(40)
    if kind in (3, 4):
        return rng.choice(WORDS)
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(6))}


def message(rng: random.Random, seq: int, path: str) -> Any:
    """Mostly a request that exists, with arguments that make sense in part."""
    kind = rng.random()
    if kind < 0.05:
        return value(rng)
    if kind < 0.1:
        return {"seq": seq, "type": rng.choice(["response", "event", "request", 3, None])}
    commands = sorted(set(requests()) - SPARED)
    command = rng.choice(commands) if kind < 0.97 else "".join(rng.choices(string.printable, k=9))
    given = value(rng) if rng.random() < 0.3 else likely(rng, path)
    return {"seq": rng.choice([seq, seq, seq, 1, -1]), "type": "request", "command": command,
            "arguments": given}  # fmt: skip


def likely(rng: random.Random, path: str) -> dict[str, Any]:
    """Arguments of which some are right."""
    right = {
        "threadId": 1, "frameId": rng.randrange(1, 50), "variablesReference": rng.randrange(1, 50),
        "source": {"path": path}, "line": rng.randrange(1, 30), "program": path, "graph": "main",
        "inputs": {"x": [1, 2, 3, 4]}, "breakpoints": [{"line": rng.randrange(1, 30)}],
        "filters": ["nan"], "expression": "mean(x)", "name": "a", "value": "1", "adapterID": "a",
        "text": "me", "column": 3, "memoryReference": "0x0", "count": 10, "requestId": 3,
        "stopOnEntry": True, "locationReference": 1, "targetId": 1, "dataId": "main.a",
    }  # fmt: skip
    for _ in range(rng.randrange(3)):
        right[rng.choice(KEYS)] = value(rng)
    return right


def framed(content: Any) -> bytes:
    body = json.dumps(content).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Session:
    """A raw connection to a session: what comes back is counted, not understood."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.ours = socket.create_connection(door.getsockname())
            theirs, _ = door.accept()
        self.log: list[str] = []
        self.answered: set[int] = set()
        self.thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self.thread.start()
        self.wire = wire_of(self.ours)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _serve(self, theirs: socket.socket) -> None:
        with theirs:
            serve(wire_of(theirs), self.log.append)

    def _read(self) -> None:
        while received := self.wire.read():
            if received["type"] == "response":
                self.answered.add(received["request_seq"])

    def end(self) -> None:
        self.ours.shutdown(socket.SHUT_WR)
        self.thread.join(60)
        assert not self.thread.is_alive(), "the session did not end"
        self.ours.close()

    def alive(self, seq: int) -> bool:
        """Whether a request is answered still."""
        self.ours.sendall(framed({"seq": seq, "type": "request", "command": "threads"}))
        until = time.monotonic() + 60
        while seq not in self.answered and time.monotonic() < until:
            time.sleep(0.005)
        return seq in self.answered


def test_messages_without_sense(loops, monkeypatch):
    """In one session after another, each of some 500 messages."""
    monkeypatch.chdir(loops.parent)
    rng = random.Random(COUNT)
    sent, grown = 0, []
    while sent < COUNT:
        session = Session()
        for command in ("initialize", "launch", "configurationDone")[: rng.randrange(1, 7)]:
            arguments = likely(random.Random(1), str(loops))
            session.ours.sendall(
                framed({"seq": 1, "type": "request", "command": command, "arguments": arguments})
            )
        for k in range(2, 502):
            session.ours.sendall(framed(message(rng, k, str(loops))))
            if k % 100 == 0:
                assert session.alive(100_000 + k), f"no answer after {sent + k} messages"
        sent += 500
        session.end()
        assert not session.log, session.log[0]
        grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert grown[-1] - grown[len(grown) // 3] < 200_000, grown  # KiB


@pytest.mark.parametrize("seed", range(5))
def test_bytes_without_frames(seed):
    """Cut, flipped and inserted bytes: the session goes on or ends, at once."""
    rng = random.Random(seed)
    for _ in range(10):
        session = Session()
        whole = bytearray(
            framed({"seq": 1, "type": "request", "command": "initialize",
                    "arguments": {"adapterID": "fuzz"}})
            + framed({"seq": 2, "type": "request", "command": "threads"})
        )  # fmt: skip
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(whole))
            if rng.random() < 0.4:
                del whole[at : at + rng.randrange(1, 30)]
            else:
                whole[at:at] = rng.randbytes(rng.randrange(1, 10))
        session.ours.sendall(bytes(whole))
        session.end()
        assert not session.log, session.log[0]


def test_a_flood_is_answered_or_refused(endless):
    """Three thousand requests at once while a run goes on: none waits for ever."""
    with Client.over_socket() as client:
        client.start(endless, graph="main", inputs="random")
        numbers = [client.send("threads", check=False) for _ in range(3_000)]
        answers = [client.response(seq) for seq in numbers]
        assert all(a["success"] or a["message"] == "busy" for a in answers)
        client.request("terminate")
        client.expect_end(130)
