"""Programs of functions of JAX, compared with JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from opstep.frontends.jax.importing import imported
from opstep.frontends.jax.types import held

RELATIVE = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-3}


def agree(
    function: Callable[..., Any], *args: Any, weights: Sequence[str] = (),
    tolerances: Mapping[str, float] = RELATIVE, **kwargs: Any,
) -> Any:  # fmt: skip
    """The program; its results are those of JAX: the same integers, and floats nearly."""
    found = imported(function, args, kwargs, weights)
    results = found.program.run("main", found.program.example)
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.jit(function)(*args, **kwargs))
    assert len(leaves) == len(found.results)
    for name, (path, leaf) in zip(found.results, leaves, strict=True):
        wanted, got = held(leaf), np.asarray(results[name])
        where = jax.tree_util.keystr(path)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), where
        if wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(got, wanted, where)
        else:
            tolerance = tolerances[wanted.dtype.name]
            np.testing.assert_allclose(
                got.astype(np.float64),
                wanted.astype(np.float64),
                tolerance,
                tolerance,
                err_msg=where,
            )
    return found.program


def together(**functions: Callable[..., Any]) -> Callable[..., Any]:
    """One function that gives what all of them do, by name: JAX compiles it once."""

    def function(*args: Any) -> Any:
        return {name: f(*args) for name, f in functions.items()}

    return function
