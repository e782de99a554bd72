"""What tests of models of PyTorch share."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def compiled():
    """Compiles by name, as users do, with nothing left of earlier tests."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield lambda model, dynamic=None, **options: torch.compile(
        model, backend="opstep", options=options or None, dynamic=dynamic
    )
    torch._dynamo.reset()
