"""``opstep dap`` as editors start it, and what a session takes from other places."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from dap.client import Client, Refused, markers_of
from waiting import PATIENCE_S, wait_until

import opstep

INPUT = {"x": [1.0, 2.0, 3.0, 4.0]}


def test_on_standard_input_and_output(loops):
    with Client.over_stdio() as client:
        client.start(loops, graph="main", inputs=INPUT, breakpoints=["log"], env={"A": "1"})
        client.expect_stop("breakpoint")
        assert client.where() == ("main", markers_of(loops)["log"])
        client.go("stepBack", "step")
        client.request("continue", threadId=1)
        client.expect_stop("breakpoint")
        client.request("continue", threadId=1)
        client.expect_end()


def test_an_editor_that_is_killed_leaves_no_process(endless):
    client = Client.over_stdio()
    client.start(endless, graph="main", inputs="random")
    client.vanish()
    assert client.process.wait(20) == 0
    client.process.stderr.close()


COUNTING = """\
import select, sys
from pathlib import Path

here, wait = Path(__file__).parent, select.select
with open(here / "starts", "a") as file:
    print(*sys.orig_argv[1:], file=file)

def select_and_tell(*arguments):
    (here / "waits").touch()
    return wait(*arguments)

select.select = select_and_tell
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is started anew there")
@pytest.mark.parametrize("change", [False, True])
def test_one_that_is_started_ahead_is_never_of_another_version(
    change, tmp_path, loops, monkeypatch
):
    imported = tmp_path / "sitecustomize.py"  # which Python imports when it starts
    imported.write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Client.over_stdio("--ahead") as client:
        wait_until((tmp_path / "waits").exists)
        if change:
            imported.write_text(COUNTING + "\n")
        client.start(loops, graph="main", inputs=INPUT, breakpoints=["log"], env={"A": "1"})
        client.expect_stop("breakpoint")
        client.request("continue", threadId=1)
        client.expect_end()
    starts = (tmp_path / "starts").read_text().splitlines()
    assert starts == ["-m opstep dap --ahead"] * (2 if change else 1)


@pytest.fixture
def listening():
    """``opstep dap --listen``, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "dap", "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr
    found = re.search(r"listening on 127\.0\.0\.1:(\d+)", process.stderr.readline())
    assert found
    yield int(found[1])
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_on_a_port(listening, loops):
    for _ in range(2):
        with Client.connect(listening) as client:
            client.start(loops, graph="main", inputs=INPUT, env={"A": "1"}, stopOnEntry=True)
            client.expect_stop("entry")
            assert "not set" in client.output("console")


@pytest.mark.parametrize(
    "address, what",
    [
        ("0.0.0.0:0", "not this machine"),
        ("example.org:1", "not this machine"),
        ("127.0.0.1", "write HOST:PORT"),
        ("127.0.0.1:99999", "write HOST:PORT"),
        ("127.0.0.1:port", "write HOST:PORT"),
    ],
)
def test_addresses_that_cannot_be(address, what):
    arguments = [sys.executable, "-m", "opstep", "dap", "--listen", address]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert re.search(what, done.stderr) and "Traceback" not in done.stderr


def test_values_are_compared_with_a_recorded_run(client, loops, tmp_path):
    program = opstep.load(loops)
    x = np.float32([1, 2, 3, 4])
    with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
        program.run("main", {"x": x}, recording=recording)
    client.start(
        loops, graph="main", inputs={"x": [1, 2, 3, 5]}, breakpoints=["log"],
        cwd=str(tmp_path), workspace="runs.db",
    )  # fmt: skip
    client.expect_stop("breakpoint")

    def value(expression: str) -> str:
        frame = client.stack()[0]["id"]
        return client.request("evaluate", expression=expression, frameId=frame)["result"]

    assert value('x@"last"') == "[1.0, 2.0, 3.0, 4.0]"
    assert float(value('max(x - x@"last:0")')) == 1
    with pytest.raises(Refused, match="no run nothing"):
        value('x@"nothing"')
    with pytest.raises(Refused, match="figures of c, not its elements"):
        value('c@"last" + 1')
