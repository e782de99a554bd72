"""``opstep/timeline``: a trace, served to a page that stands in an editor."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import made_timelines
import pytest
from lsp_client import ServerError, editor

from opstep.trace.viewer import files

FRAMES = ["https://editor.example", "vscode-webview://1abc"]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "made.pftrace"
    made_timelines.two_streams(path)
    return path


@pytest.fixture(scope="module")
def client():
    with editor() as client:
        yield client


def get(address: str):
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    connection.request("GET", parts.path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_a_trace_is_served_until_it_is_closed(client, path):
    told = client.request("opstep/timeline/open", {"path": str(path), "frames": FRAMES})
    assert told["address"].startswith("http://127.0.0.1:") and told["cut"] == 0
    response, trace = get(told["address"] + "localtrace")
    assert response.status == 200 and trace == path.read_bytes()
    assert "https://editor.example" in str(response.getheader("Content-Security-Policy"))
    assert client.request("opstep/timeline/close", {"number": told["number"]}) == {"closed": True}
    with pytest.raises(OSError):
        get(told["address"])
    assert client.request("opstep/timeline/close", {"number": told["number"]}) == {"closed": False}


def test_each_view_has_a_server_of_its_own(client, path):
    told = [
        client.request("opstep/timeline/open", {"path": str(path), "frames": []}) for _ in range(2)
    ]
    assert told[0]["number"] != told[1]["number"]
    for each in told:
        assert get(each["address"])[0].status == 200
        client.request("opstep/timeline/close", {"number": each["number"]})


def test_there_is_an_end_to_how_many_are_served(client, path):
    told = [
        client.request("opstep/timeline/open", {"path": str(path), "frames": []}) for _ in range(18)
    ]
    closed = [
        client.request("opstep/timeline/close", {"number": each["number"]})["closed"]
        for each in told
    ]
    assert closed == [False] * 2 + [True] * 16


def test_a_trace_that_was_cut_is_served_with_what_is_whole(client, path, tmp_path):
    cut = tmp_path / "cut.pftrace"
    cut.write_bytes(path.read_bytes()[:-3])
    told = client.request("opstep/timeline/open", {"path": str(cut), "frames": []})
    assert told["cut"] > 0
    assert len(get(told["address"] + "localtrace")[1]) == cut.stat().st_size - told["cut"]
    client.request("opstep/timeline/close", {"number": told["number"]})


@pytest.mark.parametrize(
    "params, message",
    [({}, "path: expected"), ({"path": 7}, "path: expected"), ({"path": ""}, "path: expected"),
     ({"path": "/no/such.pftrace"}, "No such file"), ({"path": "/"}, "directory"),
     ({"path": __file__}, "is not a Perfetto trace"), ({"path": "a\0b"}, "null"),
     ({"path": "FILE", "frames": "x"}, "frames: expected"),
     ({"path": "FILE", "frames": ["*"]}, "is not an origin"),
     ({"path": "FILE", "frames": [None]}, "an origin is a text")],
)  # fmt: skip
def test_what_cannot_be_served_is_said(client, path, params, message):
    given = {k: str(path) if v == "FILE" else v for k, v in params.items()}
    with pytest.raises(ServerError, match=message):
        client.request("opstep/timeline/open", given)


def test_without_the_viewer_it_says_what_to_install(client, path, monkeypatch):
    monkeypatch.setattr(files, "package_folder", lambda name: None)
    with pytest.raises(ServerError, match=r"opstep\[viewer\]"):
        client.request("opstep/timeline/open", {"path": str(path), "frames": []})


@pytest.mark.parametrize("number", [None, "1", 99999, -1, [1]])
def test_closing_what_is_not_open_is_no_error(client, number):
    assert client.request("opstep/timeline/close", {"number": number}) == {"closed": False}
