"""Every way in which a program ends that is attached to: what the client hears of it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from dap.client import Client

ATTACHED = """
import os, signal, sys
import numpy as np
import opstep

print(opstep.debug.listen(), flush=True)
opstep.debug.wait_for_client()
opstep.load(sys.argv[1]).run("main", {{"x": np.float32([1, 2, 3, 4])}})
{}
"""
KILLED = "os.kill(os.getpid(), 9)"
FORKED = "os.fork() or sys.exit(0); os.wait()"
UNKNOWN = "did not say how: it was killed, or ended by os._exit"


@pytest.fixture
def attached(loops):
    """Starts a program that ends so, and has a client attach to it, itself or by an adapter."""
    processes = []

    def start(end: str, relayed: bool) -> Client:
        command = [sys.executable, "-c", ATTACHED.format(end), str(loops)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        processes.append(process)
        assert process.stdout
        port = int(process.stdout.readline())
        start.ports.append(port)
        client = Client.over_stdio() if relayed else Client.connect(port)
        client.attach(**({"port": port} if relayed else {}))
        client.request("configurationDone")
        return client

    start.processes, start.ports = processes, []
    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize(
    "end, code",
    [
        ("pass", 0),
        ("raise ValueError('no')", 1),
        ("try: sys.exit(3)\nexcept SystemExit: pass", 0),
        (FORKED, 0),
        ("sys.exit(3)", None),  # nobody is told with what
        ("raise SystemExit", None),
    ],
)
def test_the_end_of_a_program_is_told(attached, end, code, relayed):
    with attached(end, relayed) as client:
        client.expect("terminated") if code is None else client.expect_end(code)
        assert code is not None or "exited" not in [e["event"] for e in client.events]
        assert client.output("important") == ""


@pytest.mark.parametrize("end", [KILLED, "os._exit(5)"])
def test_a_program_that_cannot_say_how_it_ends(attached, end):
    with attached(end, True) as client:
        client.expect("terminated")
        assert UNKNOWN in client.output("important")
        client.request("disconnect")


def test_requests_that_a_program_does_not_live_to_answer_are_refused(attached):
    with attached("os.kill(os.getpid(), signal.SIGSTOP)", True) as client:
        process = attached.processes[0]
        while state_of(process.pid) != "T":
            time.sleep(0.01)
        seq = client.send("threads")
        while not unread(attached.ports[0]):  # the adapter has yet to pass it on
            time.sleep(0.01)
        process.kill()
        response = client.response(seq)
        assert (response["success"], response["message"]) == (False, "the program has ended")
        client.expect("terminated")


def state_of(pid: int) -> str:
    """As Linux names it; "" where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def unread(port: int) -> int:
    """Bytes that the process which listens on `port` has received and not read (Linux)."""
    with open("/proc/net/tcp") as file:
        connections = [line.split() for line in file.readlines()[1:]]
    here = [c for c in connections if int(c[1].rpartition(":")[2], 16) == port]
    return sum(int(queues.rpartition(":")[2], 16) for *_, queues in (c[:5] for c in here))
