"""What is advertised is what is implemented, and what is documented."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from dap.schema import schema

from opstep.dap.checking import Mismatch, check, named, plain
from opstep.dap.registry import STOPPED, DapError, State, capabilities, request, requests

DOC = Path(__file__).resolve().parent.parent.parent / "docs" / "dap.md"


@dataclass(frozen=True)
class Inner:
    name: str
    count: int = 0


@dataclass(frozen=True)
class Arguments:
    thread_id: int
    client_id: str | None = named("clientID")
    inner: Inner | None = None
    many: list[Inner] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)
    ratio: float = 1.0
    kind: Literal["a", "b"] = "a"
    either: int | str | None = None
    rest: Any = None


def test_arguments_come_typed():
    given = {
        "threadId": 1.0, "clientID": "me", "inner": {"name": "x"}, "many": [{"name": "y"}],
        "table": {"k": 2}, "ratio": 2, "kind": "b", "either": "s", "rest": [1], "unknown": {},
    }  # fmt: skip
    found = check(Arguments, given, "arguments")
    assert found == Arguments(
        1, "me", Inner("x"), [Inner("y")], {"k": 2}, 2, "b", "s", [1]
    ) and type(found.thread_id) is int  # fmt: skip


@pytest.mark.parametrize(
    "wrong, what",
    [
        ({}, "arguments.threadId is missing"),
        ({"threadId": "1"}, "arguments.threadId must be an integer; it is '1'"),
        ({"threadId": True}, "must be an integer; it is a boolean"),
        ({"threadId": None}, "must be an integer; it is null"),
        ({"threadId": 1.5}, "must be an integer"),
        ({"threadId": 1e300}, "out of range"),
        ({"threadId": json.loads("1e999")}, "must be an integer"),
        ({"threadId": 1, "inner": {"name": 2}}, "arguments.inner.name must be a string"),
        ({"threadId": 1, "inner": []}, "arguments.inner must be an object; it is a list"),
        ({"threadId": 1, "many": [{"name": "x"}, 1]}, r"arguments.many\[1\] must be an object"),
        ({"threadId": 1, "table": {"k": "v"}}, "arguments.table.k must be an integer"),
        ({"threadId": 1, "kind": "c"}, "arguments.kind is 'c'; it can be a, b"),
        ({"threadId": 1, "either": []}, "arguments.either must be a string"),
        ([], "arguments must be an object"),
    ],
)
def test_arguments_that_do_not_fit(wrong, what):
    with pytest.raises(Mismatch, match=what):
        check(Arguments, wrong, "arguments")


def test_bodies_become_json():
    body = {"a": Inner("x"), "b": (1, 2.5), "none": None, "n": [None], "inf": float("inf")}
    assert plain(body) == {
        "a": {"name": "x", "count": 0}, "b": [1, 2.5], "n": [None], "inf": "inf",
    }  # fmt: skip
    with pytest.raises(TypeError):
        plain({"x": object()})


def test_a_request_is_declared_once():
    requests()
    with pytest.raises(ValueError, match="declared twice"):
        request("threads")(lambda session: None)


def test_a_state_is_checked():
    declared = requests()["next"]
    assert declared.states == STOPPED
    declared.check_state(State.STOPPED)
    with pytest.raises(DapError) as refused:
        declared.check_state(State.RUNNING)
    assert refused.value.short == "notStopped"
    with pytest.raises(DapError, match="nothing is launched"):
        declared.check_state(State.READY)


def protocol_requests() -> set[str]:
    names = [n.removesuffix("Request") for n in schema()["definitions"] if n.endswith("Request")]
    return {n[:1].lower() + n[1:] for n in names if n}


def test_requests_are_the_protocols_or_documented():
    ours = {name for name, declared in requests().items() if declared.custom}
    assert set(requests()) - ours <= protocol_requests()
    assert all(name.startswith("opstep/") for name in ours)


def test_every_request_is_in_the_documentation():
    """Each request of the protocol, supported or not, and each of ours, has a row."""
    rows = set(re.findall(r"^\| `([\w/]+)` \|", DOC.read_text(encoding="utf-8"), re.MULTILINE))
    assert protocol_requests() | set(requests()) <= rows


def test_the_documentation_says_yes_where_there_is_a_handler():
    text = DOC.read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `([\w/]+)` \| (yes|no|to the client)", text, re.MULTILINE))
    wrong = {n: w for n, w in said.items() if (w == "yes") != (n in requests())}
    assert wrong == {}


def test_capabilities_are_the_protocols():
    assert set(capabilities()) <= set(schema()["definitions"]["Capabilities"]["properties"])


def test_every_capability_is_in_the_documentation():
    text = DOC.read_text(encoding="utf-8")
    known = schema()["definitions"]["Capabilities"]["properties"]
    assert [name for name in known if f"`{name}`" not in text] == []
