"""Reading and writing by index, against JAX: what is outside, and functions of what is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax import lax
from jax_agreement import agree, together

X = jnp.arange(1.0, 13.0).reshape(4, 3)
PLACES = jnp.array([0, 2, -1, 9, -9, 2])


def test_functions_of_elements():
    """Once for each time that the index has them."""

    def twice(v):
        return v * 2 + 1

    agree(
        together(
            row=lambda x, k: x.at[1].apply(jnp.sin),
            element=lambda x, k: x.at[k[1], 2].apply(lambda v: jnp.where(v > 5, -v, v)),
            often=lambda x, k: x.at[k].apply(twice),
            pairs=lambda x, k: x.at[k, jnp.array([0, 1, 2, 0, 1, 1])].apply(twice),
            clipped=lambda x, k: x.at[k].apply(twice, mode="clip"),
            unique=lambda x, k: x.at[k[:2]].apply(twice, unique_indices=True),
            part=lambda x, k: x.at[1:3, ::2].apply(jnp.sqrt),
            none=lambda x, k: x.at[k[:0]].apply(twice),
            branch=lambda x, k: x.at[k].apply(lambda v: lax.cond(v > 5, twice, jnp.sin, v)),
            mapped=lambda x, k: jax.vmap(lambda r, k: r.at[k].apply(twice))(x, k[:4]),
            whole=lambda x, k: x.astype(jnp.int32).at[k].apply(lambda v: v * v - 1),
        ),
        X,
        PLACES,
    )


@pytest.mark.parametrize("mode", [None, "clip", "drop", "promise_in_bounds"])
def test_what_is_written_outside(mode):
    """A place that was promised to be there is left out, as XLA leaves it out."""
    names = ["set", "add", "multiply", "min", "max", "divide", "power", "subtract"]
    functions: dict[str, Any] = {
        n: lambda x, k, u, n=n: getattr(x.at[k], n)(u, mode=mode) for n in names
    }
    functions["windows"] = lambda x, k, u: jax.vmap(
        lambda s: lax.scatter_add(
            x, s[None], u[:2], lax.ScatterDimensionNumbers((0, 1), (), (0,)), mode=mode
        )
    )(k)
    agree(together(**functions), X, PLACES if mode != "promise_in_bounds" else PLACES[:2], X[:1])


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_windows_that_begin_outside(mode):
    numbers = lax.GatherDimensionNumbers((1, 2), (), (0, 1))
    agree(
        lambda x, k: lax.gather(x, k, numbers, (2, 2), mode=mode),
        X,
        jnp.array([[-1, 1], [3, 0], [1, 2], [0, 0]]),
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_unsigned_integers(dtype):
    """Elements, and places, whose first bit is set."""
    most = np.iinfo(dtype).max
    x = jnp.asarray(np.array([[0, 1, most], [most // 2, most // 2 + 1, 7]], dtype))
    agree(
        together(
            most=lambda x, u, k: x.at[k].max(u),
            least=lambda x, u, k: x.at[k].min(u),
            changed=lambda x, u, k: x.at[k].apply(lambda v: v // 3),
            missing=lambda x, u, k: jnp.take(x, k * 9, mode="fill", fill_value=most - 2),
            part=lambda x, u, k: lax.dynamic_slice(x, (x[0, 2], x[0, 1]), (1, 2)),
            moved=lambda x, u, k: lax.dynamic_update_slice(x, u[:1, :2], (x[1, 1], x[0, 0])),
        ),
        x,
        jnp.flip(x),
        jnp.array([1, 1]),
    )


def test_part_of_what_is_filled():
    agree(
        lambda x, k: (
            lax.dynamic_slice(jnp.full((4, 3), 2.0), (k, 1), (2, 2)) * x[:2, :2],
            lax.dynamic_slice(jnp.full((4, 3), 5, jnp.uint32), (k, k), (2, 2)),
            lax.rev(jnp.ones((4, 3)), (0,)) + x,
        ),
        X,
        jnp.int32(3),
    )
