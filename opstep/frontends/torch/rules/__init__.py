"""What each ATen op becomes: one short function an op, in the families of our kernels."""

from __future__ import annotations


def all_rules() -> None:
    """Fills the table (`registry.RULES`)."""
    import opstep.kernels  # noqa: F401 - registers the ops
    from opstep.frontends.torch.rules import (  # noqa: F401 - each registers its rules
        indexing,
        layers,
        layout,
        losses,
        pointwise,
        random,
        recurrent,
        recurrent_grad,
        reductions,
        spatial,
    )
