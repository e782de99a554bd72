"""Models that change tensors in place, imported: against PyTorch, and without tracing them again
where nothing else sees the memory.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from torch import nn

import opstep
from opstep.frontends.torch import exporting

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.fc = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        return self.function(self, x)


def chained(m, x):
    h = m.fc(x)
    kept = h.sum()
    h += x
    h.mul_(2).relu_()
    return h, kept, h - 1


def result_of_an_update(m, x):
    return m.fc(x).clamp_(min=0.0)


def through_views_that_nobody_needs(m, x):
    h = m.fc(x).view(2, 6).t()
    h += 1
    return h.reshape(3, 4)


def attention(m, x):
    a = m.fc(x) @ x.t()
    a.masked_fill_(torch.ones(3, 3, dtype=torch.bool).triu(1), float("-inf"))
    return F.dropout(a.softmax(-1), 0.5, False, inplace=True) @ x


def itself(m, x):
    h = m.fc(x)
    h.add_(h)
    return h


PLAIN = [chained, result_of_an_update, through_views_that_nobody_needs, attention, itself]


def seen_by_a_view(m, x):
    h = m.fc(x)
    row = h[1]
    row.mul_(3)
    flat = h.view(12)
    h.add_(1)
    return h, row, flat


def seen_by_what_was_split(m, x):
    a, b = (x * 2).chunk(2, dim=1)
    a += b
    return a, b, torch.relu_(b)


def seen_through_ops_that_may_return_their_operand(m, x):
    h = m.fc(x)
    same, like = h.reshape(3, 4), h.contiguous()
    h.neg_()
    return same, like


def an_argument(m, x):
    y = x.add_(1)
    return m.fc(y) + x


def a_buffer(m, x):
    m.seen.add_(x.sum(0))
    return x * m.seen


def of_two_dtypes(m, x):
    h = m.fc(x)
    h += x.double() / 3
    return h.exp()


OTHERS = [
    seen_by_a_view, seen_by_what_was_split, seen_through_ops_that_may_return_their_operand,
    an_argument, a_buffer, of_two_dtypes,
]  # fmt: skip


def exported_program(function):
    torch.manual_seed(0)
    model = Applied(function).eval()
    expected = model(X.clone())
    model.seen.zero_()
    exported = torch.export.export(model, (X.clone(),), strict=False)
    return exported, expected if isinstance(expected, tuple) else (expected,)


def assert_agrees(program, expected):
    given = program.run("main", {program.graphs["main"].inputs[0].name.text: X.numpy()})
    found = list(given.values())[: len(expected)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(ours), theirs)


@pytest.mark.parametrize("function", PLAIN + OTHERS, ids=lambda f: f.__name__)
def test_agrees_with_pytorch(function):
    exported, expected = exported_program(function)
    assert_agrees(opstep.from_torch(exported), expected)


@pytest.mark.parametrize("function", PLAIN, ids=lambda f: f.__name__)
def test_plain_updates_are_not_traced_again(function, monkeypatch):
    exported, expected = exported_program(function)
    monkeypatch.setattr(exporting, "_decomposed", None)
    assert_agrees(opstep.from_torch(exported), expected)


@pytest.mark.parametrize("function", PLAIN + OTHERS, ids=lambda f: f.__name__)
def test_what_was_exported_stays_as_it_is(function, tmp_path):
    exported, expected = exported_program(function)
    opstep.from_torch(exported)
    torch.export.save(exported, tmp_path / "saved.pt2")
    for one in (exported, exported.run_decompositions(), torch.export.load(tmp_path / "saved.pt2")):
        found = one.module()(X.clone())
        found = found if isinstance(found, tuple) else (found,)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        one.state_dict["seen"].zero_()


def within_no_grad(m, x):
    with torch.no_grad():
        h = m.fc(x)
        with torch.enable_grad():
            y = h + 1
    return y, h


def out_of_no_grad(m, x):
    with torch.no_grad():
        return m.fc(x).relu_(), x * 2


@pytest.mark.parametrize("function", [within_no_grad, out_of_no_grad], ids=lambda f: f.__name__)
def test_results_of_regions_without_gradients(function):
    exported, expected = exported_program(function)
    program = opstep.from_torch(exported)
    assert len(program.run()) == len(expected)
    assert_agrees(program, expected)
