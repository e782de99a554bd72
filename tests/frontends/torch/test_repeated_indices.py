"""Indices that repeat along rows: whole rows are added, not their elements."""

from __future__ import annotations

import torch

import opstep
from opstep.runtime.ir.printer import print_module


class ToRows(torch.nn.Module):
    """Sums of rows that go to others, as graph networks write them."""

    def forward(self, x, index, source):
        down = index.view(-1, 1).expand_as(source)
        across = index.view(1, -1).expand_as(source.T)
        part = x.scatter_add(0, down[:, :2], source)
        return x.scatter_add(0, down, source), x.T.scatter_add(1, across, source.T), part


def test_whole_rows_are_added():
    torch.manual_seed(0)
    given = torch.randn(5, 3), torch.randint(5, (20,)), torch.randn(20, 3)
    made = opstep.from_torch(ToRows(), given)
    text = print_module(made.module)
    assert text.count("index_put_add(") == 2
    assert text.count("scatter_add(") == 1  # of a part of each row
    inputs = dict(zip(("x", "index", "source"), given, strict=True))
    found = made.run("main", {k: t.numpy() for k, t in inputs.items()}).outputs
    for ours, theirs in zip(found, ToRows()(*given), strict=True):
        torch.testing.assert_close(torch.tensor(ours), theirs)


class ToOneRow(torch.nn.Module):
    def forward(self, x, index, source):
        return x.scatter_add(0, index.expand_as(source), source)


def test_one_index_for_all_rows_is_of_elements():
    given = torch.zeros(5, 3), torch.tensor([[2]]), torch.ones(20, 3)
    made = opstep.from_torch(ToOneRow(), given)
    inputs = dict(zip(("x", "index", "source"), given, strict=True))
    (found,) = made.run("main", {k: t.numpy() for k, t in inputs.items()}).outputs
    torch.testing.assert_close(torch.tensor(found), ToOneRow()(*given))
