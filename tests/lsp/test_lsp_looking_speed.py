"""Places in long files are looked at as quickly as in short ones."""

from __future__ import annotations

import statistics
import time

import pytest
from lsp_client import editor

LINES = 10_000
BAR_S = 0.020


def text() -> str:
    lines = ["param w: f32[64, 64] = normal(std=0.1)", ""]
    lines += ["graph main(x: f32[N, 64]) -> f32[N, 64] {", "  v0 = relu(x)"]
    lines += [f"  v{k} = linear(v{k - 1}, w)" for k in range(1, LINES)]
    lines += [f"  return v{LINES - 1}", "}"]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def client():
    with editor() as found:
        found.open(text())
        found.diagnostics()
        yield found


@pytest.mark.parametrize("word", ["= linear", "(v", ", w)", "v"])
@pytest.mark.parametrize("method", ["hover", "definition", "typeDefinition"])
def test_a_place_in_a_long_file_is_known_at_once(client, method, word):
    whole = client.current.text
    seconds = []
    for k in range(30):
        line = whole.index(f"  v{300 * k + 50} = ")
        place = whole.index(word, line) + max(len(word) - 1, 0) if word != "v" else line + 3
        start = time.perf_counter()
        assert client.ask(method, place)
        seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) < BAR_S


def test_the_tokens_of_a_screen_are_quick(client):
    seconds = []
    for k in range(30):
        where = {
            "start": {"line": 300 * k, "character": 0},
            "end": {"line": 300 * k + 60, "character": 0},
        }
        start = time.perf_counter()
        assert client.about("textDocument/semanticTokens/range", range=where)["data"]
        seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) < BAR_S
