"""``opstep check`` and ``opstep fmt``."""

from __future__ import annotations

import io
import os
from threading import Thread

import pytest

from opstep.runtime.ir import reading

GOOD = """\
# A comment that stays.
param w: f32[2] = zeros()

graph main(x: f32[N, 2]) -> f32[N, 2] {
  y = mul(x, w)  # and this one
  return y
}
"""
UGLY = GOOD.replace("y = mul(x, w)  #", "y   =  mul( x,w ) #")
BROKEN = """\
graph main(x: f32[N, 2]) -> f32[N, 2] {
  y = mull(x, x)
  z = add(x, nothing)
  return z
}
"""


def test_no_errors(cli, write):
    outcome = cli("check", write("a.opg", GOOD), write("b.opg", UGLY))
    assert (outcome.code, outcome.out, outcome.err) == (0, "no errors in 2 files\n", "")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "param w: f32[2] = zeros()\n"])
def test_a_file_without_a_graph_is_pointed_out(cli, write, text):
    outcome = cli("check", write("a.opg", text))
    assert (outcome.code, outcome.out) == (0, "no errors in 1 file\n")
    assert "a.opg: warning: there is no graph in this file\nhint: a graph begins" in outcome.err


@pytest.mark.parametrize("words", [["check"], ["fmt", "--check"], ["run", "-i", "random"]])
def test_a_pipe_without_a_writer(cli, tmp_path, monkeypatch, words):
    monkeypatch.setattr(reading, "_PATIENCE_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    outcome = cli(*words, "pipe")
    assert outcome.code == 2
    assert "pipe is a pipe, and nobody writes to it" in outcome.err


def test_a_pipe_with_a_writer(cli, tmp_path, monkeypatch):
    """By its name, and as a shell hands over what a command writes."""
    monkeypatch.setattr(reading, "_PATIENCE_S", 60.0)
    os.mkfifo(tmp_path / "pipe")
    Thread(target=(tmp_path / "pipe").write_text, args=(GOOD,)).start()
    assert cli("check", "pipe").out == "no errors in 1 file\n"
    read, written = os.pipe()
    os.write(written, GOOD.encode())
    os.close(written)
    outcome = cli("check", f"/dev/fd/{read}")
    os.close(read)
    assert (outcome.code, outcome.out) == (0, "no errors in 1 file\n")


def test_all_errors_of_all_files(cli, write):
    outcome = cli(
        "check", write("a.opg", BROKEN), write("b.opg", "graph (\n"), write("c.opg", GOOD)
    )
    assert outcome.code == 1
    for place in ("a.opg:2:7: error", "a.opg:3:", "b.opg:1:"):
        assert place in outcome.err
    assert "in 2 of 3 files" in outcome.out


def test_json(cli, write):
    outcome = cli("check", "--json", write("a.opg", BROKEN))
    assert outcome.code == 1
    assert outcome.err == ""
    record = outcome.json
    assert record["ok"] is False
    first = record["diagnostics"][0]
    assert (first["file"], first["line"], first["column"], first["severity"]) == (
        "a.opg", 2, 7, "error",
    )  # fmt: skip
    assert (first["end_line"], first["end_column"]) == (2, 11)
    assert "mul" in first["hint"]


def test_one_file_that_is_not_there_does_not_hide_the_others(cli, write):
    outcome = cli("check", "absent.opg", write("a.opg", BROKEN))
    assert outcome.code == 2
    assert "absent.opg" in outcome.err
    assert "a.opg:2:7" in outcome.err


# --- fmt ---


def test_fmt_rewrites_what_differs(cli, write, tmp_path):
    outcome = cli("fmt", write("a.opg", GOOD), write("b.opg", UGLY))
    assert outcome.code == 0
    assert outcome.err == "b.opg: rewritten\n"
    assert (tmp_path / "b.opg").read_text() == GOOD
    assert cli("fmt", "--check", "a.opg", "b.opg").code == 0


@pytest.mark.parametrize("option", ["--check", "--diff"])
def test_fmt_that_only_looks(cli, write, tmp_path, option):
    outcome = cli("fmt", option, write("a.opg", GOOD), write("b.opg", UGLY))
    assert outcome.code == (1 if option == "--check" else 0)
    assert "1 file would change, 1 would not" in outcome.err
    assert (tmp_path / "b.opg").read_text() == UGLY
    if option == "--diff":
        assert "-  y   =  mul( x,w ) # and this one" in outcome.out
        assert "+  y = mul(x, w)  # and this one" in outcome.out


def test_fmt_leaves_broken_files_alone(cli, write, tmp_path):
    outcome = cli("fmt", write("a.opg", "graph (\n"))
    assert outcome.code == 1
    assert "a.opg:1:" in outcome.err
    assert (tmp_path / "a.opg").read_text() == "graph (\n"


def test_fmt_of_standard_input(cli, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(UGLY))
    outcome = cli("fmt", "-")
    assert (outcome.code, outcome.out) == (0, GOOD)


def test_fmt_keeps_permissions(cli, write, tmp_path):
    write("b.opg", UGLY)
    (tmp_path / "b.opg").chmod(0o640)
    cli("fmt", "b.opg")
    assert (tmp_path / "b.opg").stat().st_mode & 0o777 == 0o640
