"""Infinities that a function of JAX writes itself, or is given: no alarm, and none is hidden."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import opstep.jax

INF = jnp.inf
LABELS = jnp.array([0, 3, 1, 2, 3, 0])


@pytest.fixture(autouse=True)
def findings():
    opstep.jax.findings.clear()
    yield
    opstep.jax.findings.clear()


def attention(x):
    s = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), x @ x.T, -INF)
    return jax.nn.softmax(s) @ x


def attention_of_negative_infinities(x):
    bias = jnp.triu(jnp.full((6, 6), -INF), 1)
    return x @ x.T + bias, jax.nn.log_softmax(x @ x.T + bias)


def attention_with_gradient(x):
    return jax.value_and_grad(lambda x: (attention(x) ** 2).mean())(x)


def contrast(x):
    def loss(x):
        s = jnp.fill_diagonal(x @ x.T, -INF, inplace=False)
        logp = jax.nn.log_softmax(s)
        return -logp[jnp.arange(6), jnp.arange(6)[::-1]].mean()

    return jax.value_and_grad(loss)(x)


def banned(x):
    logits = x.at[:, 4].set(-INF)
    logp = jax.nn.log_softmax(logits)
    return logits, -jnp.take_along_axis(logp, LABELS[:, None], 1).mean()


def masked_logsumexp(x):
    return jax.nn.logsumexp(x, axis=1, where=x > -1), jnp.max(x, 1, where=x > 0, initial=-INF)


def nearest(x):
    def step(best, c):
        return jnp.minimum(best, ((x - c) ** 2).sum(1)), best

    return lax.scan(step, jnp.full(6, INF), jnp.arange(3.0))


def viterbi(x):
    transitions = jnp.where(jnp.triu(jnp.ones((5, 5), bool)), 0.0, -INF)

    def step(score, row):
        all = score[:, None] + transitions
        return all.max(0) + row, all.argmax(0)

    return lax.scan(step, jnp.array([0.0, -INF, -INF, -INF, -INF]), x)


def ctc(x):
    logp = jax.nn.log_softmax(x)

    def step(alpha, row):
        shifted = jnp.concatenate([jnp.array([-INF]), alpha[:-1]])
        return jnp.logaddexp(alpha, shifted) + row, alpha

    return lax.scan(step, jnp.array([0.0, -INF, -INF, -INF, -INF]), logp)


def bellman_ford(x):
    weights = jnp.where(x[:5] > 0.5, x[:5], INF)
    start = jnp.full(5, INF).at[0].set(0.0)
    return lax.fori_loop(0, 4, lambda _, d: jnp.minimum(d, (d[:, None] + weights).min(0)), start)


def beams(x):
    scores = jnp.array([0.0, -INF, -INF])
    for row in jax.nn.log_softmax(x)[:3]:
        scores, at = lax.top_k((scores[:, None] + row).reshape(-1), 3)
    return scores, at


def top_k(x):
    kth = lax.top_k(x, 3)[0][:, -1:]
    logits = jnp.where(x < kth, -INF, x)
    return logits, jax.nn.softmax(logits)


def nearest_neighbours(x):
    d = ((x[:, None] - x[None]) ** 2).sum(-1) + jnp.diag(jnp.full(6, INF))
    return jnp.where(jnp.eye(6, dtype=bool), INF, d).min(1), d.shape[0]


def bisection(x):
    low, high = jnp.full(6, -INF), jnp.full(6, INF)
    for k in range(5):
        low, high = jnp.maximum(low, x[:, k] - 1), jnp.minimum(high, x[:, k] + 1)
    return low, high


def segments(x):
    return jax.ops.segment_max(x, LABELS, num_segments=5), jax.ops.segment_min(x, LABELS, 5)


def loop(x):
    def go(state):
        k, best = state
        return k + 1, jnp.maximum(best, x[k].max())

    return lax.while_loop(lambda state: state[0] < 3, go, (0, jnp.float32(-INF)))


def running(x):
    low = jnp.where(x < -1, -INF, x)
    return lax.cummax(low, axis=1), jnp.cumsum(low, axis=1), lax.cumlogsumexp(low, axis=1)


def missing(x):
    marked = jnp.where(x < 0, jnp.nan, x)
    return marked, jnp.nanmean(marked), jnp.nanmax(marked)


def softplus(x):
    low = jnp.where(x < 0, -INF, x)
    return jax.nn.softplus(low), jax.nn.sigmoid(low), jnp.exp(low)


def padded(x):
    p = jnp.pad(x, ((0, 0), (0, 2)), constant_values=INF)
    return jnp.sort(p, axis=1), jnp.argsort(p, axis=1)


FAR = jnp.where(jnp.eye(6, dtype=bool), INF, 0.0)


def constants(x):
    return x @ x.T + FAR, (x @ x.T + FAR).min(1), FAR


def pooled(x):
    return lax.reduce_window(x, -INF, lax.max, (2, 2), (1, 1), "SAME")


HEALTHY = [
    attention, attention_of_negative_infinities, attention_with_gradient, contrast, banned,
    masked_logsumexp, nearest, viterbi, ctc, bellman_ford, beams, top_k, nearest_neighbours,
    bisection, segments, loop, running, missing, softplus, padded, constants, pooled,
]  # fmt: skip


def agree(function, *args):
    fast = opstep.jax.debug(hunt=True)(jax.jit(function))
    with warnings.catch_warnings():
        warnings.simplefilter("error", opstep.jax.NumericsWarning)
        ours = jax.tree.leaves(fast(*args))
    for a, b in zip(ours, jax.tree.leaves(function(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not opstep.jax.findings


@pytest.mark.parametrize("function", HEALTHY, ids=lambda f: f.__name__)
def test_a_healthy_function_raises_no_alarm(function):
    for seed in range(2):
        agree(function, jax.random.normal(jax.random.key(seed), (6, 5)))


def test_infinities_that_are_given_may_stay():
    def relaxed(d, x):
        return jnp.minimum(d, (d[:, None] + jnp.abs(x)).min(0))

    agree(relaxed, jnp.array([0, INF, INF, INF, 1, INF]), jnp.ones((6, 6)))


@pytest.mark.parametrize(
    "function, told",
    [
        (lambda x: (jnp.where(x < 0, -INF, x), jnp.exp(100 * x)), "overflow of f32"),
        (lambda x: jnp.where(x < 0, -INF, x) - jnp.where(x < 0, -INF, x), "inf - inf"),
        (lambda x: jax.nn.softmax(jnp.where(x < 9, -INF, x)), "all elements|inf - inf"),
        (lambda x: jnp.where(x < 0, -INF, x) @ jnp.ones((5, 2)), "literal -inf is infinite"),
        (lambda x: jnp.where(x < 0, -INF, x).mean(), "literal -inf is infinite"),
    ],
)
def test_an_error_beside_own_infinities_is_an_alarm(function, told):
    x = jax.random.normal(jax.random.key(0), (6, 5))
    with pytest.warns(opstep.jax.NumericsWarning, match=told):
        opstep.jax.debug(hunt=True)(jax.jit(function))(x)
