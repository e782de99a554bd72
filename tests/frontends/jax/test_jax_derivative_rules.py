"""Faults in rules for derivatives, which `custom_vjp` and `custom_jvp` have: their own lines."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax import lax

import opstep
from opstep.frontends.jax.tracebacks import JOINS
from opstep.runtime.ir.graph import Apply

X = jnp.array([1.0, 0.0])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def root(x, scale) -> Any:
    return jnp.sqrt(x) * scale


def forward(x, scale):
    y = jnp.sqrt(x)
    return y * scale, y


def backward(scale, y, g):
    half = g * 0.5 * scale
    return (divided(half, y),)  # the rule


def divided(half, y):
    return half / y  # divided


root.defvjp(forward, backward)


@jax.custom_jvp
def slope(x):
    return jnp.sqrt(x)


@slope.defjvp
def tangent(primals, tangents):
    y = slope(primals[0])
    return y, tangents[0] / y  # tangent


def total(x):
    return root(x, 2.0).sum()  # total


@jax.custom_vjp
def outer(x):
    return total(x)


def outer_backward(x, g):
    return (jax.grad(total)(x) * g,)  # outer


outer.defvjp(lambda x: (total(x), x), outer_backward)


def pulled(x):
    y, pull = jax.vjp(total, x)
    return pull(y * 0 + 1)


def turns(x):
    return lax.fori_loop(0, 1, lambda _, x: root(x, 2.0), x).sum()


def rows(x):
    return lax.scan(lambda c, r: (c + root(r, 2.0), None), 0.0, x)[0]


RULE = "divided", "the rule"
FUNCTIONS = {
    "alone": (jax.grad(total), RULE),
    "jitted inside": (jax.grad(jax.jit(total)), RULE),
    "by hand": (pulled, RULE),
    "turns": (jax.grad(turns), RULE),
    "rows": (jax.grad(rows), RULE),
    "many": (lambda x: jax.vmap(jax.grad(total))(x[None]), RULE),
    "mapped inside": (
        jax.grad(lambda x: jax.vmap(lambda r: root(r, 2.0))(x[None]).sum()),
        RULE,
    ),
    "branch": (jax.grad(lambda x: lax.cond(x[0] > 0, total, jnp.sum, x)), RULE),
    "again": (jax.grad(lambda x: jax.checkpoint(total)(x)), RULE),
    "in another": (jax.grad(outer), (*RULE, "total", "outer")),
    "tangents": (jax.grad(lambda x: slope(x).sum()), ("tangent",)),
    "jitted tangents": (jax.grad(lambda x: jax.jit(slope)(x).sum()), ("tangent",)),
    "forward": (lambda x: jax.jvp(jax.jit(slope), (x,), (x + 1,))[1], ("tangent",)),
}


def line_of(mark: str) -> int:
    source = Path(__file__).read_text("utf-8").splitlines()
    return next(k for k, text in enumerate(source, 1) if text.endswith(f"# {mark}"))


def statement(program):
    """The division, with its lines of this file."""
    for graph in program.graphs.values():
        for s in graph.body:
            if isinstance(s, Apply) and s.callee.text == "div" and s.at:
                return [f.line for f in s.at.frames], s.at.is_backward
    raise AssertionError("no division")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fault_in_a_rule_is_at_its_line(name):
    function, marks = FUNCTIONS[name]
    opstep.jax.findings.clear()
    hunted = opstep.jax.debug(hunt=True)(function)
    with pytest.warns(opstep.jax.NumericsWarning, match="division by 0"):
        hunted(X)
    (found,) = opstep.jax.findings
    assert found.first.where.imported.endswith(f"test_jax_derivative_rules.py:{line_of(marks[0])}")
    lines, _ = statement(hunted.programs[0])
    wanted = [line_of(m) for m in marks][: None if JOINS else len(RULE)]
    assert lines[: len(wanted)] == wanted


def test_what_a_rule_does_is_no_derivative_of_its_line():
    jitted = opstep.from_jax(jax.grad(jax.jit(total)), X)
    assert [statement(p)[1] for p in (opstep.from_jax(jax.grad(total), X), jitted)] == [
        False,
        False,
    ]
    derived = opstep.from_jax(jax.value_and_grad(lambda x: jnp.sqrt(x).sum()), X)
    assert statement(derived)[1]


def test_tracing_leaves_jax_as_it_was():
    from jax.extend import source_info_util

    module: Any = inspect.getmodule(source_info_util.current)
    before = module.current, module.user_context
    opstep.from_jax(jax.grad(total), X)
    with pytest.raises(opstep.OpstepError):
        opstep.from_jax(lambda x: x + {}["missing"], X)
    assert (module.current, module.user_context) == before
