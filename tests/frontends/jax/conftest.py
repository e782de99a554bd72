"""What tests of functions of JAX share."""

import pytest

jax = pytest.importorskip("jax")

# What ours is compared with runs once or twice: optimising it took most of these tests' time.
jax.config.update("jax_disable_most_optimizations", True)
