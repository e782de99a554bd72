"""The language server over its wire, as an editor drives it: time from a keystroke to the messages
about the text, and from a question to its answer.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench_language import program_text
from harness import Measured, at_most, bench

from opstep.editors.wire import Wire

URI = "file:///bench/model.opg"
KEYS = 40
LINES = (1_000, 10_000)
WHOLE = "parse + verify of the whole text"


def one_graph(lines: int) -> str:
    """A graph of about that many lines."""
    return program_text(lines)


def many_graphs(lines: int) -> str:
    """Graphs of ten lines; most of them call another."""
    parts = ["param w: f32[16, 16] = normal(std=0.2)\n"]
    for k in range(lines // 10):
        last = f"g{k - 1}(y5)" if k % 50 else "relu(y5)"
        parts.append(
            f"\ngraph g{k}(x: f32[N, 16]) -> f32[N, 16] {{\n  y0 = relu(x)\n  y1 = add(x, y0)\n"
            f"  y2 = linear(y1, w)\n  y3 = mul(y2, 0.5)\n  y4 = tanh(y3)\n  y5 = relu(y4)\n"
            f"  y6 = {last}\n  return y6\n}}\n"
        )
    return "".join(parts)


SHAPES: dict[str, Callable[[int], str]] = {"one graph": one_graph, "many graphs": many_graphs}


class Editor:
    """Sends what an editor sends; nothing that comes back is looked at more than it must be."""

    def __init__(self, wire: Wire):
        self.wire = wire
        self.version = 0
        self.text = ""
        self._id = 0

    def notify(self, method: str, params: Any) -> None:
        self.wire.write({"jsonrpc": "2.0", "method": method, "params": params})

    def send(self, method: str, params: Any) -> int:
        self._id += 1
        self.wire.write({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        return self._id

    def take(self) -> dict[str, Any]:
        message = self.wire.read()
        assert message is not None, "the server has closed the connection"
        return message

    def request(self, method: str, params: Any) -> Any:
        wanted = self.send(method, params)
        while True:
            message = self.take()
            if message.get("id") == wanted and "method" not in message:
                assert "error" not in message, message
                return message["result"]

    def open(self, text: str) -> None:
        self.text, self.version = text, self.version + 1
        item = {"uri": URI, "languageId": "opg", "version": self.version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def type(self, offset: int, end: int, new: str) -> None:
        """Replaces a part of the text."""
        self.version += 1
        where = {"start": self.position(offset), "end": self.position(end)}
        self.text = self.text[:offset] + new + self.text[end:]
        document = {"uri": URI, "version": self.version}
        changes = [{"range": where, "text": new}]
        params = {"textDocument": document, "contentChanges": changes}
        self.notify("textDocument/didChange", params)

    def position(self, offset: int) -> dict[str, int]:
        start = self.text.rfind("\n", 0, offset) + 1
        return {"line": self.text.count("\n", 0, start), "character": offset - start}

    def checked(self) -> list[Any]:
        """The messages about the present text, once they are there."""
        while True:
            message = self.take()
            if message.get("method") == "textDocument/publishDiagnostics":
                params = message["params"]
                if params.get("version") == self.version:
                    return params["diagnostics"]

    def ask(self, method: str, offset: int, **more: Any) -> Any:
        document = {"textDocument": {"uri": URI}}
        params = {**document, "position": self.position(offset), **more}
        return self.request(f"textDocument/{method}", params)


@contextmanager
def served(text: str) -> Iterator[Editor]:
    """``opstep lsp`` in a process of its own, with a text that is open and checked."""
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "lsp"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin and process.stdout
    editor = Editor(Wire(process.stdout, process.stdin, 1 << 28))  # pyright: ignore
    try:
        editor.request("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        editor.notify("initialized", {})
        if text:
            editor.open(text)
            editor.checked()
        yield editor
        editor.request("shutdown", None)
        editor.notify("exit", None)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def whole(text: str) -> float:
    """Milliseconds to parse and verify a text, the best of five."""
    import opstep.kernels  # noqa: F401 - registers the ops
    from opstep.kernels.stdlib import library
    from opstep.runtime.ir.parser import parse_with_diagnostics
    from opstep.runtime.ir.verify import verify_with_diagnostics

    taken = []
    for _ in range(5):
        start = time.perf_counter()
        module, _ = parse_with_diagnostics(text)
        verify_with_diagnostics(module, library=library())
        taken.append(time.perf_counter() - start)
    return min(taken) * 1e3


def typed(editor: Editor) -> float:
    """The median of milliseconds from a keystroke to its messages: a new line, key by key, at
    places all over the text.
    """
    taken = []
    for k in range(KEYS // 8):
        at = editor.text.index("\n", int(len(editor.text) * (k + 0.5) * 8 / KEYS)) + 1
        keys = "\n", "  fresh", " =", " re", "lu", "(", "x", ")"
        for key in keys:
            start = time.perf_counter()
            editor.type(at, at, key)
            editor.checked()
            taken.append(time.perf_counter() - start)
            at += 0 if key == "\n" else len(key)
        editor.type(at - len("  fresh = relu(x)"), at + 1, "")
        editor.checked()
    return statistics.median(taken) * 1e3


@bench(
    "language server: messages after a keystroke, 1,000 lines, {0}", peer=WHOLE,
    over=tuple(SHAPES), bars=[at_most(30, "ms")],
)  # fmt: skip
def keystroke_small(shape: str):
    text = SHAPES[shape](LINES[0])
    with served(text) as editor:
        return Measured(typed(editor), whole(text), "ms")


@bench(
    "language server: messages after a keystroke, 10,000 lines, {0}", peer=WHOLE,
    over=tuple(SHAPES), bars=[at_most(80, "ms")],
)  # fmt: skip
def keystroke_large(shape: str):
    text = SHAPES[shape](LINES[1])
    with served(text) as editor:
        return Measured(typed(editor), whole(text), "ms")


def asked(editor: Editor, question: str) -> Any:
    """One question in the middle of the text."""
    text = editor.text
    middle = text.index("add(", len(text) // 2)
    if question == "completion":
        return editor.ask("completion", middle + 4, context={"triggerKind": 1})
    if question == "inlay hints of a screen":
        line = editor.position(middle)["line"]
        where = {
            "start": {"line": line, "character": 0}, "end": {"line": line + 60, "character": 0}
        }  # fmt: skip
        params = {"textDocument": {"uri": URI}, "range": where}
        return editor.request("textDocument/inlayHint", params)
    return editor.ask(question, middle + (5 if question == "definition" else 1))


@bench(
    "language server: {0}, 10,000 lines, one graph",
    over=("hover", "definition", "completion", "inlay hints of a screen"),
    bars=[at_most(20, "ms")],
)
def question(what: str):
    """Once the text has been edited, so that nothing is left from the time before."""
    with served(one_graph(LINES[1])) as editor:
        taken = []
        for k in range(20):
            at = editor.text.index("\n", 1_000 + 50 * k) + 1
            editor.type(at, at, f"  fresh{k} = relu(x)\n")
            editor.checked()
            start = time.perf_counter()
            found = asked(editor, what)
            taken.append(time.perf_counter() - start)
            assert found, f"{what}: nothing was found"
        return Measured(statistics.median(taken) * 1e3, None, "ms")


@bench(
    "language server: opening 100,000 lines to the first messages, {0}", peer=WHOLE,
    over=tuple(SHAPES), bars=[at_most(8, "s")],
)  # fmt: skip
def opening(shape: str):
    text = SHAPES[shape](100_000)
    with served("") as editor:
        start = time.perf_counter()
        editor.open(text)
        editor.checked()
        return Measured(time.perf_counter() - start, whole(text) / 1e3, "s")


@bench(
    "language server: hover while 100,000 lines are opened, {0}, the slowest",
    over=tuple(SHAPES), bars=[at_most(200, "ms")],
)  # fmt: skip
def meanwhile(shape: str):
    """Questions one after the other until the first messages come; the first waits until the text
    has arrived.
    """
    text = SHAPES[shape](100_000)
    with served("") as editor:
        editor.open(text)
        position = editor.position(text.index("relu(", len(text) // 2) + 1)
        params = {"textDocument": {"uri": URI}, "position": position}
        taken: list[float] = []
        opened = False
        while not opened:
            start = time.perf_counter()
            wanted = editor.send("textDocument/hover", params)
            while True:
                message = editor.take()
                opened |= message.get("method") == "textDocument/publishDiagnostics"
                if message.get("id") == wanted:
                    break
            taken.append(time.perf_counter() - start)
        return Measured(max(taken[1:], default=taken[0]) * 1e3, None, "ms")


if __name__ == "__main__":
    print(json.dumps({name: len(make(1_000)) for name, make in SHAPES.items()}))
