"""Indices that PyTorch refuses are refused under compile, before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import opstep

TAKING = {
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x[:1]),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x[:1], "amax"),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "take": lambda x, i: x.take(i),
    "put": lambda x, i: x.put(i, x[0, :1]),
    "index": lambda x, i: x[i],
    "computed": lambda x, i: x[i + 1],
    "part": lambda x, i: functional.embedding(torch.cat([i, i + 9])[:1], x),
    "index_put": lambda x, i: x.index_put((i, i - 1), x[0, :1]),
    "cross_entropy": lambda x, i: functional.cross_entropy(x[:1], i),
    "embedding": lambda x, i: functional.embedding(i, x),
    "embedding_bag": lambda x, i: functional.embedding_bag(i, x, i * 0),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKING)
def test_indices_are_refused_where_pytorch_refuses_them(name, compiled):
    function, x = TAKING[name], torch.arange(6.0).view(3, 2)
    model = compiled(function)
    refused = 0
    for index in (0, 1, 2, 3, 7, -1, -3, -4):
        i = torch.tensor([index])
        try:
            wanted = function(x, i)
        except (IndexError, RuntimeError):
            refused += 1
            with pytest.raises(opstep.OpstepError, match="takes no index"):
                model(x, i)
        else:
            torch.testing.assert_close(model(x, i), wanted)
    assert refused


DIVIDING = {
    "floor": lambda n, d: n // d,
    "remainder": lambda n, d: n % d,
    "fmod": lambda n, d: n.fmod(d),
    "trunc": lambda n, d: torch.div(n, d, rounding_mode="trunc"),
    "of a number": lambda n, d: 7 % d,
    "by a sum": lambda n, d: n // (d[:1] + d[1:]),
}


@pytest.mark.parametrize("name", DIVIDING)
def test_integers_are_not_divided_by_zero(name, compiled):
    function, n = DIVIDING[name], torch.tensor([7, -7])
    model, zero = compiled(function), torch.tensor([0, 0])
    for d in (torch.tensor([2, -3]), torch.tensor([0.0, 2.0]), torch.ones(2, dtype=torch.bool)):
        torch.testing.assert_close(model(n, d), function(n, d), equal_nan=True)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(n, zero)
    with pytest.raises(opstep.OpstepError, match="divides no integer by 0"):
        model(n, zero)


def test_an_integer_is_not_divided_by_the_number_zero(compiled):
    with pytest.raises(Exception, match="ZeroDivisionError"):
        compiled(lambda n: n % 0)(torch.tensor([7]))


def test_the_line_is_shown(compiled):
    x = torch.ones(3, 2)
    with pytest.raises(opstep.OpstepError) as caught:
        compiled(TAKING["embedding"])(x, torch.tensor([5]))
    message = str(caught.value)
    assert "takes no index 5: there are 3 elements" in message
    assert "functional.embedding(i, x)" in message
    assert f"{__file__}:" in message


def test_a_class_that_is_ignored_is_no_index(compiled):
    def loss(x, label):
        return functional.cross_entropy(x, label, ignore_index=-1)

    x, label = torch.ones(2, 3), torch.tensor([-1, 2])
    torch.testing.assert_close(compiled(loss)(x, label), loss(x, label))


def test_sizes_of_later_calls_count(compiled):
    model = compiled(lambda x, i: x[i], dynamic=True)
    assert model(torch.arange(5.0), torch.tensor([4])).item() == 4
    with pytest.raises(opstep.OpstepError, match="takes no index 4: there are 3 elements"):
        model(torch.arange(3.0), torch.tensor([4]))


def test_indices_that_are_drawn(compiled):
    model = compiled(lambda x: x[torch.randint(7, 8, (2,))])
    assert model(torch.arange(8.0)).tolist() == [7, 7]
    with pytest.raises(opstep.OpstepError, match="takes no index 7"):
        model(torch.arange(5.0))


CHECKED = {
    "multinomial below 0": (lambda x: torch.multinomial(x - 2, 1), "no number from 0 on"),
    "multinomial of NaN": (lambda x: torch.multinomial(x / 0 * 0, 1), "no number from 0 on"),
    "multinomial of zeros": (lambda x: torch.multinomial(x * 0, 1), "all are 0"),
    "bernoulli": (lambda x: torch.bernoulli(x), "not in 0..1"),
    "normal": (lambda x: torch.normal(x, x - 2), "below 0"),
    "masked_scatter": (lambda x: x.masked_scatter(x > 1, x[:1]), "too few elements"),
}


@pytest.mark.parametrize("name", CHECKED)
def test_values_that_are_checked_as_the_graph_runs(name, compiled):
    function, message = CHECKED[name]
    x = torch.arange(4.0)
    with pytest.raises(RuntimeError):
        function(x)
    with pytest.raises(opstep.OpstepError, match=message):
        compiled(function)(x)
