"""Renames: what is edited, what is refused, and that nothing but names changes."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lsp_client import Client, ServerError, editor
from random_graphs import text_of

from opstep.kernels.stdlib import library
from opstep.lsp.occurrences import at as place_at
from opstep.lsp.occurrences import occurrences
from opstep.lsp.project import Project
from opstep.lsp.renaming import rename
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.verify import verify

PROGRAM = """
    # scores of a batch
    param conv.w: f32[4, 8] = nor‹random›mal(std=0.1)
    param ‹b›b: f32[4] = zeros()
    state count: i32[] = 0

    graph ‹scores›scores(x: f32[‹N›N, 8], ‹unused›unused: f32[N]) -> f32[N, 4] {
      ‹y›y = linear(‹x›x, conv‹w›.w, b)  # x stays x
      z: f32[N, 4] = relu(y)
      wide = reshape(z, shape=[N, 2, 2])
      ‹flat›flat = reshape(wide, shape=[N, 4])
      return flat
    }

    graph main(x: f32[N, 8], u: f32[N]) -> f32[] {
      s = sc‹call›ores(x, u)
      loss = ‹op›mean(s)
      big = attention_of(x)
      r = while(loss, test=is_‹test›large, body=halve, li‹attribute›mit=10)
      next = add(count, 1)
      cou‹updated›nt <- next
      retu‹keyword›rn r
    }

    graph attention_of(x: f32[N, 8]) -> f32[N, 8] {
      y = layer‹library›_mix(x)
      return x
    }

    graph is_large(x: f32[]) -> bool[] {
      y = greater(x, 1.0)
      return y
    }

    graph halve(x: ‹dtype›f32[]) -> f32[] {
      y = mul(x, ‹number›0.5)
      return y
    }
    """


@pytest.fixture
def client():
    with editor() as found:
        found.open(PROGRAM.replace("y = layer‹library›_mix(x)", "y = ident‹library›ity(x)"))
        yield found


def renamed(client: Client, mark: str, new: str) -> str:
    edit = client.ask("rename", mark, newName=new)
    (changed,) = edit["documentChanges"]
    assert changed["textDocument"] == {"uri": client.current.uri, "version": 1}
    return client.current.edited(changed["edits"])


@pytest.mark.parametrize(
    ("mark", "new", "places"),
    [
        ("y", "hidden", 2),
        ("x", "input_", 2),
        ("N", "Batch", 6),
        ("unused", "other", 1),
        ("w", "conv1.weight", 2),
        ("b", "bias", 2),
        ("updated", "steps.0", 3),
        ("scores", "logits", 2),
        ("call", "logits", 2),
        ("test", "is_big", 2),
        ("flat", "scores", 2),  # a graph has that name; values are not graphs
        ("scores", "x", 2),  # and the other way round
    ],
)
def test_a_rename_edits_all_places_and_no_others(client, mark, new, places):
    old = client.ask("prepareRename", mark)["placeholder"]
    before = client.current.text
    after = renamed(client, mark, new)
    assert len(after) == len(before) + places * (len(new) - len(old))
    client.rewrite(after)
    assert [d for d in client.diagnostics() if d["severity"] == 1] == []
    assert "# x stays x" in after


def test_rename_back_is_identity(client):
    before = client.current.text
    for old, new in (("conv.w", "v.0"), ("scores", "logits"), ("count", "fresh")):
        after = renamed(client, {"conv.w": "w", "scores": "call", "count": "updated"}[old], new)
        client.open(after.replace(new, f"‹at›{new}", 1), "file:///programs/back.opg")
        (change,) = client.ask("rename", "at", newName=old)["documentChanges"]
        assert client.current.edited(change["edits"]) == before
        client.current = client.documents["file:///programs/model.opg"]


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("op", "mean is an op"),
        ("random", "normal is an op"),
        ("attribute", "limit is an attribute of while"),
        ("dtype", "f32 is an element type"),
        ("keyword", "return is a keyword"),
        ("number", "a number has no name"),
        ("library", "identity is an op"),
    ],
)
def test_what_has_a_name_of_the_language_is_refused(client, mark, says):
    for method, more in (("prepareRename", {}), ("rename", {"newName": "other"})):
        with pytest.raises(ServerError, match=says):
            client.ask(method, mark, **more)


@pytest.mark.parametrize(
    ("mark", "new", "says"),
    [
        ("y", "2y", "is not a name"),
        ("y", "", "a name is wanted"),
        ("y", "a b", "is not a name"),
        ("y", "conv.y", "only params and states have dots"),
        ("scores", "a.b", "cannot name a graph"),
        ("y", "graph", "graph is a keyword"),
        ("y", "inf", "inf is a number"),
        ("b", "true", "true is a constant"),
        ("y", "z", "z is taken: there is a value of that name in graph scores"),
        ("y", "x", "x is taken"),
        ("y", "count", "there is a state of that name"),
        ("b", "count", "there is a state of that name"),
        ("b", "loss", "there is a value of that name in graph main"),
        ("scores", "main", "there is a graph of that name"),
        ("scores", "relu", "relu is the name of an op"),
        ("scores", "attention", "attention is a graph of the standard library"),
    ],
)
def test_a_name_that_would_change_the_meaning_is_refused(client, mark, new, says):
    with pytest.raises(ServerError, match=says):
        client.ask("rename", mark, newName=new)


def test_symbols_of_one_graph_stay_apart(client):
    client.open("""
        graph f(x: f32[‹N›N, M]) -> f32[M, N] {
          y = transpose(x)
          return y
        }
        """)
    with pytest.raises(ServerError, match="M is taken: there is a symbol"):
        client.ask("rename", "N", newName="M")
    client.ask("rename", "N", newName="x")  # values are no symbols


def test_a_name_that_an_unread_line_may_mean_is_not_renamed(client):
    client.open("""
        graph f(‹x›x: f32[N], ‹z›z: f32[N]) -> f32[N] {
          y = relu(x) + 1
          return z
        }
        """)
    with pytest.raises(ServerError, match="line 2 cannot be read"):
        client.ask("rename", "x", newName="w")
    client.ask("rename", "z", newName="w")


def test_a_graph_that_stands_in_for_the_library_keeps_its_name(client):
    client.open("""
        graph ‹own›attention(q: f32[N]) -> f32[N] {
          return q
        }
        graph main(x: f32[B, L, 8]) -> f32[B, L, 8] {
          y = atten‹call›tion(x)
          return y
        }
        """)
    for mark in ("own", "call"):
        with pytest.raises(ServerError, match="goes before the standard library's"):
            client.ask("prepareRename", mark)


def test_undefined_names_are_not_renamed(client):
    client.open("""
        graph f(x: f32[N]) -> f32[N] {
          y = relu(‹free›missing)
          z = ‹graph›unknown(x)
          return y
        }
        """)
    with pytest.raises(ServerError, match="missing is defined nowhere"):
        client.ask("prepareRename", "free")
    with pytest.raises(ServerError, match="there is no graph unknown"):
        client.ask("prepareRename", "graph")


def test_first_numbers_that_come_from_the_name_are_mentioned(client):
    client.ask("rename", "w", newName="v")
    said = [m["params"] for m in client.notifications if m["method"] == "window/showMessage"]
    assert len(said) == 1 and "draws its first numbers from its name" in said[0]["message"]
    client.ask("rename", "b", newName="v")
    assert len([m for m in client.notifications if m["method"] == "window/showMessage"]) == 1


LAUNCH = """{
  // how it is run
  "version": "0.2.0",
  "configurations": [
    {"type": "opstep", "program": "${workspaceFolder}/model.opg", "graph": "train",
     "inputs": {"x": "random"}, "symbols": {"N": 4},},
    {"type": "opstep", "program": "other.opg", "graph": "train"},
    {"type": "python", "program": "${workspaceFolder}/model.opg", "graph": "train"},
    {"type": "opstep", "program": "model.opg", "graph": "test", "inputs": {"x": 1}},
  ]
}
"""
TWO = """
    graph ‹train›train(‹x›x: f32[‹N›N]) -> f32[N] {
      y = relu(x)
      return y
    }
    graph test(x: f32[N]) -> f32[N] {
      return x
    }
    """


@pytest.mark.parametrize(
    ("mark", "old", "new"),
    [
        ("train", '/model.opg", "graph": "train",', '/model.opg", "graph": "fit",'),
        ("x", '"inputs": {"x": "random"}', '"inputs": {"fit": "random"}'),
        ("N", '"symbols": {"N": 4}', '"symbols": {"fit": 4}'),
    ],
)
def test_launch_configurations_of_the_program_are_edited(tmp_path, mark, old, new):
    (tmp_path / ".vscode").mkdir()
    launch = tmp_path / ".vscode" / "launch.json"
    launch.write_text(LAUNCH, encoding="utf-8")
    with editor(tmp_path) as client:
        client.open(TWO, (tmp_path / "model.opg").as_uri())
        changes = client.ask("rename", mark, newName="fit")["documentChanges"]
        assert len(changes) == 2
        assert changes[1]["textDocument"] == {"uri": launch.as_uri(), "version": None}
        text = LAUNCH
        lines = text.splitlines(keepends=True)
        for edit in changes[1]["edits"]:
            start = edit["range"]["start"]
            offset = sum(map(len, lines[: start["line"]])) + start["character"]
            width = edit["range"]["end"]["character"] - start["character"]
            text = text[:offset] + edit["newText"] + text[offset + width :]
        assert text == LAUNCH.replace(old, new)
        assert json.loads(json.dumps(changes[0]["edits"]))


def test_broken_launch_files_are_passed_over(tmp_path):
    (tmp_path / ".vscode").mkdir()
    for text in (b"{", b'[{"train"', b"\xff train", b'{"configurations": {"graph": "train"}}'):
        (tmp_path / ".vscode" / "launch.json").write_bytes(text)
        with editor(tmp_path) as client:
            client.open(TWO, (tmp_path / "model.opg").as_uri())
            assert len(client.ask("rename", "train", newName="fit")["documentChanges"]) == 1


def test_clients_without_versions_get_plain_changes():
    with editor(capabilities={}) as client:
        client.open(TWO)
        edit = client.ask("rename", "x", newName="w")
        assert list(edit["changes"]) == [client.current.uri] and "documentChanges" not in edit


# --- any program ----------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), choice=st.randoms(use_true_random=False))
def test_renaming_and_renaming_back_changes_nothing(seed: int, choice: random.Random):
    text = text_of(seed)
    project = Project()
    file = project.open("file:///a.opg", text, 1)
    found = place_at(file, choice.choice([m.start() for m in re.finditer(r"[A-Za-z_]\w*", text)]))
    assert found is not None
    new = choice.choice(["fresh", "Q", "x", "y", "copy", "relu", "p0.q"])
    try:
        done = rename(project, found, new)
    except InputError:
        return
    old = found.name
    if new == old:
        assert done.edits == []
        return
    after = applied(file, done.edits)
    assert types_of(after, found.thing.kind, old, new) == types_of(text, "", "", "")
    again = project.open("file:///a.opg", after, 2)
    back = next(
        o for o in (place_at(again, e) for e in range(len(after)))
        if o is not None and o.name == new and same_thing(o, found, new)
    )  # fmt: skip
    assert applied(again, rename(project, back, old).edits) == text
    assert len(list(occurrences(again, back.thing))) == len(done.edits)


def same_thing(found, before, new: str) -> bool:
    thing, old = found.thing, before.thing
    scope = new if old.kind == "graph" and old.scope else old.scope
    return thing.kind == old.kind and thing.scope == scope


def applied(file, edits) -> str:
    text = file.text
    for edit in sorted(edits, key=lambda e: file.offset(e.range.start), reverse=True):
        start, end = file.offset(edit.range.start), file.offset(edit.range.end)
        text = text[:start] + edit.new_text + text[end:]
    return text


def types_of(text: str, kind: str, old: str, new: str):
    """The types of all values in the order of their definition, without their names, and what is
    applied to them.
    """
    verified = verify(parse(text), library=library())
    return [
        [str(t).replace(new, old) if kind == "symbol" else str(t) for t in graph.types.values()]
        + [a and (a.op.name if a.op else "call") for a in graph.applications]
        for name, graph in verified.graphs.items()
    ]
