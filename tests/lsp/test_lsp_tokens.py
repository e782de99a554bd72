"""Semantic tokens: whole files, ranges, and what changes with an edit."""

from __future__ import annotations

import random

import pytest
from lsp_client import editor
from random_graphs import text_of

PROGRAM = """
    # weights
    param conv.w: f32[4, 8] = normal(std=0.1)
    state count: i32[] = -1

    graph main(x: f32[N, 8], u: f32[]) -> f32[N, 4] {
      y = linear(x, conv.w)  # über 𝛼
      z: f32[N, 4] = layer_norm(y, eps=1e-3) at "model.py":12, "a.py":3 in "mod"
      r = while(u, test=large, body=same)
      k = attention(x, x, x)
      wide = sum(z, axes=[1], keepdims=true)
      q = full(value=inf, shape=[N, 2*N], dtype=f16)
      count <- count
      assert large, "too 𝛼 small"
      m = relu(y,
      return y
    }

    graph large(x: f32[]) -> bool[] {
      y = greater(x, 1.0)
      return y
    }
    """


def legend(client) -> dict:
    return client.capabilities["semanticTokensProvider"]["legend"]


def decoded(client, data: list[int]) -> list[tuple[str, str, frozenset[str]]]:
    """The words of an answer, each with its type and modifiers."""
    names = legend(client)
    line = column = 0
    found = []
    for k in range(0, len(data), 5):
        down, right, length, kind, bits = data[k : k + 5]
        assert down >= 0 and length > 0 and (right >= 0 if down == 0 else True)
        line, column = line + down, right if down else column + right
        where = {
            "start": {"line": line, "character": column},
            "end": {"line": line, "character": column + length},
        }
        modifiers = frozenset(m for b, m in enumerate(names["tokenModifiers"]) if bits >> b & 1)
        found.append((client.current.at(where), names["tokenTypes"][kind], modifiers))
    return found


@pytest.fixture
def client():
    with editor() as found:
        found.open(PROGRAM)
        yield found


def full(client) -> list[int]:
    return client.about("textDocument/semanticTokens/full")["data"]


@pytest.mark.parametrize(
    ("word", "kind", "modifiers"),
    [
        ("param", "keyword", ()),
        ("in", "keyword", ()),
        ('"mod"', "string", ()),
        ("conv.w", "variable", ("declaration", "static", "readonly")),
        ("conv.w", "variable", ("static", "readonly")),
        ("count", "variable", ("declaration", "static")),
        ("count", "variable", ("modification", "static")),
        ("count", "variable", ("static",)),
        ("f32", "type", ("defaultLibrary",)),
        ("f16", "type", ("defaultLibrary",)),
        ("normal", "function", ("defaultLibrary",)),
        ("while", "function", ("defaultLibrary",)),
        ("main", "function", ("declaration",)),
        ("large", "function", ()),
        ("large", "function", ("declaration",)),
        ("attention", "function", ("defaultLibrary",)),
        ("x", "parameter", ("declaration",)),
        ("x", "parameter", ()),
        ("y", "variable", ("declaration",)),
        ("y", "variable", ()),
        ("N", "typeParameter", ()),
        ("std", "property", ()),
        ("at", "keyword", ()),
        ("true", "keyword", ()),
        ("inf", "number", ()),
        ("1e-3", "number", ()),
        ("12", "number", ()),
        ('"model.py"', "string", ()),
        ('"too 𝛼 small"', "string", ()),
        ("# weights", "comment", ()),
        ("# über 𝛼", "comment", ()),
        ("relu", "function", ("defaultLibrary",)),  # in a line that cannot be read
    ],
)
def test_words_have_the_colours_of_their_meaning(client, word, kind, modifiers):
    assert (word, kind, frozenset(modifiers)) in decoded(client, full(client))


def test_every_word_is_one_token(client):
    words = [word for word, _, _ in decoded(client, full(client))]
    text = client.current.text
    position = 0
    for word in words:  # they come in order, and what lies between has no letters
        start = text.index(word, position)
        assert not any(c.isalnum() for c in text[position:start])
        position = start + len(word)
    assert not any(c.isalnum() for c in text[position:])


def test_a_range_is_a_part_of_the_whole(client):
    lines = client.current.text.count("\n") + 1
    whole = absolute(full(client))
    for first, last in ((0, 3), (4, 9), (7, 7), (0, lines), (lines - 2, lines + 5)):
        where = {
            "start": {"line": first, "character": 0},
            "end": {"line": last, "character": 0},
        }
        part = absolute(client.about("textDocument/semanticTokens/range", range=where)["data"])
        assert part == [t for t in whole if first <= t[0] <= last]


def absolute(data: list[int]) -> list[tuple[int, ...]]:
    line = column = 0
    found = []
    for k in range(0, len(data), 5):
        line, column = line + data[k], data[k + 1] + (0 if data[k] else column)
        found.append((line, column, *data[k + 2 : k + 5]))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_an_edit_changes_what_the_client_has_to_what_is_there(seed):
    choice = random.Random(seed)
    with editor() as client:
        client.open(text_of(seed))
        answer = client.about("textDocument/semanticTokens/full")
        data, known = answer["data"], answer["resultId"]
        for _ in range(12):
            text = client.current.text
            start = choice.randrange(len(text))
            end = min(len(text), start + choice.choice([0, 0, 1, 20]))
            client.change(start, end, choice.choice(["", "x", "\n", "# ", "y = relu(x)\n", '"']))
            answer = client.about("textDocument/semanticTokens/full/delta", previousResultId=known)
            for edit in answer["edits"]:
                stop = edit["start"] + edit["deleteCount"]
                data[edit["start"] : stop] = edit.get("data") or []
            known = answer["resultId"]
            fresh = full_of_another_session(client.current.text)
            assert data == fresh


def full_of_another_session(text: str) -> list[int]:
    from opstep.lsp.project import Project
    from opstep.lsp.tokens import tokens

    return tokens(Project().open("file:///a.opg", text, 1), 0, 1 << 31)


def test_an_unknown_answer_is_replaced_by_the_whole(client):
    whole = full(client)
    answer = client.about("textDocument/semanticTokens/full/delta", previousResultId="nothing")
    assert answer["data"] == whole
    answer = client.about(
        "textDocument/semanticTokens/full/delta", previousResultId=answer["resultId"]
    )
    assert answer["edits"] == []


def test_a_file_too_long_to_be_coloured_at_once_is_coloured_where_it_is_seen():
    body = "".join(f"  v{k} = relu(x)\n" for k in range(31_000))
    with editor() as client:
        client.open(f"graph main(x: f32[N]) -> f32[N] {{\n{body}  return x\n}}\n")
        assert client.about("textDocument/semanticTokens/full") is None
        method = "textDocument/semanticTokens/full/delta"
        assert client.about(method, previousResultId="1") is None
        where = {
            "start": {"line": 20_000, "character": 0},
            "end": {"line": 20_001, "character": 0},
        }
        data = client.about("textDocument/semanticTokens/range", range=where)["data"]
        assert len(data) == 2 * 3 * 5 and data[0] == 20_000
