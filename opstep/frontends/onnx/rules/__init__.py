"""What each operator of ONNX becomes: one short function an operator."""

from __future__ import annotations


def all_rules() -> None:
    """Fills the table (`registry.RULES`)."""
    import opstep.kernels  # noqa: F401 - registers the ops
    from opstep.frontends.onnx.rules import (  # noqa: F401 - each registers its rules
        indexing,
        layers,
        layout,
        microsoft,
        pointwise,
        quantised,
        recurrent,
        reductions,
        resizing,
        sampling,
        signals,
        spatial,
        training,
    )
