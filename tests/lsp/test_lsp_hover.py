"""What is said about the word under the pointer."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from lsp_client import editor, marked
from workspaces import record

import opstep

PROGRAM = """
    # The filters of the
    # first layer.
    pa‹param kw›ram ‹w›conv.w: f32[4, 3, 3, 3] = normal(std=0.1)
    param ‹loaded›bias: f32[4]
    state ‹count›count: i32[] = 0

    # Not about it.

    # Scores of a batch.
    graph ‹features›features(‹x›x: f32[‹N›N, 3, H, 8]) -> f32[‹N result›N, 4, H - 2, 8] {
      # s‹comment›aid
      ‹c›c = con‹conv›v2d(x, conv‹w use›.w, pad‹padding›ding=[0, 1], stride=[1, 1])
      ‹a›a, b = sp‹split›lit(c, sections=2, axis=1)
      ‹d›d = con‹concat›cat(a, b, axis=1)
      e = ‹mul›mul(d, ‹number›2.0)
      unused‹unused› = relu(d)
      return e
    }

    graph main(images: f32[B, 3, 8, 8]) -> f32[B, 4, 6, 8] {
      ‹given›y = fea‹call›tures(images)
      q = tr‹transpose›anspose(y, perm=[1, 0, 2, 3])
      s = sum(y, kee‹keepdims›pdims=tr‹true›ue)
      k = cast(y, dtype=b‹bf16›f16)
      t = softmax(y, wr‹wrong›ong=1)
      u = attention_‹nothing›of(y)
      l = mse_loss(y, y, red‹reduction›uction="sum")
      n = add(count, 1)
      count‹arrow› <- n
      return y
    }
    """


@pytest.fixture(scope="module")
def client():
    with editor() as found:
        found.open(PROGRAM)
        yield found


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        # an op: declaration, types here, attributes, and the arithmetic of its shape
        ("conv", ["conv2d(x: N, w: N, b: N?", "2D convolution: each", "y[n, k, i, j] = b[k]"]),
        ("conv", ["| `w` | `conv.w` | `f32[4, 3, 3, 3]` |"]),
        ("conv", ["| → `y` | `c` | `f32[N, 4, H - 2, 8]` |"]),
        ("conv", ["| `padding` | `[0, 1]` | default `[0, 0]` |"]),
        ("conv", ["| `groups` | `1` | the default |"]),
        ("conv", ["//stride[1] + 1 = (8 + 1 + 1 - (1*(3 - 1) + 1))//1 + 1 = 8`"]),
        ("conv", ["(H + padding[0] + padding[0] - (dilation[0]*(R - 1) + 1))//stride[0] + 1"]),
        ("conv", ["= H - 2`", "Family conv, has a gradient rule"]),
        ("concat", ["xs[0].shape[1] + xs[1].shape[1] = 2 + 2 = 4", "`xs[1]` | `b`"]),
        ("split", ["`a` axis 1", "`b` axis 1"]),
        ("mul", ["*From* torch.mul"]),
        ("transpose", ["axis 0: `x.shape[1] = 4`", "axis 1: `x.shape[0] = B`"]),
        # values
        ("c", ["c: f32[N, 4, H - 2, 8]"]),
        ("c", ["Result of `conv2d` in graph `features`"]),
        ("c", ["1 use: [line 13]"]),
        ("c", ["**Shape**", "= (8 + 1 + 1 - (1*(3 - 1) + 1))//1 + 1 = 8`"]),
        ("x", ["x: f32[N, 3, H, 8]"]),
        ("x", ["Input of graph `features`, [line 10](file:///programs/model.opg#L10)"]),
        ("d", ["2 uses: [line 15](file:///programs/model.opg#L15), [line 16]"]),
        ("unused", ["Never used."]),
        ("wrong", ["`softmax` has no attribute `wrong`: `axis`."]),
        ("nothing", ["There is no graph `attention_of`."]),
        # params and states
        ("w", ["param conv.w: f32[4, 3, 3, 3] = normal(std=0.1)"]),
        ("w", ["The filters of the  \nfirst layer."]),
        ("w use", ["Initialised by `normal`", "1 use: [line 12]"]),
        ("loaded", ["No initialiser: it must be loaded", "Never used."]),
        ("count", ["Filled with `0`.", "Updated by `main`."]),
        ("arrow", ["state count: i32[] = 0"]),
        # graphs
        ("features", ["graph features(x: f32[N, 3, H, 8]) -> f32[N, 4, H - 2, 8]"]),
        ("features", ["Scores of a batch."]),
        ("features", ["5 ops.", "Called by `main`."]),
        ("call", ["Here `N = B`, `H = 8`.", "[line 10](file:///programs/model.opg#L10)"]),
        ("given", ["axis 0: `N = B`", "axis 2: `H - 2 = 8 - 2 = 6`", "axis 3: `8`"]),
        # attributes
        ("padding", ["padding: ints = [0, 0]"]),
        ("padding", ["Attribute of `conv2d`"]),
        ("padding", ["left, bottom, right"]),
        ("padding", ["Here `[0, 1]`."]),
        ("reduction", ["reduction: str = ", '`"none"` or `"sum"` or `"mean"`']),
        ("keepdims", ["keepdims: bool = false", "`true` or `false`", "Here `true`."]),
        # the rest
        ("N", ["Symbol of graph `features`: the size of axis 0 of input `x`, [line 10]"]),
        ("N result", ["Symbol of graph `features`: the size of axis 0 of input `x`"]),
        ("bf16", ["2 bytes", "8 bits of exponent", "Computed in f32 and rounded once."]),
        ("number", ["A tensor of rank 0: here `f32[]`."]),
        ("true", ["The bool true."]),
        ("param kw", ["param NAME: TYPE = initialiser", "Declares a weight"]),
    ],
)  # fmt: skip
def test_a_hover_says_what_there_is_to_say(client, mark, said):
    text = client.hover(mark)
    for part in said:
        assert part in text


@pytest.mark.parametrize(
    ("mark", "silent"),
    [
        ("features", "Not about it"),
        ("mul", "| attribute"),
        ("d", "conv2d"),
        ("x", "**Last run**"),
        ("x", "**Now**"),
    ],
)
def test_a_hover_says_nothing_else(client, mark, silent):
    assert silent not in client.hover(mark)


def test_comments_have_no_hover(client):
    assert client.hover("comment") is None


def test_the_range_is_that_of_the_word(client):
    for mark, word in (("conv", "conv2d"), ("w use", "conv.w"), ("N", "N"), ("number", "2.0")):
        assert client.current.at(client.ask("hover", mark)["range"]) == word


def test_symbols_that_nothing_binds_are_told_of():
    with editor() as client:
        client.open("graph f(x: f32[2*N]) -> f32[‹N›N] {\n  return x\n}\n")
        assert "No input binds `N`" in client.hover("N")


def test_markup_of_comments_is_text():
    with editor() as client:
        client.open("# *a* <b> `c` [d](e)\ngraph ‹f›f(x: f32[N]) -> f32[N] {\n  return x\n}\n")
        text = client.hover("f")
        assert r"\*a\* \<b> \`c\` [d\](e)" in text


# --- what runs and debug sessions tell ------------------------------------------------------------

RUN = """
    param ‹w›w: f32[3, 2] = normal(std=0.5)
    state ‹count›count: i32[] = 0

    graph main(‹x›x: f32[N, 2]) -> f32[N, 3] {
      ‹called›called = layer(x)
      ‹r›r = log(called)
      ‹n›n = add(count, 1)
      count <- n
      return r
    }
    graph layer(‹inner›inner: f32[N, 2]) -> f32[N, 3] {
      ‹y›y = linear(inner, w)
      return y
    }
    """


def recorded(folder: Path, name: str = "runs.db") -> Path:
    program = folder / "model.opg"
    program.write_text(marked(RUN, "").text, encoding="utf-8")
    x = np.array([[1, 2], [3, 4]], "f4")
    record(folder / name, opstep.load(program), {"x": x}, steps=3)
    return program


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("y", [", step 2 (runs.db, ", "min `", "std `"]),
        ("called", [", step 2 (runs.db, ", "min `"]),  # recorded where the callee returns it
        ("inner", [", step 2 (runs.db, ", "min `1`, max `4`, mean `2.5`"]),  # it is main's x
        ("x", [", step 2 (runs.db, ", "min `1`, max `4`, mean `2.5`, std `1.118`"]),
        ("r", ["NaN**"]),
        ("n", [", step 2 (", "`3`"]),
        ("count", [", step 2 (", "`3`"]),
        ("w", [", step 2 (runs.db, ", "mean `"]),
    ],
)
def test_values_have_their_last_statistics(tmp_path, mark, said):
    program = recorded(tmp_path)
    with editor(tmp_path) as client:
        client.open(RUN, program.as_uri())
        text = client.hover(mark)
        for part in ["**Last run**", *said]:
            assert part in text


def test_the_setting_says_which_workspace(tmp_path):
    program = recorded(tmp_path, "other.db")
    (tmp_path / "other.db").rename(tmp_path / "kept.sqlite")
    with editor(tmp_path) as client:
        client.open(RUN, program.as_uri())
        assert "Last run" not in client.hover("y")
    with editor(tmp_path, options={"workspace": "kept.sqlite"}) as client:
        client.open(RUN, program.as_uri())
        assert "kept.sqlite" in client.hover("y")


def test_a_workspace_of_another_program_says_nothing(tmp_path):
    recorded(tmp_path)
    with editor(tmp_path) as client:
        client.open(RUN, (tmp_path / "another.opg").as_uri())
        assert "Last run" not in client.hover("y")


@pytest.mark.parametrize("form", ["{folder}/kept.db", "${{workspaceFolder}}/kept.db", "./kept.db"])
def test_the_setting_is_a_path_of_any_form(tmp_path, form):
    program = recorded(tmp_path, "kept.db")
    recorded(tmp_path, "newer.db")
    with editor(tmp_path, options={"workspace": form.format(folder=tmp_path)}) as client:
        client.open(RUN, program.as_uri())
        assert "kept.db" in client.hover("y")


@pytest.mark.parametrize("damage", ["foreign", "text", "locked", "empty"])
def test_a_file_that_is_of_no_use_is_logged_once(tmp_path, damage):
    program = recorded(tmp_path)
    database = tmp_path / "runs.db"
    for path in tmp_path.glob("runs.db*"):
        path.unlink()
    holding = None
    if damage == "text":
        database.write_text("not a database, but longer than sixteen bytes")
    elif damage == "empty":
        database.write_bytes(b"")
    else:
        holding = sqlite3.connect(database)
        holding.execute("create table t (a)")
        holding.commit()
        if damage == "locked":
            holding.execute("begin exclusive")
    with editor(tmp_path) as client:
        client.open(RUN, program.as_uri())
        for mark in ("y", "r", "y"):
            assert "Result of" in client.hover(mark)
        logs = [m for m in client.notifications if m["method"] == "window/logMessage"]
        assert len([m for m in logs if "runs.db" in m["params"]["message"]]) == 1
    if holding is not None:
        holding.close()


def test_a_new_run_is_seen(tmp_path):
    program = recorded(tmp_path)
    with editor(tmp_path) as client:
        client.open(RUN, program.as_uri())
        before = client.hover("y")
        assert client.hover("y") == before
        recorded(tmp_path)
        after = client.hover("y")
        assert "Last run" in after and after != before


def test_live_values_are_shown_while_they_are_there(client):
    values = [
        {"name": "c", "graph": "features", "text": "f32[2, 4, 6, 8] mean 0.5", "step": 4},
        {"name": "conv.w", "graph": None, "text": "f32[4, 3, 3, 3] max 9"},
    ]
    client.notify("opstep/live", {"uri": client.current.uri, "values": values})
    assert "**Now** `f32[2, 4, 6, 8] mean 0.5`, as of step 4" in client.hover("c")
    assert "**Now** `f32[4, 3, 3, 3] max 9`" in client.hover("w use")
    assert "**Now**" not in client.hover("d")
    client.notify("opstep/live", {"uri": client.current.uri, "values": None})
    assert "**Now**" not in client.hover("c")


REMOTE = "![picture](https://elsewhere/a.png)"


@pytest.mark.parametrize("around", ["``` {} ```", "`` {}", "```{}`", "``a`` ``{}", "`{}", "{}"])
def test_what_a_program_or_a_value_says_is_no_markdown(client, around):
    """A picture from elsewhere would be loaded by the editor as soon as the text is shown."""
    text = around.format(REMOTE)
    document = client.open(
        f"# {text}\ngraph ‹f›first(x: f32[N]) -> f32[N] {{\n  ‹y›y = relu(x)\n  return y\n}}\n"
        "graph second(x: f32[N]) -> f32[N] {\n  y = ‹call›fir(x)\n  return y\n}\n",
        "file:///programs/a)b(c.opg",
    )
    values = [{"name": "y", "graph": "first", "text": text, "step": 1}]
    client.request("opstep/live", {"uri": document.uri, "values": values})
    for mark in ("f", "y"):
        shown = client.hover(mark)
        assert "elsewhere" in shown
        assert not pictures(shown)
        assert "](file:///programs/a%29b%28c.opg#L" in shown
    listed = client.ask("completion", "call")
    items = listed["items"] if isinstance(listed, dict) else listed
    item = next(i for i in items if i["label"].startswith("first"))
    told = client.request("completionItem/resolve", item)["documentation"]["value"]
    assert "elsewhere" in told
    assert not pictures(told)
    client.close()


def pictures(text: str) -> list[str]:
    """Pictures in Markdown: those outside of code, that is, of a run of ticks up to one as long."""
    bare = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    return re.findall(r"!\[[^\]\\]*\]\(", bare)
