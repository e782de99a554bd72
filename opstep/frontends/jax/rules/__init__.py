"""What each primitive of JAX becomes: one short function a primitive."""

from __future__ import annotations


def all_rules() -> None:
    """Fills the table (`registry.RULES`)."""
    import opstep.kernels  # noqa: F401 - registers the ops
    from opstep.frontends.jax.rules import (  # noqa: F401 - each registers its rules
        convolutions,
        indexing,
        layout,
        pointwise,
        products,
        reductions,
        scattering,
        sorting,
        threefry,
        windows,
    )
