"""Control flow, asserts and random numbers of PyTorch."""

import numpy as np
import pytest
import torch
from agreement import check
from torch import nn

from opstep.frontends.torch.errors import ImportFailed
from opstep.frontends.torch.importing import from_torch
from opstep.runtime.ir.diagnostics import OpstepError


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(3, 3)
        self.large = nn.Linear(3, 3)

    def forward(self, x):
        def then(x):
            return torch.relu(self.small(x)), x.sum()

        def other(x):
            return self.large(x) * 2.0, x.max()

        return torch.cond(x.mean() > 0, then, other, (x,))


def test_cond_calls_one_of_two_graphs():
    x = torch.rand(4, 3)
    check(Branches(), x, also=[(-x,)])


class Settling(nn.Module):
    """Applies a layer until its result stays, a number of times that depends on data."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(3, 3) / 3)

    def forward(self, x):
        def test(step, y, before):
            return (step < 20) & ((y - before).abs().max() > 1e-3)

        def body(step, y, before):
            return step + 1, torch.tanh(y @ self.w), y.clone()

        return torch.while_loop(test, body, (torch.tensor(0), x, torch.zeros_like(x)))


def test_while_loop():
    check(Settling(), torch.rand(2, 3), also=[(torch.zeros(2, 3),)])


class Nested(nn.Module):
    def forward(self, x):
        def deep(x):
            return torch.cond(x.sum() > 10, torch.sin, torch.cos, (x,))

        return torch.cond(x.sum() > 0, deep, torch.exp, (x,))


def test_conds_in_conds():
    first, *others = (torch.full([3], value) for value in (-1.0, 1.0, 10.0))
    check(Nested(), first, also=[(x,) for x in others])


class Asserting(nn.Module):
    def forward(self, x):
        torch.ops.aten._assert_async.msg((x > 0).all(), "numbers above 0")
        return x.log()


def test_asserts_are_kept():
    program = from_torch(Asserting(), (torch.ones(3),))
    program.run("main", {"x": np.array([1, 2, 3], np.float32)})
    with pytest.raises(OpstepError, match="numbers above 0"):
        program.run("main", {"x": np.array([1, -1, 1], np.float32)})


class Choosing(nn.Module):
    def forward(self, x):
        return x[x > 0] * 2, torch.nonzero(x) + 1


def test_what_depends_on_data_is_refused_once():
    with pytest.raises(ImportFailed) as caught:
        from_torch(Choosing(), (torch.rand(4),))
    reasons = {(m.op, m.reason) for m in caught.value.missing}
    assert {op for op, _ in reasons} == {"aten.index.Tensor", "aten.nonzero.default"}
    assert all("depends on data" in reason for _, reason in reasons)


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).abs()


def test_complex_numbers_are_refused():
    with pytest.raises(ImportFailed, match="complex64"):
        from_torch(Spectrum(), (torch.rand(8),))


class Item(nn.Module):
    def forward(self, x):
        return x * x.max().item()


def test_a_number_of_a_tensor_scales():
    check(Item(), torch.rand(4))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x):
        noise = torch.randn(1000) + torch.rand(1000)
        kept = torch.bernoulli(torch.full([1000], 0.25))
        return self.first(x), self.second(x), noise, torch.randperm(50), kept


def test_random_numbers_are_ours():
    """Not PyTorch's, each op's its own, the same in each run."""
    program = from_torch(Noisy().train(), (torch.ones(1000),))
    found = [np.asarray(v) for v in program.run("main", {"x": np.ones(1000, "f")}).values()]
    again = [np.asarray(v) for v in program.run("main", {"x": np.ones(1000, "f")}).values()]
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    first, second, noise, order, kept = found
    assert set(first) == set(second) == {0.0, 2.0}
    assert abs(first.mean() - 1) < 0.1
    assert (first != second).any()
    assert abs(noise.mean() - 0.5) < 0.15
    assert sorted(order) == list(range(50))
    assert order.tolist() != list(range(50))
    assert 0.2 < kept.mean() < 0.3
