"""`opstep.jax.debug`: functions that run on opstep, called as ever."""

from __future__ import annotations

import warnings
from functools import partial
from typing import NamedTuple

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np

import opstep
from opstep.frontends.missing import ImportFailed

X = jnp.array([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def strict():
    """Nothing is left to JAX without a word."""
    opstep.jax.findings.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
    opstep.jax.findings.clear()


class Pair(NamedTuple):
    first: jax.Array
    rest: dict


def test_trees_go_in_and_come_back():
    @opstep.jax.debug
    def swap(pair, *, scale=2.0, none=None):
        return Pair(
            pair.rest["b"] * scale, {"a": pair.first, "none": none, "n": pair.rest["n"] + 1}
        )

    given = Pair(X, {"b": np.arange(3), "n": 7})
    found = swap(given, scale=3.0)
    assert isinstance(found, Pair) and found.rest["none"] is None
    assert found.first.tolist() == [0.0, 3.0, 6.0] and found.first.dtype == jnp.float32
    assert found.rest["a"].tolist() == X.tolist() and int(found.rest["n"]) == 8
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))


def test_a_program_for_each_set_of_shapes_types_and_static_arguments():
    @opstep.jax.debug
    @partial(jax.jit, static_argnums=1, static_argnames="mode")
    def power(x, n, mode="sum"):
        return getattr(jnp, mode)(x**n)

    assert float(power(X, 2)) == 14.0
    assert float(power(X + 1, 2)) == 29.0 and len(power.programs) == 1
    assert float(power(X, 3)) == 36.0 and len(power.programs) == 2
    assert float(power(X, 2, mode="max")) == 9.0 and len(power.programs) == 3
    assert power(jnp.arange(4), 2).dtype == jnp.int32 and len(power.programs) == 4
    with pytest.raises(ValueError, match="hashable"):
        power(X, [2])
    with pytest.raises(TypeError, match="str"):
        power("text", 2)


def test_element_types_come_back_as_jax_has_them():
    @opstep.jax.debug
    @jax.jit
    def each(key, h, u, flag):
        a, b = jax.random.split(key)
        return a, jax.random.bits(b, (2,)), h * 2, u + 1, ~flag, jnp.float32(3) * 1, 2.0

    given = jax.random.key(3), jnp.ones(2, jnp.bfloat16), jnp.uint32(2**32 - 2), jnp.array(True)
    for ours, theirs in zip(each(*given), each.jitted(*given), strict=True):
        assert jax.typeof(ours) == jax.typeof(theirs)
        same = (
            jax.random.key_data
            if jnp.issubdtype(theirs.dtype, jax.dtypes.prng_key)
            else jnp.asarray
        )
        assert same(ours).tolist() == same(theirs).tolist()


def test_donated_arguments_and_results_that_are_arguments():
    @opstep.jax.debug
    @partial(jax.jit, donate_argnums=0)
    def step(state, x):
        return {"w": state["w"] + x, "same": state["same"]}, x

    state = {"w": X, "same": X * 2}
    for _ in range(3):
        state, x = step(state, X)
    assert state["w"].tolist() == [4.0, 8.0, 12.0] and x.tolist() == X.tolist()
    assert state["same"].tolist() == [2.0, 4.0, 6.0]


def test_a_method_and_what_jit_offers():
    class Model:
        def __init__(self, w):
            self.w = w

        @opstep.jax.debug
        @partial(jax.jit, static_argnums=0)
        def __call__(self, x):
            return x * self.w

    model = Model(3.0)
    assert model(X).tolist() == [3.0, 6.0, 9.0]
    assert "multiply" in Model.__call__.lower(model, X).as_text()


# --- where JAX traces calls -----------------------------------------------------------------------


@opstep.jax.debug(hunt=True)
def logarithm(x):
    """Of the sum."""
    return jnp.log(x.sum())


def test_below_jit_it_is_called_back():
    outer = jax.jit(logarithm)
    assert float(outer(X)) == pytest.approx(np.log(6))
    with pytest.warns(opstep.jax.NumericsWarning, match="log of 0"):
        outer(X * 0).block_until_ready()
    (found,) = opstep.jax.findings
    assert found.graph == "logarithm" and "test_jax_debug.py:" in found.first.where.imported


def test_in_loops_and_under_vmap_it_is_called_for_each():
    scanned = jax.jit(lambda xs: jax.lax.scan(lambda c, x: (c + 1, logarithm(x)), 0, xs)[1])
    rows = jnp.ones((2, 3)) * jnp.array([[1.0], [2.0]])
    expected = np.log(np.array([3, 6]))
    assert np.allclose(scanned(rows), expected) and np.allclose(jax.vmap(logarithm)(rows), expected)


def test_derivatives_are_of_the_function_itself_with_a_word():
    @opstep.jax.debug
    def cube(x, n):
        return (x**3).sum() * n

    with pytest.warns(UserWarning, match="JAX runs cube itself, unseen: derivatives") as told:
        assert jax.grad(cube)(X, 2).tolist() == [6.0, 24.0, 54.0]
    assert told[0].filename == __file__
    whole = opstep.jax.debug(jax.jit(jax.value_and_grad(cube)))
    assert whole(X, 2)[1].tolist() == [6.0, 24.0, 54.0]


def test_within_another_one_it_is_part_of_that():
    @opstep.jax.debug
    def twice(x):
        return logarithm(x) * 2

    assert float(twice(X)) == pytest.approx(2 * np.log(6))
    assert len(logarithm.programs) + len(twice.programs) >= 1
    assert "callback" not in twice.programs[0].module.source.text


def test_it_closes_over_arrays():
    shifted = opstep.jax.debug(lambda x: x + X)
    assert shifted(X).tolist() == jax.jit(shifted)(X).tolist() == [2.0, 4.0, 6.0]


def test_it_uses_values_of_what_is_traced():
    @jax.jit
    def outer(x):
        return opstep.jax.debug(lambda y: x + y)(x * 2)

    with pytest.warns(UserWarning, match="pass them as arguments"):
        assert outer(X).tolist() == [3.0, 6.0, 9.0]


def test_without_jit_it_is_left_alone():
    with jax.disable_jit():
        assert float(logarithm(X)) == pytest.approx(np.log(6))


@pytest.mark.parametrize("outer", ["nnx.jit", "debug"])
def test_nnx_jit_around_and_below_it(outer):
    """A model of Flax is an argument. What the call changes in it is changed where `nnx.jit` is
    what is decorated; around a function that is decorated alone it is lost, as with `jax.jit`.
    """
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self):
            self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
            self.calls = nnx.Variable(jnp.array(0))

        def __call__(self, x):
            self.calls[...] += 1
            return jnp.log(nnx.relu(self.layer(x)) * 0 + x.sum())

    def call(model, x):
        return model(x)

    hunted = opstep.jax.debug(hunt=True)
    run = nnx.jit(hunted(call)) if outer == "nnx.jit" else hunted(nnx.jit(call))
    model, rows = Model(), jnp.ones((2, 3))
    np.testing.assert_allclose(run(model, rows), np.full((2, 2), np.log(6)), rtol=1e-6)
    changes = int(outer == "debug")
    assert int(model.calls[...]) == changes
    with pytest.warns(opstep.jax.NumericsWarning, match="log of 0"):
        jax.block_until_ready(run(model, rows * 0))
    assert int(model.calls[...]) == 2 * changes
    assert "test_jax_debug.py:" in opstep.jax.findings[0].first.where.imported


# --- what goes wrong ------------------------------------------------------------------------------


def test_options_that_do_not_exist():
    with pytest.raises(opstep.OpstepError, match=r"there is no option hnt; (.|\n)*did you mean"):
        opstep.jax.debug(hnt=True)(jnp.sin)
    with pytest.raises(opstep.OpstepError, match="decorates functions; 3 is none"):
        opstep.jax.debug(3)


def test_what_has_no_counterpart():
    def inverse(x):
        return jnp.linalg.eigh(x)[0]

    x = jnp.eye(2)
    with pytest.raises(ImportFailed, match="eigh cannot be imported") as failed:
        opstep.jax.debug(inverse)(x)
    assert "fallback=True" in str(failed.value)
    with pytest.warns(UserWarning, match="JAX runs inverse itself"):
        assert opstep.jax.debug(inverse, fallback=True)(x).tolist() == [1.0, 1.0]
