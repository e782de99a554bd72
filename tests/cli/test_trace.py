"""``opstep trace``: serving, asking and summarizing timelines from the command line."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from made_timelines import two_streams
from waiting import PATIENCE_S

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
SLICES = "select name, dur from slice where category = 'op' order by ts, id limit 2"


@pytest.fixture
def made(tmp_path) -> str:
    two_streams(tmp_path / "made.pftrace")
    return "made.pftrace"


# --- query ----------------------------------------------------------------------------------------


def test_answers_are_a_table_csv_or_json(cli, made):
    shown = cli("trace", made, "query", SLICES)
    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines()] == [
        ["name", "dur"], ["a", "=", "exp", "200"], ["b", "=", "abs", "500"],
    ]  # fmt: skip
    found = cli("trace", made, "query", SLICES, "--csv")
    assert [*csv.reader(io.StringIO(found.out))] == [
        ["name", "dur"], ["a = exp", "200"], ["b = abs", "500"],
    ]  # fmt: skip
    found = cli("trace", made, "query", SLICES, "--json", "--limit", "1")
    assert found.json == [{"name": "a = exp", "dur": 200}]


def test_a_long_table_says_that_there_is_more(cli, made):
    counted = "with recursive n(i) as (select 1 union all select i + 1 from n where i < {})"
    numbers = f"{counted} select i from n"
    shown = cli("trace", made, "query", numbers.format(101))
    assert len(shown.out.splitlines()) == 101
    assert "only 100 rows" in shown.err
    assert cli("trace", made, "query", numbers.format(100)).err == ""


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["selct"], "syntax error"),
        (["select * from nope"], "no such table: nope"),
        (["select 1", "--csv", "--json"], "--csv and --json"),
        ([ENDLESS, "--timeout", "1"], "took longer than 1 s"),
        ([], "Missing argument 'SQL'"),
    ],
)
def test_questions_that_have_no_answer(cli, made, arguments, message):
    done = cli("trace", made, "query", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_sql_that_writes_leaves_the_file_alone(cli, made):
    before = Path(made).read_bytes()
    found = cli(
        "trace", made, "query", "create table t as select 1 as x; select x from t", "--json"
    )
    assert found.json == [{"x": 1}]
    assert cli("trace", made, "query", "delete from slice").code in (0, 2)
    assert Path(made).read_bytes() == before


# --- summary --------------------------------------------------------------------------------------


def test_the_summary_has_a_section_each(cli, made):
    shown = cli("trace", made, "summary", "--run", "aa11")
    assert shown.code == 0
    assert "run aa112233 of main on cpu: 3 steps, 6 µs, 2 µs each" in shown.out
    for part in ("Streams", "Critical path", "Longest ops", "Memory peak", "--at main/b"):
        assert part in shown.out
    rows = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "1 3 3 µs 0 0 3 µs 50.0% 0 0 0" in rows
    assert "b = abs made.opg:3 1 1 µs 66.2% 0.09 µs launch" in rows
    assert "b = abs made.opg:3 3 3 µs 1 µs 55.6%" in rows
    assert "aabbccdd" in cli("trace", made, "summary").out


def test_a_narrow_terminal_breaks_no_place_and_no_command(cli, made, terminal):
    terminal()
    shown = cli("trace", made, "summary", "--run", "aa11")
    lines = shown.out.splitlines()
    assert (
        sum("made.opg:3" in line for line in lines) == 3
    )  # on the path, among the longest, at the peak
    assert lines[-1].strip().startswith("opstep trace") and "# the timeline" in lines[-1]
    (row,) = [line for line in lines if "66.2%" in line]
    assert "1 µs" in row and "launch" in row


def test_the_summary_as_json(cli, made):
    found = cli("trace", made, "summary", "--json").json
    assert (found["path"], found["left_out"]) == (made, 0)
    first, second = found["runs"]
    assert (first["run"], first["window_ns"], first["overlap_ns"]) == ("aa112233", 6000, 1080)
    assert first["busy_by_streams"] == {"1": 3240, "2": 1080}
    assert [op["op"] for op in second["critical"]["ops"]] == ["a = exp", "b = abs"]
    (only,) = cli("trace", made, "summary", "--json", "--step", 1, "--top", 1).json["runs"]
    assert (only["step"], only["steps"], len(only["ops"])) == (1, 1, 1)


def test_the_summary_of_a_run_that_was_recorded(cli, scale):
    command = ("run", scale, "--input", "random", "--symbol", "N=4", "--steps", 3)
    assert cli(*command, "--trace", "t.pftrace", "--workspace", "w.db").code == 0
    (run,) = cli("trace", "t.pftrace", "summary", "--json").json["runs"]
    assert (run["graph"], run["steps"]) == ("main", 3)
    assert {op["count"] for op in run["ops"]} == {3}
    shown = cli("trace", "t.pftrace", "summary")
    (line,) = [line for line in shown.out.splitlines() if " ws w.db " in line]
    program, *command = shlex.split(line, comments=True)
    assert program == "opstep"
    assert {op["name"] for op in cli(*command, "--json").json} >= {"linear", "add"}


def test_a_window_of_steps_is_recorded(cli, scale):
    command = ("run", scale, "--input", "random", "--symbol", "N=4", "--steps", 20)
    assert cli(*command, "--trace", "t.pftrace", "--trace-steps", "12:15").code == 0
    (run,) = cli("trace", "t.pftrace", "summary", "--json").json["runs"]
    assert run["steps"] == 3 and {op["count"] for op in run["ops"]} == {3}
    told = {one["what"]: one["count"] for one in run["beside"]}
    assert told["plan"] == told["bind"] == 1 and told["record"] >= 3
    steps = "select distinct name from slice where category = 'step' order by 1"
    found = cli("trace", "t.pftrace", "query", steps, "--csv").out.split("\n")
    assert found[1:4] == ["step 12", "step 13", "step 14"]
    for wrong in ("5", "5:5", "a:b", "-1:4"):
        done = cli(*command, "--trace", "t.pftrace", "--trace-steps", wrong)
        assert done.code == 2 and "LO:HI" in done.err
    assert "add --trace" in cli(*command, "--trace-steps", "1:2").err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--run", "nope"], "no run nope"),
        (["--run", "aa"], "several runs with aa"),
        (["--step", "7"], "there is no step 7"),
    ],
)
def test_runs_and_steps_that_are_not_there(cli, made, arguments, message):
    done = cli("trace", made, "summary", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err and "hint: " in done.err


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [[], ["summary"], ["query", "select 1"], ["--at", "c"]])
def test_files_that_are_no_traces(cli, write, tmp_path, verb):
    (tmp_path / "folder").mkdir()
    for name, message in [
        (write("empty.pftrace", ""), "is empty"),
        (write("text.pftrace", "hello"), "is not a Perfetto trace"),
        (write("w.db", b"SQLite format 3\0"), "is not a Perfetto trace"),
        ("absent.pftrace", "No such file"),
        ("folder", "Is a directory"),
    ]:
        done = cli("trace", name, *verb)
        assert (done.code, done.out) == (2, "")
        assert f"error: {name}" in done.err and message in done.err


def test_a_trace_that_was_cut_is_read_and_that_is_said(cli, made):
    Path(made).write_bytes(Path(made).read_bytes() + b"\x0a\x64cut")
    found = cli("trace", made, "query", SLICES, "--csv")
    assert found.code == 0 and "a = exp,200" in found.out
    assert "5 bytes at its end are left out" in found.err
    assert cli("trace", made, "summary", "--json").json["left_out"] == 5


def test_a_trace_of_something_else_has_no_summary(cli, tmp_path):
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    packet = builder.add_packet()
    packet.timestamp = 5
    packet.trusted_packet_sequence_id = 1
    packet.track_event.type = 3
    packet.track_event.name = "elsewhere"
    (tmp_path / "other.pftrace").write_bytes(builder.serialize())
    assert "elsewhere" in cli("trace", "other.pftrace", "query", "select name from slice").out
    done = cli("trace", "other.pftrace", "summary")
    assert done.code == 2 and "no runs of opstep" in done.err
    done = cli("trace", "other.pftrace", "--at", "c", "--no-browser")
    assert done.code == 2 and "no ops of opstep" in done.err


# --- the server -----------------------------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch):
    """The server ends as soon as it would wait: as with Ctrl-C."""

    def interrupt(self, poll_interval=0.5):
        raise KeyboardInterrupt

    monkeypatch.setattr("socketserver.BaseServer.serve_forever", interrupt)


def test_a_browser_is_opened_or_the_address_told(cli, made, ended, monkeypatch):
    opened = []
    browser = "opstep.trace.viewer.server.open_browser"
    monkeypatch.setattr(browser, lambda address: opened.append(address) or True)
    done = cli("trace", made)
    (address,) = opened
    assert done.code == 0 and address in done.out and "no browser" not in done.out
    assert cli("trace", made, "--no-browser").code == 0
    assert len(opened) == 1


def test_without_a_browser_the_address_is_told(cli, made, ended, monkeypatch):
    def none(name=None):
        import webbrowser

        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr("webbrowser.get", none)
    monkeypatch.setattr("webbrowser.open", lambda *_, **__: False)
    done = cli("trace", made)
    assert done.code == 0
    assert "http://127.0.0.1:" in done.out and "no browser was found" in done.out


def test_a_place_is_told_and_the_address_is_short(cli, made, ended):
    done = cli("trace", made, "--at", "made.opg:4", "--no-browser")
    assert done.code == 0
    assert "at c = add (made.opg:4), run aa112233, step 0: one of 3" in done.out
    assert re.search(r"is at http://127\.0\.0\.1:\d+/open \(Ctrl-C ends\)$", done.out, re.MULTILINE)
    done = cli("trace", made, "--at", "relo", "--no-browser")
    assert done.code == 2 and "did you mean relu" in done.err


def test_a_trace_that_was_cut_is_served_and_that_is_said(cli, made, ended):
    Path(made).write_bytes(Path(made).read_bytes() + b"\x0a\x64cut")
    done = cli("trace", made, "--no-browser")
    assert done.code == 0 and "http://127.0.0.1:" in done.out
    assert "5 bytes at its end are left out" in done.err


def test_a_port_in_use_is_told(cli, made):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = cli("trace", made, "--port", port, "--no-browser")
    assert (done.code, done.out) == (2, "")
    assert f"port {port} is in use" in done.err and "hint: " in done.err


def test_ctrl_c_ends_the_server_quietly(made, tmp_path):
    command = [sys.executable, "-m", "opstep", "trace", made, "--no-browser"]
    folder = Path(__file__).parent.parent.parent
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
        assert found
        assert b"Perfetto" in urlopen(found[0], timeout=PATIENCE_S).read()
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, out, err) == (0, "", "")
