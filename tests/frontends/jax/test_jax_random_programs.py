"""Random functions: programs give what JAX gives."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st
from jax_agreement import agree

SIDE = 4
UNARY = {
    "tanh": jnp.tanh,
    "softmax": jax.nn.softmax,
    "relu": jax.nn.relu,
    "cumsum": lambda x: x.cumsum(1),
    "turn": lambda x: x.T,
    "flip": lambda x: x[:, ::-1],
    "halves": lambda x: jnp.concatenate([x[2:], x[:2] * 0.5]),
    "best": lambda x: jax.lax.top_k(x, 2)[0].repeat(2, 1),
    "rows": lambda x: x[jnp.argsort(x[:, 0])],
    "mean": lambda x: x - x.mean(0, keepdims=True),
    "half": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "triangle": jnp.tril,
    "mapped": jax.vmap(lambda r: jnp.outer(r, r).sum(0) / SIDE),
    "named": jax.jit(lambda x: jnp.sin(x) * jnp.cos(x) + 1),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda k, x: x * 0.5 + k, x),
    "scan": lambda x: jax.lax.scan(lambda c, r: (c * 0.5 + r, c - r), x[0], x)[1],
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda x: x * 2, x),
    "put": lambda x: x.at[1:3, 0].set(x[0, :2]),
}
BINARY = {
    "add": lambda x, y: x + y,
    "product": lambda x, y: x @ y / SIDE,
    "larger": jnp.maximum,
    "chosen": lambda x, y: jnp.where(x > y, x, y * 0.5),
    "row": lambda x, y: x * y[0],
    "picked": lambda x, y: jnp.take_along_axis(x, jnp.argsort(y, 1), 1),
}
STEPS = st.lists(
    st.tuples(st.sampled_from([*UNARY, *BINARY]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=5, deadline=None)
@given(steps=STEPS, is_derived=st.booleans())
def test_random_functions(steps, is_derived):
    def function(x, y):
        values = [x, y]
        for name, first, second in steps:
            a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
            values.append(UNARY[name](a) if name in UNARY else BINARY[name](a, b))
        return values[-1]

    def derived(x, y):
        return jax.grad(lambda x, y: (function(x, y) ** 2).sum(), (0, 1))(x, y)

    x = jax.random.normal(jax.random.key(0), (SIDE, SIDE))
    agree(derived if is_derived else function, x, jnp.roll(x, 1) * 0.7)
