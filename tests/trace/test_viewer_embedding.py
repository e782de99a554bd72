"""The Perfetto UI in a frame of an editor: who may frame it, and who gets anything at all."""

from __future__ import annotations

import http.client
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import made_timelines
import pytest
from waiting import PATIENCE_S

from opstep.runtime.ir.errors import InputError
from opstep.trace.viewer import server


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "made.pftrace"
    made_timelines.two_streams(path)
    return path


@contextmanager
def serving(path: Path, frames=()):
    with server.Server(path, frames=frames) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield served
        finally:
            served.shutdown()
            thread.join()


def get(served, path: str, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=PATIENCE_S)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def rules(response) -> dict[str, str]:
    policy = response.getheader("Content-Security-Policy")
    return dict(rule.strip().split(" ", 1) for rule in policy.split(";"))


def test_the_page_has_the_bridge_before_the_user_interface(path):
    with serving(path) as served:
        root = urlsplit(served.address).path
        response, page = get(served, root)
        assert response.status == 200
        scripts = re.findall(rb"<script[^>]*src='([^']*)'", page)
        assert scripts == [b"./opstep_bridge.js"]
        assert page.index(b"opstep_bridge.js") < page.index(b"frontend_bundle.js")
        assert b"mode=embedded" in page
        response, script = get(served, f"{root}opstep_bridge.js")
        assert response.status == 200 and b"postMessage" in script
        assert "text/javascript" in str(response.getheader("Content-Type"))
        response, trace = get(served, f"{root}localtrace")
        assert response.status == 200 and trace == path.read_bytes()
        assert get(served, f"{root}engine_bundle.js")[0].status == 200


def test_without_the_token_there_is_nothing(path):
    with serving(path) as served:
        token = urlsplit(served.address).path.strip("/")
        assert len(token) >= 32
        wrong = ("A" if token[0] != "A" else "B") + token[1:]
        for asked in ("/", "/localtrace", "/opstep_bridge.js", "/frontend_bundle.js", f"/{token}",
                      f"/{wrong}/", f"/{wrong}/localtrace", f"/x/{token}/",
                      f"/{token[:-1]}/"):  # fmt: skip
            response, _ = get(served, asked)
            assert response.status == 404, asked
    with serving(path) as served, serving(path) as other:
        assert urlsplit(served.address).path != urlsplit(other.address).path


def test_it_is_reached_by_whatever_host_a_tunnel_has(path):
    with serving(path) as served:
        root = urlsplit(served.address).path
        for host in ("localhost:8080", "editor.example", "127.0.0.1:1"):
            response, _ = get(served, f"{root}localtrace", Host=host)
            assert response.status == 200, host
            response, _ = get(served, "/localtrace", Host=host)
            assert response.status == 404, host


def test_only_pages_that_were_named_may_frame_it(path):
    frames = ["https://editor.example:8443", "vscode-webview://1abc", "http://127.0.0.1:8080"]
    with serving(path, frames) as served:
        root = urlsplit(served.address).path
        for asked in (root, f"{root}opstep_bridge.js", "/nothing"):
            allowed = rules(get(served, asked)[0])["frame-ancestors"].split()
            assert allowed == ["'self'", "vscode-webview:", "vscode-file:", frames[0], frames[2]]
    with server.Server(path) as served:  # by default nobody may
        assert "frame-ancestors 'none'" in served.headers["Content-Security-Policy"]
        assert not served.token


@pytest.mark.parametrize(
    "origin",
    ["*", "https:", "https://*", "https://*.example", "https://a.example; script-src *",
     "https://a.example 'none'", "https://a.example\r\nX: y", "null", "", "data:", "javascript://x",
     "https://a.example/path", "https://a.example:123456", 7],
)  # fmt: skip
def test_what_is_no_origin_is_refused(path, origin):
    with pytest.raises(InputError, match="origin"):
        server.Server(path, frames=[origin])


def test_there_is_an_end_to_how_many_may_frame_it(path):
    with pytest.raises(InputError, match="at most"):
        server.Server(path, frames=[f"https://e{k}.example" for k in range(40)])
