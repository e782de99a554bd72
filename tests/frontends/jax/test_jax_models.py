"""Models and functions as programs, against JAX itself."""

from __future__ import annotations

import pytest

pytest.importorskip("flax")
pytest.importorskip("optax")
import jax
import jax_zoo
import numpy as np

import opstep

TOLERANCES = {
    "float32": 1e-5,
    "float64": 1e-12,
    "bfloat16": 2e-2,
    "float16": 2e-3,
}  # of the largest


def assert_same(ours, theirs) -> None:
    """Trees of arrays: exactly, where they are no floats."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(theirs)]
    for a, b, at in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), paths, strict=True):
        assert (a.shape, a.dtype, at) == (b.shape, b.dtype, at)
        a, b = np.asarray(a), np.asarray(b)
        if tolerance := TOLERANCES.get(b.dtype.name):
            largest = np.nanmax(np.abs(b), initial=1e-30).astype("f8")
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b), at)
            distance = np.nanmax(np.abs(a.astype("f8") - b.astype("f8")), initial=0)
            assert distance <= tolerance * largest, at
        else:
            np.testing.assert_array_equal(a, b, at)


def agrees(name: str) -> None:
    function, args = jax_zoo.CASES[name]()
    ours = opstep.jax.debug(function)
    assert_same(ours(*args), ours.jitted(*args))


@pytest.mark.parametrize("name", jax_zoo.CASES)
def test_a_model_computes_as_jax_does(name):
    agrees(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mlp_step", "scan_of_gradients", "vae_step", "derivatives", "newton"]
)
def test_in_f64(name):
    with jax.enable_x64(True):
        agrees(name)
