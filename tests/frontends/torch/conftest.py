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


@pytest.fixture
def programs(monkeypatch):
    """Those of the models that the test compiles, by the names of their graphs."""
    from opstep.frontends.torch import calling

    made, init = {}, calling.Compiled.__init__

    def watched(self, graph, watch):
        init(self, graph, watch)
        made[graph.name] = self.program

    monkeypatch.setattr(calling.Compiled, "__init__", watched)
    return made


def called(graph):
    """The ops and graphs that a graph calls."""
    return [s.callee.text for s in graph.body if hasattr(s, "callee")]
