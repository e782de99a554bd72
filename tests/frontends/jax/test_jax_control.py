"""Loops and branches, against JAX."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax import lax
from jax_agreement import agree, together


def test_loops():
    def cell(c, a):
        return jnp.tanh(c * 0.5 + a), c.sum()

    def scanned(x, rows, n):
        return lax.scan(cell, x, rows)

    agree(
        together(
            scan=scanned,
            back=lambda x, rows, n: lax.scan(cell, x, rows, reverse=True),
            derived=jax.grad(lambda x, rows, n: (scanned(x, rows, n)[0] ** 2).sum(), (0, 1)),
            turns=lambda x, rows, n: lax.fori_loop(0, 5, lambda k, x: x * 1.1 + k, x),
            some=lambda x, rows, n: lax.fori_loop(0, n, lambda k, x: x * 1.1 + k, x),
            until=lambda x, rows, n: lax.while_loop(
                lambda x: x.sum() < 9 * n, lambda x: x * 2 + n, x
            ),
            each=jax.vmap(
                lambda x, rows, n: lax.while_loop(lambda x: x < 9, lambda x: x * 2 + 1, x),
                (0, None, None),
            ),
            rows=lambda x, rows, n: lax.map(lambda r: r.sum(), rows),
            sums=lambda x, rows, n: lax.associative_scan(jnp.add, rows),
            none=lambda x, rows, n: lax.fori_loop(n, 0, lambda k, x: x + k, x),
        ),
        jnp.array([0.5, 1.0, 2.0]),
        jnp.asarray(np.arange(15, dtype=np.float32).reshape(5, 3)) / 9,
        jnp.int32(4),
    )


@pytest.mark.parametrize("k", [-1, 0, 1, 5])
def test_branches(k):
    def doubled(x):
        return x * 2

    agree(
        together(
            two=lambda x, k: lax.cond(k > 0, doubled, jnp.sin, x),
            same=lambda x, k: lax.cond(k > 0, doubled, lambda x: x, x),
            many=lambda x, k: lax.switch(k, [jnp.sin, jnp.cos, jnp.tanh], x),
            derived=jax.grad(lambda x, k: lax.cond(k > 0, doubled, jnp.sin, x).sum()),
            each=lambda x, k: jax.vmap(lambda x: lax.cond(x > k, doubled, jnp.sin, x))(x),
            known=lambda x, k: lax.switch(1, [jnp.sin, jnp.cos], x),
        ),
        jnp.array([0.5, -1.0, 2.0]),
        jnp.int32(k),
    )


def test_weights_are_read_where_loops_need_them():
    w = jnp.eye(3) * 0.5

    def steps(x):
        return lax.fori_loop(0, 4, lambda k, x: x @ w + 1, x)

    program = agree(steps, jnp.ones(3))
    assert list(program.params) == ["w"]
    (loop,) = (s for s in program.graph("main").body[:-1] if s.callee.text == "while")
    assert len(loop.results) == 3  # two counts and x: w is not passed
