"""The program beside what is selected in the UI: the one that ran, and nothing else of the disk."""

from __future__ import annotations

import http.client
import json
import threading

import numpy as np
import pytest
from waiting import PATIENCE_S

import opstep
from opstep.trace.viewer import files, source
from opstep.trace.viewer.server import Server

TEXT = """\
graph twice(x: f32[N]) -> f32[N] {
  y = mul(x, 2.0)
  return y
}

graph main(x: f32[N]) -> f32[N] {
  a = tanh(x)  # the first
  b = twice(a)
  z = add(
    b, 3.0,
  )
  y = mul(z, 4.0)
  return y
}
"""
X = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}


def ran(folder, name: str = "net.opg"):
    """A program that was run, its trace, and the program's name in it."""
    program = folder / name
    program.write_text(TEXT)
    trace = folder / "run.pftrace"
    with opstep.Recording(trace=trace) as recording:
        opstep.load(program).run("main", X, recording=recording)
    return program, trace


def test_the_program_is_shown_at_the_line_that_ran(tmp_path):
    program, trace = ran(tmp_path)
    told = source.programs(trace)
    assert told["files"] == {str(program): [TEXT, len(TEXT.split("\n"))]}
    # y = mul stands in two places: one has the name of the call before it
    lines = {"a = tanh": 7, "twice:b/y = mul": 2, "z = add": 9, "y = mul": 12}
    assert told["functions"] == {name: [str(program), line] for name, line in lines.items()}


def test_a_program_that_was_changed_is_not_shown(tmp_path):
    program, trace = ran(tmp_path)
    program.write_text(TEXT.replace("3.0", "5.0").replace("4.0", "5.0"))
    told = source.programs(trace)
    # which still stand there
    still = {"a = tanh": [str(program), 7], "twice:b/y = mul": [str(program), 2]}
    assert told["functions"] == still
    program.write_text("\n" + TEXT)
    assert source.programs(trace) == {"files": {}, "functions": {}}
    program.unlink()
    assert source.programs(trace) == {"files": {}, "functions": {}}


@pytest.mark.parametrize("name", ["secret.txt", "secret", "secret.opg.txt"])
def test_other_files_that_a_trace_names_are_not_read(tmp_path, name):
    _, trace = ran(tmp_path, name)
    assert source.programs(trace) == {"files": {}, "functions": {}}


def test_without_an_engine_or_for_large_traces_there_is_no_program(tmp_path, monkeypatch):
    _, trace = ran(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(source, "MOST_TRACE", 10)
        assert source.programs(trace)["functions"] == {}
    monkeypatch.setattr(files, "package_folder", lambda name: None)
    assert source.programs(trace) == {"files": {}, "functions": {}}
    assert source.programs(tmp_path / "gone") == {"files": {}, "functions": {}}


def test_the_server_tells_it_to_the_ui(tmp_path):
    program, trace = ran(tmp_path)
    with Server(trace) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = {}
        for path in ("/vizviewer_info", "/file_info"):
            connection = http.client.HTTPConnection(
                "127.0.0.1", server.server_port, timeout=PATIENCE_S
            )
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
            found[path] = json.load(answer)
            connection.close()
        server.shutdown()
        thread.join()
    assert found["/file_info"]["functions"]["a = tanh"] == [str(program), 7]
