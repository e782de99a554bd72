"""Attaching to a Python program that runs graphs."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from dap.client import Client, Refused, markers_of

import opstep
from opstep.dap.server import Listener
from opstep.runtime.ir.errors import InputError

INPUT = {"x": np.float32([1, 2, 3, 4])}


@pytest.fixture
def door():
    port = opstep.debug.listen()
    yield port
    opstep.debug.stop_listening()
    opstep.api.program.interposed = None


@pytest.fixture
def attached(door, loops):
    """A client that has set a breakpoint in the program's file."""
    with Client.connect(door) as client:
        client.attach()
        client.set_breakpoints(loops, ["log"])
        client.request("configurationDone")
        assert opstep.debug.wait_for_client(20)
        yield client


class Running:
    """Runs a graph on a thread of its own, as a Python program does on its main thread."""

    def __init__(self, program, *arguments, **more):
        self.result = self.error = None
        self.thread = threading.Thread(target=self._run, args=(program, arguments, more))
        self.thread.start()

    def _run(self, program, arguments, more):
        try:
            self.result = program.run(*arguments, **more)
        except Exception as error:
            self.error = error

    def join(self):
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self


def test_a_run_stops_where_the_client_wants_it(attached, loops):
    program = opstep.load(loops)
    expected = opstep.load(loops)
    bare = Running(expected, "scaled", INPUT).join()  # nothing to stop at in that graph
    assert bare.result["t"].tolist() == [2, 3, 4, 5]
    run = Running(program, "main", INPUT)
    attached.expect_stop("breakpoint")
    assert attached.where() == ("main", markers_of(loops)["log"])
    attached.go("stepBack", "step")
    attached.request("continue", threadId=1)
    attached.expect_stop("breakpoint")
    attached.request("continue", threadId=1)
    assert run.join().error is None
    attached.set_breakpoints(loops, [])
    again = Running(program, "main", INPUT).join()
    assert again.result["d"].tobytes() == run.result["d"].tobytes()
    assert list(run.result) == ["d"]


def test_breakpoints_are_verified_once_a_program_runs(attached, loops):
    told = attached.set_breakpoints(loops, ["log"])
    assert told[0]["verified"] is False
    run = Running(opstep.load(loops), "main", INPUT)
    changed = attached.expect("breakpoint")["breakpoint"]
    assert changed["verified"] and changed["id"] == told[0]["id"]
    attached.expect_stop("breakpoint")
    attached.request("continue", threadId=1)
    run.join()
    with pytest.raises(Refused, match="no graph is running"):
        attached.request("stackTrace", threadId=1)
    assert attached.request("threads")["threads"][0]["name"] == "no graph is running"


def test_errors_reach_the_program(attached, program):
    path = program(
        "graph main(x: f32[4]) -> f32[4] {\n  m = max(x)\n  fine = less(m, 0.0)\n"
        '  assert fine, "too large"\n  return x\n}\n', "failing.opg",
    )  # fmt: skip
    run = Running(opstep.load(path), "main", INPUT)
    attached.expect_stop("exception")
    attached.request("continue", threadId=1)
    assert "too large" in str(run.join().error)


def test_a_client_that_leaves_lets_the_program_go_on(door, loops):
    with Client.connect(door) as client:
        client.attach()
        client.set_breakpoints(loops, ["log"])
        client.request("configurationDone")
        run = Running(opstep.load(loops), "main", INPUT)
        client.expect_stop("breakpoint")
    assert run.join().error is None
    assert run.result["d"].shape == (4,)


def test_a_client_that_ends_the_run(door, loops):
    with Client.connect(door) as client:
        client.attach()
        client.set_breakpoints(loops, ["log"])
        client.request("configurationDone")
        run = Running(opstep.load(loops), "main", INPUT)
        client.expect_stop("breakpoint")
        client.request("disconnect", terminateDebuggee=True)
        client.expect_closed()
    assert "ended from the debugger" in str(run.join().error)


def test_pause_stops_the_next_run_where_none_goes_on(attached, loops):
    attached.set_breakpoints(loops, [])
    attached.request("pause", threadId=1)
    run = Running(opstep.load(loops), "main", INPUT)
    attached.expect_stop("entry")
    attached.request("continue", threadId=1)
    assert run.join().error is None
    assert Running(opstep.load(loops), "main", INPUT).join().error is None  # once


def test_a_program_that_runs_is_not_restarted(attached):
    """Clients detach and attach again."""
    told = [e["body"]["capabilities"] for e in attached.events if e["event"] == "capabilities"]
    assert told == [{"supportsRestartRequest": False}]


def test_one_client_at_a_time(attached, door):
    with Client.connect(door) as other:
        other.initialize()
        with pytest.raises(Refused, match="another client is attached"):
            other.request("attach", {})
    with Client.connect(door) as other:
        other.initialize()
        with pytest.raises(Refused, match="attach to it"):
            other.request("launch", program="x.opg")


def test_after_one_client_comes_another(door, loops):
    for _ in range(2):
        with Client.connect(door) as client:
            client.attach()
            client.request("configurationDone")
            client.request("disconnect")
            client.expect_closed()


def test_through_a_server_that_an_editor_started(door, loops):
    """Editors that only start servers: ``attach`` with a port hands the session on."""
    with Client.over_socket() as client:
        client.attach(port=door)
        client.set_breakpoints(loops, ["log"])
        client.request("configurationDone")
        run = Running(opstep.load(loops), "main", INPUT)
        client.expect_stop("breakpoint")
        client.go("stepBack", "step")
    assert run.join().error is None


def test_nobody_listens():
    with Client.over_socket() as client:
        client.initialize()
        with pytest.raises(Refused, match="where does the Python program listen"):
            client.request("attach", {})
        with pytest.raises(Refused, match="no program listens"):
            client.request("attach", {"port": 1})
        with pytest.raises(Refused, match="not this machine"):
            client.request("attach", {"port": 1, "host": "example.org"})


def test_listening(door):
    with pytest.raises(InputError, match=f"listens on port {door} already"):
        opstep.debug.listen()
    with pytest.raises(InputError, match="not this machine"):
        Listener("0.0.0.0", 0)
    assert opstep.debug.wait_for_client(0.01) is False


def test_waiting_needs_a_door():
    with pytest.raises(InputError, match="nobody can attach yet"):
        opstep.debug.wait_for_client(0.01)


SCRIPT = """
import sys
import numpy as np
import opstep

print(opstep.debug.listen(), flush=True)
opstep.debug.wait_for_client()
program = opstep.load(sys.argv[1])
for step in range(3):
    result = program.run("main", {"x": np.float32([1, 2, 3, 4])})
print(result["d"].tolist(), flush=True)
"""


def test_a_whole_program(loops):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(loops)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    with Client.connect(int(process.stdout.readline())) as client:
        client.attach()
        client.set_breakpoints(loops, ["log"])
        client.request("configurationDone")
        for _ in range(2):
            client.expect_stop("breakpoint")
            client.request("continue", threadId=1)
        client.expect_stop("breakpoint")
    assert process.stdout.readline().startswith("[")
    assert process.wait(30) == 0
    process.stdout.close()
