"""A workspace in the browser, through Datasette's own client: what the pages say is compared with
what stands in the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import importlib.util
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from xml.etree import ElementTree

import numpy as np
import pytest
from recorded_runs import NAN_LINE, STEPS, record_runs
from waiting import PATIENCE_S

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import datasette as viewer
from opstep.trace.workspace.pages.questions import OF_A_RUN, QUESTIONS, RUNS
from opstep.trace.workspace.schema import TABLES

GIVEN = {  # parameters that the questions of this name need to have an answer
    "where_it_went_bad": "run=3",
    "history_of_a_tensor": "run=1&tensor=loss",
    "compare_two_runs": "run=1&other=2&step=1",
    "what_an_op_did": "run=3&op_name=log&step=1",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("workspace") / "with space %41 & #?.db"
    record_runs(path)
    return path


@pytest.fixture(scope="module")
def rows(path):
    """Answers from the file itself."""
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    yield lambda sql, *given: [dict(r) for r in connection.execute(sql, given)]
    connection.close()


@pytest.fixture(scope="module")
def get(path):
    """Asks for an address; gives the answer, which has to be 200 unless another is expected."""
    application = viewer.application(path)

    def get(address, status=200, method="GET", **options):
        made = asyncio.run(application.client.request(method, address, **options))
        assert made.status_code == status, f"{address}: {made.status_code} {made.text[-2000:]}"
        return made

    return get


def answer(get, question):
    """The rows of a question."""
    address = f"/data/{question}.json?{GIVEN.get(question, '')}&_shape=array"
    return get(address).json()


# --- pages ----------------------------------------------------------------------------------------


def test_the_first_page_has_the_questions(get):
    text = get("/").text
    for question in QUESTIONS:
        assert f'<a href="/data/{question.name}">{html.escape(question.title)}</a>' in text
    assert '<a href="/data/">' in text
    for page in (RUNS, *OF_A_RUN):
        address = html.escape(page.address[:-1])
        assert f'<a href="/data/{address}">{page.title}</a>' in text
        get(f"/data/{page.address[:-1]}")
    assert "What is slow?" in get("/data").text


def test_runs_are_told_the_last_one_first(get, rows):
    told = get("/data/runs.json?_shape=array").json()
    held = rows("select key, status from runs order by id desc")
    assert [(r["key"], r["status"]) for r in told] == [(r["key"], r["status"]) for r in held]
    for run, found in ((1, 0), (3, 1)):
        assert (
            re.search(r">\s*1 row[^<]*</a>\s*from run in findings", get(f"/data/runs/{run}").text)
            is not None
        ) == found
    assert '<a href="/data/runs/3">3</a>' in get("/data/runs").text


@pytest.mark.parametrize("table", [t.name for t in TABLES])
def test_tables_say_what_they_hold(get, rows, table):
    text = html.unescape(get(f"/data/{table}").text)
    described = next(t for t in TABLES if t.name == table)
    for column in described.columns:
        assert f"<dt>{column.name}</dt><dd>{column.what}</dd>" in text
    held = rows(f"select count(*) as n from {table}")[0]["n"]
    assert held == 0 or f"{held:,} row" in text


def test_views_are_described(get, rows):
    views = [r["name"] for r in rows("select name from sqlite_master where type = 'view'")]
    assert views
    for view in views:
        assert '<div class="metadata-description">' in get(f"/data/{view}?run=3&_nocount=1").text
        get(f"/data/{view}")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.name)
def test_questions_have_answers(get, question):
    assert answer(get, question.name)
    page = get(f"/data/{question.name}?{GIVEN.get(question.name, '')}").text
    assert "message-error" not in page
    assert all(f'name="{name}"' in page for name in question.params)
    get(f"/data/{question.name}")  # without any parameter: the last run


def test_bad_values_are_found_where_they_are_born(get):
    first = answer(get, "where_it_went_bad")[0]
    assert (first["step"], first["line"], first["tensor"]) == (1, NAN_LINE, "bad")
    assert first["nan"] > 0


def test_slow_ops_add_up(get, rows):
    total = rows("select sum(end_ns - start_ns) as ns from executions where run = 3")[0]["ns"]
    found = answer(get, "what_is_slow")
    assert sum(r["total_ns"] for r in found) == total
    assert sum(r["share"] for r in found) == pytest.approx(1)
    assert sum(r["total_ns"] or 0 for r in answer(get, "line_by_line")) == total


def test_a_run_does_not_differ_from_itself_but_from_another(get):
    same = get("/data/compare_two_runs.json?run=1&other=1&step=2&_shape=array").json()
    assert same
    assert all(r["mean_a"] == r["mean_b"] and r["nan_a"] == r["nan_b"] for r in same)
    other = answer(get, "compare_two_runs")
    assert other[0]["mean_a"] != other[0]["mean_b"]


def test_forms_know_what_can_be_chosen(get, rows):
    text = get("/data/history_of_a_tensor?run=3").text
    keys = [r["key"] for r in rows("select key from runs order by id desc")]
    (runs,) = re.findall(r'<datalist id="known-run">(.*?)</datalist>', text)
    assert re.findall(r'<option value="(\w+)">', runs) == keys
    (tensors,) = re.findall(r'<datalist id="known-tensor">(.*?)</datalist>', text)
    held = {r["name"] for r in rows("select name from results where run = 3")}
    assert set(re.findall(r'<option value="([\w.]+)">', tensors)) == held


def test_of_long_runs_some_steps_are_shown(tmp_path):
    path, steps = tmp_path / "long.db", 2300
    program = opstep.loads("graph main(x: f32[]) -> f32[] {\n  y = exp(x)\n  return y\n}\n")
    with opstep.Recording(workspace=path, stats_every=2) as recording:
        program.run("main", {"x": np.float32(1)}, steps=steps, recording=recording)
    client = viewer.application(path).client
    for address in ("history_of_a_tensor.json?tensor=y", "metrics_by_step.json?name=y"):
        made = asyncio.run(client.get(f"/data/{address}&_shape=array")).json()
        seen = [row["step"] for row in made]
        assert 1000 <= len(seen) <= steps // 2
        assert seen == sorted(seen)
        assert seen[0] == 0
        assert seen[-1] >= steps - 4


def test_runs_are_found_by_key_and_by_number(get, rows):
    key = rows("select key from runs where id = 1")[0]["key"]
    by_key = get(f"/data/what_is_slow.json?run={key}&_shape=array").json()
    assert by_key == get("/data/what_is_slow.json?run=1&_shape=array").json()
    assert {r["run"] for r in by_key} == {1}


def test_a_runs_page_leads_to_what_it_did(get, rows):
    text = html.unescape(get("/data/runs/3").text)
    for question in QUESTIONS:
        assert (f'"/data/{question.name}?run=3"' in text) == ("run" in question.params)
    for page in OF_A_RUN:
        assert f'"/data/{page.address}run=3"' in text
    sizes = [
        r["nbytes"]
        for r in get(f"/data/{OF_A_RUN[1].address}run=3&_shape=array".replace("?", ".json?")).json()
    ]
    assert sizes == sorted(sizes, reverse=True) != []
    lines = rows("select program from runs where id = 3")[0]["program"].count("\n") + 1
    assert f'<a href="/data/line_by_line?run=3">{lines} lines</a>' in text
    assert "findings?run=3" in text  # among the rows of other tables


@pytest.mark.parametrize("address", ["/data/runs/99", "/data/nothing", "/x"])
def test_what_is_not_there_is_said(get, address, capfd):
    assert "404" in get(address, 404).text
    assert capfd.readouterr() == ("", "")


# --- lines ----------------------------------------------------------------------------------------


def lines_of(get, run, step=""):
    address = f"/data/line_by_line.json?run={run}&step={step}&_shape=array"
    return {row["line"]: row for row in get(address).json()}


def test_ops_lead_to_their_line_and_to_what_they_did(get, rows):
    op = rows("select * from ops where run = 3 and name = 'log'")[0]
    text = html.unescape(get("/data/ops?run=3").text)
    line, did = f"ops?run=3&line={op['line']}", f"what_an_op_did?run=3&op_name={op['op']}"
    assert f'<a href="/data/{line}">{op["line"]}</a>' in text
    assert f'<a href="/data/{did}">log</a>' in text
    assert [r["op"] for r in get(f"/data/{line}".replace("?", ".json?") + "&_shape=array").json()]
    done = get(f"/data/{did}".replace("?", ".json?") + "&_shape=array").json()
    assert {(r["op"], r["op_name"]) for r in done} == {(op["op"], "log")}
    tensor = "history_of_a_tensor?run=3&tensor=bad"
    assert f'<a href="/data/{tensor}">bad</a>' in html.unescape(get(f"/data/{did}").text)


def test_lines_tell_of_the_step_that_is_asked_for(get, rows):
    stat = rows(
        "select s.nan from stats s join ops o using (run, op) "
        "where run = 3 and o.name = 'log' and s.step = 1"
    )[0]
    assert lines_of(get, 3, 1)[NAN_LINE]["nan"] == stat["nan"] > 0
    assert lines_of(get, 3, 0)[NAN_LINE]["nan"] == 0
    assert lines_of(get, 3)[NAN_LINE]["nan"] == 0  # the last step was clean
    finding = rows("select message from findings where run = 3 and line = ?", NAN_LINE)[0]
    assert finding["message"] in lines_of(get, 3)[NAN_LINE]["finding"]


def test_lines_have_the_time_of_their_ops(get, rows):
    spent = rows("select sum(total_ns) as ns from ops where run = 3 and line = ?", NAN_LINE)[0]
    line = lines_of(get, 3)[NAN_LINE]
    assert (line["ops"], line["total_ns"]) == ("log", spent["ns"])
    assert 0 < line["share"] < 1


def test_every_line_of_the_text_is_there(get, rows):
    for run in (1, 3):
        text = rows("select program from runs where id = ?", run)[0]["program"]
        assert [row["text"] for row in lines_of(get, run).values()] == text.split("\n")


# --- cells and plots ------------------------------------------------------------------------------


def test_figures_are_written_as_people_read_them(get, rows):
    row = rows("select * from stats where run = 3 and nan > 0")[0]
    text = get("/data/stats?run=3&nan__gt=0").text
    assert f'<span class="figure bad" title="{row["nan"]}">{row["nan"]}</span>' in text
    assert re.search(r'col-histogram type-str"><span class="bars" title="2\^', text)
    took = answer(get, "what_is_slow")[0]["total_ns"]
    slow = get("/data/what_is_slow").text
    assert re.search(rf'title="{took}">[\d.]+ (ns|µs|ms)</span>', slow)


@pytest.mark.parametrize(
    "address",
    [
        "/data/history_of_a_tensor.svg?run=1&tensor=loss",
        "/data/metrics_by_step.svg?run=1",
        "/data/metrics.svg?run=1&name=loss",
        "/data.svg?sql=select+step,value+from+metrics+where+run=1+and+name='loss'",
    ],
)
def test_what_has_steps_is_plotted(get, address):
    made = get(address)
    assert made.headers["content-type"].startswith("image/svg+xml")
    picture = ElementTree.fromstring(made.text)
    curves = [p.get("d") for p in picture.iter() if "stroke-linecap: square" in p.get("style", "")]
    assert STEPS in {curve.count("L") + 1 for curve in curves}
    page = get(address.replace(".svg", "")).text
    (shown,) = re.findall(r'<img src="(/data[^"]*)"', page)
    assert get(html.unescape(shown)).text == made.text


def test_nans_are_marked_in_plots(get):
    marked = get("/data/history_of_a_tensor.svg?run=3&tensor=bad").text
    assert "NaN or inf" in marked
    assert "NaN or inf" not in get("/data/history_of_a_tensor.svg?run=1&tensor=loss").text


def test_what_cannot_be_plotted_is_said(get):
    assert "at most 8 series" in get("/data/runs.svg", 400).text
    assert ".svg" not in get("/data/runs").text


# --- what is not trusted --------------------------------------------------------------------------


def test_nothing_of_a_program_becomes_code(get, rows):
    rows_of = [f"/data/ops/1,{r['op']}" for r in rows("select op from ops where run = 1")]
    tables = [f"/data/{t.name}" for t in TABLES]
    questions = [f"/data/{q.name}?run=1" for q in QUESTIONS]
    pages = ["/", "/data", "/data/runs/1", "/data/runs/2"]
    told = 0
    for address in [*pages, *rows_of, *tables, *questions]:
        text = get(address).text
        assert "<script>alert" not in text, address
        told += "&lt;script&gt;alert" in text
    assert told > 3


def test_nothing_a_client_sends_becomes_code(get):
    evil = "%3Cscript%3Ealert(1)%3C/script%3E"
    for address, status in [
        (f"/data/history_of_a_tensor?run={evil}&tensor={evil}", 200),
        (f"/data/line_by_line?run={evil}&step={evil}", 200),
        (f"/data?sql={evil}", 400),
        (f"/data?sql=select+'{evil}'+as+line,+1+as+run", 200),
    ]:
        assert "<script>alert" not in get(address, status).text


def test_pages_load_nothing_from_elsewhere(get):
    for address in ("/", "/data", "/data/ops", "/data/runs/1", "/data/line_by_line"):
        made = get(address)
        assert not re.search(r"(?:src|action)=[\"']?(?:https?:)?//", made.text)
        assert not re.search(r"<link[^>]*href=[\"']?(?:https?:)?//(?!localhost)", made.text)
        assert "default-src 'self'" in made.headers["content-security-policy"]
    assert get("/opstep/opstep.css").text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8001", "", "127.0.0.1.evil.example"]
)
def test_other_names_of_this_machine_are_refused(get, host):
    assert "127.0.0.1" in get("/", 403, headers={"host": host}).text


@pytest.mark.parametrize("host", ["127.0.0.1:8001", "localhost", "LocalHost:1234", "[::1]:80"])
def test_this_machine_is_answered(get, host):
    get("/", headers={"host": host})


# --- only to read ---------------------------------------------------------------------------------

WRITES = [
    "insert into runs (key) values ('x')",
    "delete from runs",
    "drop table runs",
    "pragma user_version = 9",
    "attach 'other.db' as other",
    "with x as (select 1) delete from runs",
    "vacuum into 'other.db'",
    "select load_extension('x')",
]


@pytest.mark.parametrize("sql", WRITES)
def test_nothing_can_be_written(get, path, sql, capfd):
    before = hashlib.blake2b(path.read_bytes()).hexdigest()
    get("/data", 400, params={"sql": sql})
    get("/data.json", 400, params={"sql": sql})
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        get("/data/what_is_slow", 405, method)
    assert "only reads" in get("/data", 405, "POST", data={"sql": sql}).text
    assert hashlib.blake2b(path.read_bytes()).hexdigest() == before
    assert capfd.readouterr() == ("", "")


def test_connections_cannot_write(path):
    file = viewer.application(path).get_database("data")
    with pytest.raises(PermissionError):
        file.connect(write=True)
    connection = file.connect()
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("delete from runs")
    connection.close()


def test_a_question_without_end_is_stopped(path, monkeypatch):
    monkeypatch.setitem(viewer.SETTINGS, "sql_time_limit_ms", 50)
    application = viewer.application(path)
    sql = "with recursive n(x) as (select 1 union all select x + 1 from n) select max(x) from n"
    made = asyncio.run(application.client.get("/data", params={"sql": sql}))
    assert made.status_code == 400
    assert "took too long" in made.text


def test_pages_are_there_while_a_run_writes(get, path):
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("begin immediate")
    writer.execute("update runs set status = 'running' where id = 2")
    for address in ("/", "/data/runs/2", "/data/runs", "/data/stats"):
        assert ">running<" not in get(address).text
    writer.execute("rollback")
    writer.close()


def test_a_damaged_file_is_said(path, tmp_path, capfd):
    broken = tmp_path / "broken.db"
    sqlite3.connect(path).execute("vacuum into ?", (str(broken),)).connection.close()
    connection = sqlite3.connect(broken)
    (size,) = connection.execute("pragma page_size").fetchone()
    tables = "('stats', 'ops', 'runs')"
    roots = connection.execute(f"select rootpage from sqlite_master where name in {tables}")
    with open(broken, "r+b") as file:
        for (page,) in roots.fetchall():
            file.seek((page - 1) * size)
            file.write(b"\xa5" * size)
    connection.close()
    client = viewer.application(broken).client
    said = 0
    for address in ("/", "/data/runs/1", "/data/line_by_line", "/data/stats", "/data"):
        made = asyncio.run(client.get(address))
        assert made.status_code in (200, 400, 500)
        assert made.status_code == 200 or "malformed" in made.text
        said += made.status_code != 200
    assert said
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err


# --- the server -----------------------------------------------------------------------------------


def test_a_port_in_use_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is in use") as caught:
            viewer.listening(port)
        assert "give another port" in str(caught.value)


def test_without_a_port_a_free_one_is_found():
    with viewer.listening(0) as first, viewer.listening(0) as second:
        assert first.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
        assert first.getsockname()[1] != second.getsockname()[1]


def test_without_datasette_it_says_what_to_install(path, monkeypatch):
    found = importlib.util.find_spec
    absent = {"datasette"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n in absent else found(n)
    )
    with pytest.raises(InputError) as caught:
        viewer.application(path)
    assert "pip install 'opstep[viewer]'" in str(caught.value)


def test_what_is_no_workspace_is_refused(tmp_path):
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("create table t (x)").connection.close()
    for file in (other, tmp_path / "absent.db"):
        with pytest.raises(InputError):
            viewer.application(file)


def test_ctrl_c_at_any_moment_ends_it_quietly(path, monkeypatch, capfd):
    """Also before the server answers: the browser is being opened then."""

    def interrupt(address):
        assert address.startswith("http://127.0.0.1:")
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", interrupt)
    viewer.serve(path)
    assert capfd.readouterr().err == ""


def test_the_server_says_where_it_is_and_ends_quietly(path):
    code = (
        "import sys; from opstep.trace.workspace import datasette as d; d.serve(sys.argv[1], 0, 0)"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        said = child.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)[0]
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as page:
            assert b"How did the runs go?" in page.read()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    "what", ["printf('%.*c', 900000000, 'x')", "format(x'252e2a63', 9e8, 'x')"]
)
def test_what_nothing_could_stop_is_refused(get, path, what):
    """SQLite writes a field at once, however wide: no limit of time ends it."""
    query = f"select length({what})"
    made = get("/data.json", 400, params={"sql": query})
    assert "too big" in made.text
    with opstep.Workspace(path) as ws:
        with pytest.raises(InputError, match="too big"):
            ws.sql(query)
        answer = ws.sql("select printf('%*d|%s %.2f', 5, 1234567, 'a', 0.5) as s")
        assert answer.rows == [("1234567|a 0.50",)]
