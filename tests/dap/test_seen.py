"""What is seen first: trouble in colour, the op that has run, and the table of values."""

from __future__ import annotations

import pytest

RED, PLAIN = "\x1b[91m", "\x1b[0m"
TROUBLE = """\
param w: f32[20] = ones()
state turns: i32[] = 0

graph main(x: f32[20]) -> f32[] {
  lg = log(x)  # break: first
  h = mul(x, lg)
  two = slice(h, starts=[0], ends=[2])
  m = mean(h)  # break: last
  more = add(turns, 1)
  turns <- more
  return m
}
"""
X = [0.0] * 7 + [1.0] * 13
VSCODE = {"clientID": "vscode", "supportsANSIStyling": True}


@pytest.fixture
def troubled(client, program):
    """Stopped where NaNs are there, in a client that shows colours and has our menus."""
    client.initialize(**VSCODE)
    client.start(program(TROUBLE), inputs={"x": X}, breakpoints=["last"])
    client.expect_stop("breakpoint")
    return client


def scopes(client) -> dict[str, int]:
    found = client.request("scopes", frameId=client.stack()[0]["id"])["scopes"]
    return {s["name"]: s["variablesReference"] for s in found}


def variables(client, scope: str = "Values") -> dict[str, dict]:
    found = client.request("variables", variablesReference=scopes(client)[scope])["variables"]
    return {v["name"]: v for v in found}


def table(client, **more) -> dict[str, dict]:
    found = client.request("opstep/values", frameId=client.stack()[0]["id"], **more)
    return {row["name"]: row for row in found["values"]}


# --- colour ---------------------------------------------------------------------------------------


def test_trouble_comes_first_and_in_colour(troubled):
    values = variables(troubled)
    assert values["lg"]["value"] == f"{RED}7 -inf of 20{PLAIN}, the rest 0  f32[20]"
    assert values["h"]["value"] == f"{RED}7 NaN of 20{PLAIN}, the rest 0  f32[20]"
    assert values["two"]["value"] == f"[{RED}nan{PLAIN}, {RED}nan{PLAIN}]"
    assert variables(troubled, "Inputs")["x"]["value"].startswith("f32[20]  mean 0.65")


def test_only_clients_that_show_colours_get_them(client, program):
    client.start(program(TROUBLE), inputs={"x": X}, breakpoints=["last"])
    client.expect_stop("breakpoint")
    assert variables(client)["h"]["value"] == "7 NaN of 20, the rest 0  f32[20]"
    assert "__vscodeVariableMenuContext" not in variables(client)["h"]


def test_what_is_copied_or_typed_over_has_no_colours(troubled):
    frame = troubled.stack()[0]["id"]
    for context in ("watch", "repl", "clipboard"):
        found = troubled.request("evaluate", expression="two", frameId=frame, context=context)
        assert found["result"] == "[nan, nan]"
    hover = troubled.request("evaluate", expression="two", frameId=frame, context="hover")
    assert RED in hover["result"]
    element = troubled.request(
        "variables", variablesReference=variables(troubled)["two"]["variablesReference"],
        filter="indexed",
    )["variables"][0]  # fmt: skip
    assert element["value"] == "nan" and "presentationHint" not in element


def test_what_an_edit_box_would_garble_is_left_to_the_extension(troubled):
    values = variables(troubled) | variables(troubled, "Inputs") | variables(troubled, "Params")
    read_only = {n for n, v in values.items() if "presentationHint" in v}
    assert read_only == {"lg", "h", "two", "x", "w"}
    assert {v["__vscodeVariableMenuContext"] for v in values.values()} == {"tensor", "scalar"}


def test_a_mean_that_is_nan_says_why(troubled):
    frame = troubled.stack()[0]["id"]

    def ask(expression: str, context: str = "repl") -> str:
        more = {"expression": expression, "frameId": frame, "context": context}
        return troubled.request("evaluate", more)["result"]

    assert ask("mean(h)") == "nan, as h has 7 NaN of 20, the rest 0"
    assert ask("mean(x) + max(abs(lg))") == "inf, as lg has 7 -inf of 20, the rest 0"
    assert ask("mean(h)", "clipboard") == "nan"
    assert ask("mean(x)") == "0.65"


# --- where it stands ------------------------------------------------------------------------------


def test_the_scope_that_is_opened_has_something(client, program):
    client.start(program(TROUBLE), inputs={"x": X}, stopOnEntry=True)
    client.expect_stop("entry")
    assert next(iter(scopes(client))) == "Inputs"
    client.go("next", "step")
    assert next(iter(scopes(client))) == "Values"


def test_an_op_that_has_run_is_told_from_one_that_is_next(client, program):
    client.start(program(TROUBLE), inputs={"x": X}, stopOnEntry=True, filters=["inf"])
    client.expect_stop("entry")
    frame = client.stack()[0]["id"]
    assert not client.request("opstep/values", frameId=frame)["hasRun"]
    client.request("continue", threadId=1)
    stop = client.expect_stop("exception")
    assert stop["text"].endswith("; lg has run") and stop["description"].endswith("; lg has run")
    found = client.request("opstep/values", frameId=client.stack()[0]["id"])
    assert found["hasRun"] and found["values"][1]["name"] == "lg"


# --- the table ------------------------------------------------------------------------------------


def test_the_table_has_all_of_a_frame(troubled, program):
    rows = table(troubled)
    assert list(rows) == ["x", "lg", "h", "two", "w", "turns"]
    kinds = {name: row["kind"] for name, row in rows.items()}
    assert kinds == dict.fromkeys(("lg", "h", "two"), "value") | {
        "x": "input", "w": "param", "turns": "state",
    }  # fmt: skip
    h = rows["h"]
    assert (h["type"], h["bytes"], h["line"]) == ("f32[20]", 80, 6)
    assert h["text"] == "7 NaN of 20, the rest 0"
    assert h["statistics"]["nan"] == 7 and h["statistics"]["max"] == 0
    assert rows["w"]["line"] == 1 and rows["turns"]["text"] == "0"


def test_the_table_of_some_names(troubled):
    rows = table(troubled, names=["h", "x", "nothing"])
    assert list(rows) == ["x", "h"] and all("statistics" in row for row in rows.values())


LONG = 3000


def test_the_table_of_a_long_graph_is_bounded(client, program):
    """Statistics of what is not asked for are taken for a few ms; those that are asked for come."""
    lines = [f"  v{k} = add({f'v{k - 1}' if k else 'x'}, 1.0)" for k in range(LONG)]
    text = "\n".join(["graph main(x: f32[64, 64]) -> f32[64, 64] {", *lines])
    client.start(
        program(f"{text}\n  return v{LONG - 1}\n}}\n"), inputs={"x": "ones"}, stopAtEnd=True
    )
    client.expect_stop()
    frame = client.stack()[0]["id"]
    found = client.request("opstep/values", frameId=frame)
    assert found["total"] == len(found["values"]) == LONG + 1 and found["hasRun"]
    assert not all("statistics" in row for row in found["values"])
    few = client.request("opstep/values", frameId=frame, most=10)
    names = [row["name"] for row in few["values"]]
    assert few["total"] == LONG + 1 and names == ["x", *(f"v{k}" for k in range(LONG - 9, LONG))]
    part = client.request("opstep/values", frameId=frame, start=LONG - 1, count=1000)
    assert [row["name"] for row in part["values"]] == [f"v{LONG - 2}", f"v{LONG - 1}"]
    wanted, rows = {"v0", "v7"}, {}
    while len(rows) < 2:
        rows |= {n: r for n, r in table(client, names=list(wanted)).items() if "statistics" in r}
    assert rows["v7"]["statistics"]["mean"] == 9.0
