"""Whatever comes, the server goes on answering; and it ends when nobody is there any more."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lsp.lsp_capabilities import CAPABILITIES
from lsp.lsp_client import PATIENCE_S, Client, ServerError, editor, pipe, started

import opstep
from opstep.editors.wire import Wire
from opstep.lsp.server import serve
from opstep.runtime.ir.diagnostics import OpstepError

GOOD = "graph f(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  return y\n}\n"
TEXTS = {
    "nothing": "",
    "a null": "graph f\0() {\n}\n",
    "half a character": "graph f(x: f32[N]) {\n  \ud800 = relu(x)  # \udfff\n}\n",
    "other line ends": "graph f() {\r\n}\r\rgraph g() {\r}\r",
    "a byte order mark": "\ufeff" + GOOD,
    "tabs": "graph\tf(x:\tf32[N])\t{\n\ty\t=\trelu(x)\n}\n",
    "a long line": "graph f() {\n  y = add(" + "x, " * 5_000 + "x)\n}\n",
    "a deep list": "graph f() {\n  y = add(" + "(" * 5_000 + "\n}\n",
    "no end": "graph f(x: f32[N]) -> f32[N] {\n  y = relu(x",
    "many errors": "graph f() {\n" + "  y = = x\n" * 1_200 + "}\n",
    "many unknown": "graph f() {\n" + "".join(f"  v{k} = a{k}(b)\n" for k in range(1_200)) + "}\n",
    "many items": "param w\n" * 1_200,
    "braces": "}{" * 2_000,
    "wide characters": "# 𝔘𝔫𝔦 é\ngraph f(x: f32[N]) {\n  y = relu(x)  # 𝔘𝔫𝔦\n}\n",
    "another program": "import torch\n\ndef f(x):\n    return {'a': [x]}\n",
}
PLACES = [(0, 0), (1, 3), (1, 9), (2, 0), (10**6, 0), (0, 10**6), (1, 2**31 - 1)]


def everything(client: Client, uri: str, line: int, character: int) -> None:
    """Every request about a text that the server offers: each is answered, with a result or an
    error that is no bug.
    """
    position = {"line": line, "character": character}
    where = {"start": position, "end": position}
    document = {"textDocument": {"uri": uri}}
    place = {**document, "position": position}
    whole = {**document, "range": where}
    wanted = [
        ("hover", place), ("definition", place), ("typeDefinition", place), ("completion", place),
        ("references", {**place, "context": {"includeDeclaration": True}}),
        ("documentHighlight", place), ("prepareRename", place),
        ("rename", {**place, "newName": "fresh"}), ("signatureHelp", place),
        ("documentSymbol", document), ("foldingRange", document),
        ("selectionRange", {**document, "positions": [position]}),
        ("semanticTokens/full", document), ("inlayHint", whole), ("codeLens", document),
        ("documentLink", document), ("linkedEditingRange", place), ("prepareCallHierarchy", place),
        ("codeAction", {**whole, "context": {"diagnostics": []}}),
        ("inlineValue", {**whole, "context": {"frameId": 1, "stoppedLocation": where}}),
        ("formatting", {**document, "options": {"tabSize": 2, "insertSpaces": True}}),
        ("rangeFormatting", {**whole, "options": {"tabSize": 2, "insertSpaces": True}}),
    ]  # fmt: skip
    for method, params in wanted:
        try:
            client.request(f"textDocument/{method}", params)
        except ServerError as error:
            assert error.code in (-32803, -32601, -32602), f"{method}: {error}"  # noqa: PT017


@pytest.fixture(scope="module")
def client():
    with editor() as made:
        yield made


@pytest.mark.parametrize("name", TEXTS)
def test_any_text(client, name):
    document = client.open(TEXTS[name], "file:///any.opg")
    client.diagnostics()
    for line, character in PLACES:
        everything(client, document.uri, line, character)
    client.close()


@pytest.mark.parametrize("above", ["", "\n", "# a\n"])
def test_a_byte_order_mark_inside(client, above):
    """It is as wrong as it is for `opstep check`, wherever the text is cut into items."""
    text = f"{GOOD}\ufeff{above}{GOOD.replace('graph ', 'graph other_')}"
    with pytest.raises(OpstepError, match="U\\+FEFF"):
        opstep.loads(text)
    client.open(text, "file:///mark.opg")
    found = [d for d in client.diagnostics() if "U+FEFF" in d["message"]]
    line = GOOD.count("\n")
    assert [d["range"]["start"] for d in found] == [{"line": line, "character": 0}]
    client.close()


@pytest.mark.parametrize(
    "uri",
    ["file:///there/is/none.opg", "file:///", "file:///dev/null", "untitled:Untitled-1", "", "?",
     "git:/a.opg?x", "file://host/a.opg", "file:///a%00b.opg", Path(sys.executable).as_uri()],
)  # fmt: skip
def test_texts_that_are_not_open(client, uri):
    everything(client, uri, 0, 0)


def test_a_text_of_no_file(client):
    client.open(GOOD, "untitled:Untitled-1")
    assert client.diagnostics() == []
    everything(client, "untitled:Untitled-1", 1, 7)


def test_a_file_that_goes_while_it_is_looked_at(client, tmp_path):
    path = tmp_path / "a.opg"
    path.write_text(GOOD, encoding="utf-8")
    everything(client, path.as_uri(), 1, 7)
    path.unlink()
    everything(client, path.as_uri(), 1, 7)
    with pytest.raises(ServerError, match="there is no such file"):
        client.request("textDocument/documentSymbol", {"textDocument": {"uri": path.as_uri()}})


def test_changes_of_what_is_not_open(caplog):
    logged: list[str] = []
    with served(logged) as client:
        identifier = {"uri": "file:///none.opg", "version": 3}
        change = {
            "range": {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}}
        }
        changes = [{**change, "text": "x"}]
        client.notify(
            "textDocument/didChange", {"textDocument": identifier, "contentChanges": changes}
        )
        client.notify("textDocument/didClose", {"textDocument": {"uri": "file:///none.opg"}})
        client.open(GOOD)
        assert client.diagnostics() == []
    assert any("not opened" in line for line in logged)


def served(logged: list[str]):
    """A client of a server in this process that may log."""
    from contextlib import contextmanager

    @contextmanager
    def made():
        to_server, from_client = pipe()
        to_client, from_server = pipe()
        server = threading.Thread(
            target=serve, args=(Wire(to_server, from_server), logged.append), daemon=True
        )
        server.start()
        client = Client(Wire(to_client, from_client))
        client.initialize()
        yield client
        client.shutdown()
        server.join(PATIENCE_S)
        assert not server.is_alive()

    return made()


JUNK = [
    b"[]", b"1", b'"x"', b"{", b"\xff\xfe", b"{}", b'{"jsonrpc": "2.0"}', b"null", b"[" * 3000,
    b'{"jsonrpc": "1.0", "id": 1, "method": "textDocument/hover"}',
    b'{"jsonrpc": "2.0", "method": 7}', b'{"jsonrpc": "2.0", "id": {}, "method": "shutdown?"}',
    b'{"jsonrpc": "2.0", "id": 900, "result": {}}', b'{"jsonrpc": "2.0", "id": 901, "error": 3}',
    b'{"jsonrpc": "2.0", "id": 902, "method": "textDocument/hover", "params": 3}',
    b'{"jsonrpc": "2.0", "id": 903, "method": "textDocument/hover", "params": {"textDocument": 1}}',
    b'{"jsonrpc": "2.0", "id": 904, "method": "textDocument/hover"}',
    b'{"jsonrpc": "2.0", "id": 905, "method": "opstep/none", "params": [1, 2]}',
    b'{"jsonrpc": "2.0", "id": 906, "method": "workspace/executeCommand",'
    b' "params": {"command": "rm"}}',
    b'{"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 77}}',
    b'{"jsonrpc": "2.0", "method": "$/cancelRequest"}',
    b'{"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {}}',
    b'{"jsonrpc": "2.0", "method": "workspace/didChangeConfiguration", "params": {"settings": 1}}',
]  # fmt: skip


def test_messages_that_are_none():
    logged: list[str] = []
    with served(logged) as client:
        for body in JUNK:
            client.wire.write_body(body)
        client.open(GOOD)
        assert client.diagnostics() == []
        for wanted in (902, 903, 904, 905, 906):
            with pytest.raises(ServerError):
                client.answer(wanted)
    assert logged and not any("Traceback" in line for line in logged)


@pytest.mark.parametrize("seed", range(3))
def test_random_messages(seed):
    rng = random.Random(seed)
    known = json.dumps({
        "jsonrpc": "2.0", "id": 5_000, "method": "textDocument/completion",
        "params": {"textDocument": {"uri": "file:///programs/model.opg"},
                   "position": {"line": 1, "character": 6}, "context": {"triggerKind": 1}},
    }).encode()  # fmt: skip
    logged: list[str] = []
    with served(logged) as client:
        client.open(GOOD)
        for _ in range(200):
            body = bytearray(known)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(body))
                body[at : at + rng.randint(0, 3)] = bytes(
                    rng.choice(b'{}[]",:0x1 \xff') for _ in range(rng.randint(0, 3))
                )
            client.wire.write_body(
                bytes(body).replace(b"5000", str(rng.randint(5_000, 6_000)).encode())
            )
        client.rewrite(GOOD)
        assert client.diagnostics() == []


PILES = {  # what took hours, as each place of a long line was begun at
    "a long word in a comment": "# " + "a" * 300_000,
    "many dots in a comment": "# " + "a." * 150_000,
    "many folders in a comment": "# " + "a/" * 150_000,
    "many files in one word": "# " + "a.opg" * 60_000 + "x",
    "open strings": 'at "' * 20_000,
    "comments": "#\n" * 20_000 + GOOD,
}


@pytest.mark.parametrize("name", PILES)
def test_long_lines_are_answered(client, name):
    """While the client waits, which it does not do for long."""
    document = client.open(PILES[name], "file:///long.opg")
    client.diagnostics()
    for line, character in PLACES[:2]:
        everything(client, document.uri, line, character)
    client.close()


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    (tmp_path / ".vscode").mkdir()
    os.mkfifo(tmp_path / ".vscode" / "launch.json")
    os.mkfifo(tmp_path / "pipe.opg")
    (tmp_path / "endless.opg").symlink_to("/dev/zero")
    (tmp_path / "round.opg").symlink_to("round.opg")
    (tmp_path / "folder.opg").mkdir()
    path = tmp_path / "a.opg"
    path.write_text(GOOD, encoding="utf-8")
    with editor(tmp_path) as client:
        client.open(GOOD, path.as_uri())
        assert client.diagnostics() == []
        everything(client, path.as_uri(), 0, 7)
        assert client.request("workspace/symbol", {"query": "f"})
        for name in ("pipe.opg", "endless.opg", "round.opg", "folder.opg"):
            everything(client, (tmp_path / name).as_uri(), 0, 7)


def test_a_launch_configuration_that_is_a_pile(tmp_path):
    (tmp_path / ".vscode").mkdir()
    path = tmp_path / "a.opg"
    path.write_text(GOOD, encoding="utf-8")
    with editor(tmp_path) as client:
        client.open(GOOD, path.as_uri())
        round_and_round = tmp_path / "round.opg"
        round_and_round.symlink_to(round_and_round)
        runs = '{"configurations": [{"type": "opstep", "program": "%s", "graph": '
        for pile in (
            runs % "round.opg",
            runs % "a\\u0000b",
            '\\"' * 200_000,
            "/*" * 200_000,
            "f[" * 50_000,
        ):
            settings = tmp_path / ".vscode" / "launch.json"
            settings.write_text(pile + '"f"', encoding="utf-8")
            place = {"line": 0, "character": 6}
            params = {"textDocument": {"uri": path.as_uri()}, "position": place, "newName": "g"}
            assert client.request("textDocument/rename", params)


@pytest.mark.parametrize("params", [None, 1, "", [], [{}], True])
def test_params_of_our_own_requests_that_are_no_object(client, params):
    from opstep.lsp.registry import features

    for method in [m for m in features() if m.startswith("opstep/")]:
        with pytest.raises(ServerError, match="its params are an object"):
            client.request(method, params)


def test_it_ends_when_the_stream_ends():
    with started() as (_, process):
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 1


def test_it_ends_when_the_editor_has_gone():
    """Its stream is still held open by somebody else."""
    editor_process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "lsp"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wire = Wire(process.stdout, process.stdin)  # pyright: ignore
        params = {"processId": editor_process.pid, "rootUri": None, "capabilities": CAPABILITIES}
        wire.write({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        assert wire.read()
        editor_process.send_signal(signal.SIGKILL)
        editor_process.wait()
        assert process.wait(PATIENCE_S) == 1
    finally:
        editor_process.kill()
        process.kill()
        process.wait()


def test_a_burst_of_keys_is_checked_once_at_its_end(client):
    lines = "".join(f"  v{k} = relu(x)\n" for k in range(2_000))
    client.open("graph f(x: f32[N]) {\n‹a›" + lines + "}\n", "file:///burst.opg")
    client.diagnostics()
    known = len(client.notifications)
    keys = "  key = relu(x)\n" * 20
    for c in keys:
        client.change("a", "a", c)
    client.diagnostics()
    told = [m for m in client.notifications[known:] if m["method"].endswith("publishDiagnostics")]
    assert len(told) < len(keys) / 2


def test_questions_are_answered_while_a_large_text_is_opened():
    graph = "graph g{0}(x: f32[N]) -> f32[N] {{\n{1}  return v7\n}}\n"
    body = "".join(f"  v{k} = relu(x)\n" for k in range(8))
    text = "".join(graph.format(k, body) for k in range(4_000))
    with editor() as client:
        document = client.open(text)
        answers = 0
        while document.uri not in client.diagnostics_of:
            client.ask("hover", text.index("relu") + 1)
            answers += 1
        assert answers > 3


def test_it_prints_nothing_that_is_no_message(tmp_path):
    with started() as (client, process):
        client.open(GOOD)
        assert client.diagnostics() == []
        client.shutdown()
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == b""
    assert os.listdir(tmp_path) == []
