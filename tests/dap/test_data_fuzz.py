"""Requests about data, with arguments of the right types and no sense: answered, never a bug."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from dap.test_data import INPUT, children, scopes

from opstep.dap.checking import json_name
from opstep.dap.registry import requests

TEXTS = [
    "", "x", "a", "w", "nowhere", "a[", "[0]", "[99]", "[-1]", "*", "a[0]", "a[::2]", "y = 1",
    "code:1", "code:3", "tensor:1", "tensor:9", "0x100000000", "-1", "AAAA", "device", "é\0\n",
    "stats(a)", "statistics", "made by", "a = a", "1e400", "__class__", "a" * 2000, "((((((",
    "x@-1", "nan", "🦜",
]  # fmt: skip
NUMBERS = [0, 1, 2, 3, 4, 7, 12, 30, 100, -1, -7, 2**31, 2**53 - 1, -(2**53 - 1)]
FAMILIES = ("stack", "variables", "memory", "sources", "code", "trouble", "tensors")


def of_family() -> list[str]:
    found = [
        name
        for name, declared in requests().items()
        if declared.handler.__module__.rpartition(".")[2] in FAMILIES
    ]
    return sorted(found)


def made(kind: Any, rng: random.Random) -> Any:
    """A value of a type that arguments have."""
    options = [k for k in get_args(kind) if k is not type(None)]
    if get_origin(kind) is not None and options and isinstance(options[0], str):
        return rng.choice(options)
    if options:
        return made(rng.choice(options), rng)
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice(NUMBERS)
    if kind is float:
        return rng.choice([0.0, 1.5, -1e308, 1e308, *NUMBERS])
    if kind is str:
        return rng.choice(TEXTS)
    return arguments_of(kind, rng)


def arguments_of(kind: type | None, rng: random.Random) -> dict[str, Any]:
    if kind is None:
        return {}
    hints = get_type_hints(kind)
    return {
        json_name(f): made(hints[f.name], rng)
        for f in fields(kind)
        if rng.random() < 0.8 or f.default is f.default_factory
    }


@pytest.mark.parametrize("seed", range(4))
def test_arguments_without_sense(client, loops, seed):
    rng = random.Random(seed)
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["log"])
    client.expect_stop("breakpoint")
    for scope in scopes(client).values():  # so that there are numbers to refer to
        for variable in children(client, scope).values():
            if variable["variablesReference"]:
                children(client, variable)
    names = of_family()
    assert len(names) > 20
    for _ in range(400):
        name = rng.choice(names)
        given = arguments_of(requests()[name].arguments, rng)
        response = client.response(client.send(name, given, check=False))
        assert "internal error" not in str(response.get("body")), (name, given, response)
    assert client.stack()[-1]["name"] == "main"
