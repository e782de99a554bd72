"""A session: how it begins, what is told about texts, settings, files, and where it can be had."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsp.lsp_client import PATIENCE_S, Client, editor, started

from opstep.editors.server import streams_of
from opstep.editors.wire import Wire
from opstep.lsp.lines import Lines

GOOD = "graph f(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  return y\n}\n"
WIDE = "graph f(x: f32[N]) -> f32[N] {  # 𝔘é\n  y = relu(x)  # 𝔘\n  return z\n}\n"


@pytest.mark.parametrize("encodings", [["utf-8", "utf-16"], ["utf-8"], ["utf-32"], [], None])
def test_positions_are_utf_16_whatever_the_client_likes(encodings):
    general = {} if encodings is None else {"positionEncodings": encodings}
    with editor(capabilities={"general": general}) as client:
        assert client.capabilities["positionEncoding"] == "utf-16"
        assert client.capabilities["textDocumentSync"]["change"] == 2  # by their changes
        document = client.open(WIDE)
        wrong = next(d for d in client.diagnostics() if d["severity"] == 1)
        assert document.at(wrong["range"]) == "z"


@given(st.text(st.sampled_from("ab\n\r\t é𝔘"), max_size=30), st.data())
def test_positions_and_offsets(text, data):
    lines = Lines(text)
    for offset in range(len(text) + 1):
        if text[offset - 1 : offset + 1] != "\r\n":  # nothing is within a line end
            assert lines.offset(lines.position(offset)) == offset
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    new = data.draw(st.text(st.sampled_from("a\n\r𝔘"), max_size=4))
    lines.replace(start, end, new)
    fresh = Lines(text[:start] + new + text[end:])
    assert (lines.text, lines.starts) == (fresh.text, fresh.starts)


def test_second_places_are_told():
    with editor() as client:
        document = client.open(
            "graph ‹a›f(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  y = exp(x)\n  return y\n}\n"
            "graph g(x: i32[N]) -> f32[N] {\n  y = f(x)\n  return y\n}\n"
            "graph h(q: f32[2]) {\n  y = attention(q, q, q)\n}\n"
        )
        found = {d["message"].split("\n")[0]: d for d in client.diagnostics()}
        twice = found["y is defined twice"]["relatedInformation"][0]
        assert document.offset(twice["location"]["range"]["start"]) == document.text.index("y =")
        call = next(d for m, d in found.items() if m.startswith("f wants"))
        place = call["relatedInformation"][0]["location"]
        assert document.offset(place["range"]["start"]) == document.marks["a"]
        library = next(d for m, d in found.items() if m.startswith("attention wants"))
        uri = library["relatedInformation"][0]["location"]["uri"]
        assert uri.endswith("stdlib/attention.opg")


def test_a_text_is_forgotten_when_it_is_closed():
    with editor() as client:
        document = client.open(WIDE)
        assert client.diagnostics()
        client.close()
        client.wait(lambda: not client.diagnostics_of[document.uri]["diagnostics"])


def test_a_file_is_read_from_disk_again_when_it_has_changed(tmp_path):
    path = tmp_path / "a.opg"
    path.write_text(GOOD, encoding="utf-8")
    symbols = {"textDocument": {"uri": path.as_uri()}}
    with editor(tmp_path) as client:
        (first,) = client.request("textDocument/documentSymbol", symbols)
        path.write_text(GOOD.replace("graph f", "graph other"), encoding="utf-8")
        changes = [{"uri": path.as_uri(), "type": 2}]
        client.notify("workspace/didChangeWatchedFiles", {"changes": changes})
        (second,) = client.request("textDocument/documentSymbol", symbols)
        assert (first["name"], second["name"]) == ("f", "other")
        registered = [m for m in client.asked if m["method"] == "client/registerCapability"]
        watchers = registered[0]["params"]["registrations"][0]["registerOptions"]["watchers"]
        assert watchers == [{"globPattern": "**/*.opg"}]


@pytest.mark.parametrize("shape", ["{0}", "under opstep"])
def test_settings(shape):
    off = {"diagnostics": {"unused": False}}
    sent = {"opstep": off} if shape == "under opstep" else off
    text = "param w: f32[2]\n" + GOOD
    with editor() as client:
        client.open(text)
        assert [d["code"] for d in client.diagnostics()] == ["unused"]
        client.notify("workspace/didChangeConfiguration", {"settings": sent})
        client.wait(lambda: client.diagnostics_of[client.current.uri]["diagnostics"] == [])
    with editor(options=off) as client:
        client.open(text)
        assert client.diagnostics() == []


def test_over_a_port():
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "lsp", "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        told = process.stderr.readline()
        port = int(told.rpartition(":")[2])
        for _ in range(2):  # one client after the other
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
                client = Client(Wire(*streams_of(connection)))
                client.initialize()
                client.open(GOOD)
                assert client.diagnostics() == []
                client.shutdown()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--listen", "0.0.0.0:1"], "not this machine"), (["--listen", "x"], "HOST:PORT"),
     (["--stdio", "--listen", "127.0.0.1:0"], "which of them")],
)  # fmt: skip
def test_what_cannot_be_listened_on(arguments, told):
    done = subprocess.run(
        [sys.executable, "-m", "opstep", "lsp", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert told in done.stderr


def test_stdio_may_be_said():
    with started("--stdio") as (client, process):
        client.shutdown()
        assert process.wait(PATIENCE_S) == 0
