"""Going to definitions, types and implementations; references, highlights, linked editing."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from lsp_client import ServerError, editor

from opstep.lsp.locations import op_location

PROGRAM = """
    ‹top›param ‹w›conv.w: ‹w type›f32[4, 8] = normal(std=0.1)
    state ‹count›count: i32[] = 0

    graph ‹scores›scores(‹x›x: ‹x type›f32[‹N›N, 8]) -> ‹results›f32[N, 4] {
      ‹y›y = lin‹linear›ear(x‹x use›, conv‹w use›.w)
      ‹z›z: ‹z type›f32[N‹N use›, 4] = relu(y)
      return ‹z use›z
    }

    graph main(x: f32[M, 8], u: f32[]) -> f32[] {
      ‹s›s = sc‹call›ores(x)
      m = mean(‹s use›s, ax‹axes›es=[0, 1])
      r = while(u, test=‹test›is_large, body=halve)
      next = add(count, 1)
      cou‹updated›nt <- next
      a = atten‹library›tion(x, x, x)
      return m
    }

    graph ‹is_large›is_large(x: f32[]) -> bool[] {
      y = greater(x, 1.0)
      return y
    }

    graph halve(x: f32[]) -> f32[] {
      y = mul(x, 0.5)  # ‹comment›comment
      ass‹keyword›ert y
      return y
    }
    """


@pytest.fixture(scope="module")
def client():
    with editor() as found:
        found.open(PROGRAM)
        yield found


def places(client, method: str, mark: str) -> list[str]:
    """The texts of the lines behind the places found, or the marks that are there."""
    names = {}
    for name in client.current.marks:
        names[repr(client.current.position(name))] = name
    found = []
    for location in client.ask(method, mark):
        assert location["uri"] == client.current.uri
        found.append(names[repr(location["range"]["start"])])
    return found


@pytest.mark.parametrize(
    ("mark", "target"),
    [
        ("y", "y"),
        ("x use", "x"),
        ("w use", "w"),
        ("w", "w"),
        ("z use", "z"),
        ("s use", "s"),
        ("N use", "N"),
        ("call", "scores"),
        ("scores", "scores"),
        ("test", "is_large"),
        ("updated", "count"),
    ],
)
@pytest.mark.parametrize("method", ["definition", "declaration", "implementation"])
def test_a_name_leads_to_where_it_is_defined(client, method, mark, target):
    assert places(client, method, mark) == [target]


@pytest.mark.parametrize(
    ("mark", "target"),
    [
        ("x use", "x type"),
        ("w use", "w type"),
        ("z use", "z type"),
        ("s use", "results"),  # what a call gives has the type that the signature says
        ("call", "results"),
        ("test", None),
    ],
)
def test_the_type_is_where_it_is_decided(client, mark, target):
    if target is None:
        (location,) = client.ask("typeDefinition", mark)
        assert client.current.at(location["range"]) == "bool[]"
    else:
        assert places(client, "typeDefinition", mark) == [target]


@pytest.mark.parametrize(
    ("method", "mark", "file", "text"),
    [
        ("definition", "linear", "matmul.py", "class linear("),
        ("declaration", "linear", "matmul.py", "class linear("),
        ("definition", "axes", "reduction.py|reduce.py", "class mean("),
        ("typeDefinition", "linear", "matmul.py", "def infer("),
        ("typeDefinition", "y", "matmul.py", "def infer("),
        ("implementation", "linear", "matmul.py", "def cpu("),
        ("definition", "library", "attention.opg", "graph attention<"),
        ("typeDefinition", "library", "attention.opg", "graph attention<"),
    ],
)
def test_what_the_language_has_leads_into_its_own_files(client, method, mark, file, text):
    first, *_ = client.ask(method, mark)
    path = Path(unquote(urlparse(first["uri"]).path))
    assert re.fullmatch(file, path.name)
    line = path.read_text(encoding="utf-8").split("\n")[first["range"]["start"]["line"]]
    assert text in line


def test_an_op_has_a_kernel_for_each_kind_of_device(client):
    found = client.ask("implementation", "linear")
    lines = []
    for location in found:
        path = Path(unquote(urlparse(location["uri"]).path))
        lines.append(path.read_text("utf-8").split("\n")[location["range"]["start"]["line"]])
    assert ["cpu" in line or "cuda" in line or "vendor" in line for line in lines] == [True] * 3


@pytest.mark.parametrize("mark", ["comment", "keyword", "w type"])
@pytest.mark.parametrize("method", ["definition", "typeDefinition", "implementation"])
def test_words_without_a_place_lead_nowhere(client, method, mark):
    assert client.ask(method, mark) == []


def test_nothing_is_found_beyond_the_end(client):
    position = {"line": 999, "character": 5}
    identifier = {"uri": client.current.uri}
    params = {"textDocument": identifier, "position": position}
    assert client.request("textDocument/definition", params) == []
    assert client.request("textDocument/hover", params) is None


# --- references -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "texts"),
    [
        ("x", ["x", "x"]),
        ("w use", ["conv.w", "conv.w"]),
        ("N", ["N"] * 3),
        ("count", ["count"] * 3),
        ("call", ["scores"] * 2),
        ("test", ["is_large"] * 2),
        ("s", ["s", "s"]),
        ("linear", ["linear"]),
        ("comment", []),
        ("keyword", []),
    ],
)
def test_references_are_all_places_and_no_others(client, mark, texts):
    found = client.references(mark)
    own = [f for f in found if f["uri"] == client.current.uri]
    assert [client.current.at(f["range"]) for f in own] == texts
    ranges = [repr(f) for f in found]
    assert len(set(ranges)) == len(ranges)


def test_references_without_the_declaration(client):
    assert len(client.references("count", declaration=False)) == 2
    assert len(client.references("scores", declaration=False)) == 1


def test_what_files_share_is_found_in_all_of_them(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    text = "graph f(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  return y\n}\n"
    (tmp_path / "deep" / "er" / "one.opg").write_text(text)
    (tmp_path / ".hidden" / "two.opg").write_text(text)
    (tmp_path / "no_text.opg").write_bytes(b"\xff\xfe")
    with editor(tmp_path) as client:
        client.open(text.replace("relu", "re‹op›lu").replace("graph f", "graph ‹own›f"))
        names = [Path(urlparse(f["uri"]).path).name for f in client.references("op")]
        assert sorted(n for n in names if n in ("model.opg", "one.opg", "two.opg")) == [
            "model.opg",
            "one.opg",
        ]
        assert len(client.references("own")) == 1  # graphs of other files are not it


def test_library_graphs_are_found_where_they_are_meant(tmp_path):
    call = "graph f(x: f32[B, L, 8]) -> f32[B, L, 8] {\n  y = attention(x, x, x)\n  return y\n}\n"
    own = "graph attention(a: f32[N], b: f32[N], c: f32[N]) -> f32[N] {\n  return a\n}\n"
    (tmp_path / "uses.opg").write_text(call)
    (tmp_path / "has_its_own.opg").write_text(own + call)
    with editor(tmp_path) as client:
        client.open(call.replace("y = ", "y = ‹at›"))
        names = {Path(urlparse(f["uri"]).path).name for f in client.references("at")}
        assert names >= {"model.opg", "uses.opg", "attention.opg"}
        assert "has_its_own.opg" not in names


# --- highlights and linked editing ----------------------------------------------------------------

TEXT, READ, WRITE = 1, 2, 3


@pytest.mark.parametrize(
    ("mark", "kinds"),
    [
        ("count", [WRITE, READ, WRITE]),
        ("x use", [WRITE, READ]),
        ("call", [WRITE, READ]),
        ("linear", [TEXT]),
        ("comment", []),
    ],
)
def test_highlights_tell_reading_from_writing(client, mark, kinds):
    assert [h["kind"] for h in client.ask("documentHighlight", mark)] == kinds


def test_values_are_typed_over_within_their_graph(client):
    found = client.ask("linkedEditingRange", "y")
    assert [client.current.at(r) for r in found["ranges"]] == ["y", "y"]
    assert re.fullmatch(found["wordPattern"], "y2")
    for mark in ("linear", "w use", "scores", "comment"):
        assert client.ask("linkedEditingRange", mark) is None


def test_a_text_that_cannot_be_read_still_says_what_is_in_it():
    with editor() as client:
        client.open("""
            graph f(x: f32[N]) -> f32[N] {
              y = re‹op›lu(x‹x› +
              z = g‹graph›(y)
              return y
            }
            graph g(a: f32[N]) -> f32[N] {
              return a
            }
            graph broken(
              q = re‹lost›lu(
            """)
        assert "relu(x: N)" in client.hover("op") or "relu(" in client.hover("op")
        assert "relu(" in client.hover("lost")
        assert len(client.definition("x")) == 1
        assert len(client.definition("graph")) == 1


def test_highlights_of_a_long_file_are_those_nearby():
    body = "".join(f"  value_{k} = relu(x)\n" for k in range(4_000))
    with editor() as client:
        client.open(f"graph main(x: f32[N]) -> f32[N] {{\n{body}‹end›  return x\n}}\n")
        place = client.current.text.index("relu", client.current.marks["end"] // 2)
        found = client.ask("documentHighlight", place)
        lines = [h["range"]["start"]["line"] for h in found]
        here = client.current.position(place)["line"]
        assert here in lines and 500 < len(lines) < 2_500
        assert lines == list(range(min(lines), max(lines) + 1))
        assert here - min(lines) > 500 and max(lines) - here > 500


def test_a_file_of_the_library_that_is_opened_is_still_the_library():
    from opstep.kernels import stdlib

    path = Path(stdlib.__file__).parent / "attention.opg"
    with editor() as other:
        text = path.read_text(encoding="utf-8")
        other.open(text.replace("graph attention<", "graph ‹at›attention<"), path.as_uri())
        assert len(other.references("at")) >= 1
        with pytest.raises(ServerError, match="belongs to the standard library"):
            other.ask("prepareRename", "at")


@pytest.mark.parametrize(
    ("op", "file", "declaring"),
    [
        ("max_pool3d", "pool.py", "MaxPool"),
        ("conv2d", "conv.py", "Convolution"),
        ("conv1d_integer", "conv_integer.py", "IntegerConvolution"),
    ],
)
def test_ops_of_one_declaration_lead_to_it(op, file, declaring):
    path, found = op_location(op) or pytest.fail("nowhere")
    line = path.read_text().splitlines()[found.start.line]
    assert path.name == file
    assert line.startswith(f"class {declaring}(")
