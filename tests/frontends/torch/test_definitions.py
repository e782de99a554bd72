"""Ops that are written as others, through both doors: how far that goes, and where it ends."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

import opstep
from opstep.frontends.torch.compositions import COMPOSITIONS
from opstep.frontends.torch.errors import ImportFailed

LENGTH = 8
LIBRARY = torch.library.Library("opstep_chain", "DEF")
for _name in (*(f"step{k}" for k in range(LENGTH)), "ping", "pong", "around"):
    LIBRARY.define(f"{_name}(Tensor x) -> Tensor")
    LIBRARY.impl(_name, torch.clone if _name == "pong" else lambda x: x + 1, "CPU")
    LIBRARY.impl(_name, torch.empty_like, "Meta")
ops = torch.ops.opstep_chain


class Applied(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x * 2)  # the call


@pytest.fixture
def define(monkeypatch):
    """Gives ops a definition while a test lasts."""
    torch._dynamo.reset()
    yield lambda op, definition: monkeypatch.setitem(COMPOSITIONS, op.default, definition)
    torch._dynamo.reset()


def imported(op, **options):
    x = torch.arange(3.0)
    return torch.tensor(opstep.from_torch(Applied(op), (x,), **options).run()["output"])


def compiled(op, **options):
    return torch.compile(Applied(op), backend="opstep", options=options)(torch.arange(3.0))


def refused(door, op) -> str:
    with pytest.raises(Exception) as caught:
        door(op)
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, ImportFailed), error
    return str(error)


@pytest.mark.parametrize("door", [imported, compiled])
def test_long_chains_of_definitions(define, door):
    for k in range(LENGTH - 1):
        define(getattr(ops, f"step{k}"), lambda x, k=k: getattr(ops, f"step{k + 1}")(x) + 1)
    define(getattr(ops, f"step{LENGTH - 1}"), lambda x: x * 10)
    found = door(ops.step0)
    torch.testing.assert_close(found, torch.arange(3.0) * 20 + LENGTH - 1)


@pytest.mark.parametrize("door", [imported, compiled])
def test_an_op_that_another_definition_brings_again(define, door):
    define(ops.ping, torch.cos)
    define(ops.around, lambda x: ops.ping(x) + ops.pong(x))
    define(ops.pong, lambda x: ops.ping(ops.step0(x)))
    define(ops.step0, lambda x: x - 1)
    x = torch.arange(3.0) * 2
    torch.testing.assert_close(door(ops.around), torch.cos(x) + torch.cos(x - 1))


@pytest.mark.parametrize("door", [imported, compiled])
def test_definitions_in_a_circle_are_refused(define, door):
    define(ops.ping, lambda x: ops.pong(x) + 1)
    define(ops.pong, lambda x: ops.ping(x) - 1)
    define(ops.around, ops.ping)
    said = refused(door, ops.around)
    assert "comes back to opstep_chain." in said
    assert "return self.op(x * 2)  # the call" in said


@pytest.mark.parametrize("door", [imported, compiled])
def test_pytorch_runs_an_op_whose_definitions_go_in_a_circle(define, door):
    define(ops.ping, lambda x: ops.pong(x) + 1)
    define(ops.pong, lambda x: ops.ping(x) - 1)
    options = {"fallback": "torch"} if door is imported else {"fallback": True}
    torch.testing.assert_close(door(ops.ping, **options), torch.arange(3.0) * 2 + 1)
