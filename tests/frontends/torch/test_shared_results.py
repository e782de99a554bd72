"""Memory for results of calls: what the caller does not see shares some pieces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opstep.frontends.torch import memory
from opstep.frontends.torch.memory import Results, Wanted

CPU = torch.device("cpu")


@pytest.fixture
def shared(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(memory, "is_shared", lambda device: True)


def filled(results: Results) -> list[torch.Tensor | None]:
    made, addresses, pieces = results.allocated()
    results.fill_in(made, pieces)
    assert [0 if t is None else t.data_ptr() for t in made] == addresses
    return made


def test_hidden_results_lie_side_by_side(shared):
    wanted = [
        Wanted((3, 5), torch.float32, "backward"),
        Wanted((7,), torch.float32, ""),
        None,
        Wanted((), torch.int64, "backward"),
        Wanted((4, 0), torch.float16, "backward"),
        Wanted((600,), torch.bool, "backward"),
    ]
    made = filled(Results(wanted, CPU))
    for t, w in zip(made, wanted, strict=True):
        if t is None or w is None:
            assert t is w
            continue
        assert (tuple(t.shape), t.dtype, t.is_contiguous()) == (w.shape, w.dtype, True)
        own = t.untyped_storage().nbytes() == w.nbytes
        assert own is not (w.hidden != "" and w.nbytes > 0)
        assert own or t.data_ptr() % memory.ALIGNMENT == made[0].data_ptr() % memory.ALIGNMENT
    given = [t for t in made if t is not None]
    for k, t in enumerate(given):
        t.fill_(k % 2)
    assert [t.sum().item() for t in given] == [0, 7, 0, 0, 0]
    apart = [t for t in Results(wanted, CPU).apart() if t is not None]
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in apart)


def test_pieces_have_a_largest_size(shared, monkeypatch):
    monkeypatch.setattr(memory, "LARGEST", 2048)
    made = filled(
        Results([Wanted((n,), torch.uint8, "backward") for n in (1000, 1000, 1, 9000, 1)], CPU)
    )
    storages = [t.untyped_storage() for t in made if t is not None]
    assert [s.nbytes() for s in storages] == [2048, 2048, 512, 9216, 512]


class Several(nn.Module):
    """Keeps results that it also gives, as they are and as views; updates its statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 5)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        seen = self.norm(self.first(x)).relu()
        flat = seen.flatten(1)
        kept = flat.exp()
        return self.last(kept).tanh(), seen.view(len(x), 4, -1), kept


def trained(x: torch.Tensor) -> tuple[list, dict]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Several()
    compiled = torch.compile(model, backend="opstep")
    seen = []
    for _ in range(3):
        given = compiled(x)
        (given[0].sum() + given[1].square().sum() + given[2].mean()).backward()
        seen += given
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
                seen.append(p.grad)
                p.grad = None
    return seen, model.state_dict()


def test_what_the_caller_sees_has_memory_of_its_own(monkeypatch):
    x = torch.randn(2, 3, 8, 8)
    expected = trained(x)
    pieces: list[int] = []
    allocated = Results.allocated

    def noted(results):
        found = allocated(results)
        pieces.append(len(found[2]))
        return found

    monkeypatch.setattr(memory, "is_shared", lambda device: True)
    monkeypatch.setattr(Results, "allocated", noted)
    found = trained(x)
    assert pieces == [2, 0] * 3, "forward, for the backward and for statistics, and backward"
    for a, b in zip(found[0], expected[0], strict=True):
        assert torch.equal(a, b)
        assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()
    for name, tensor in found[1].items():
        assert torch.equal(tensor, expected[1][name]), name
