"""Results that are views: they lie where PyTorch has them, in inputs or in each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

F = nn.functional


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="opstep", options=options)


def listed(given) -> list[torch.Tensor]:
    return list(given) if isinstance(given, list | tuple) else [given]


def places(given: list[torch.Tensor], x: torch.Tensor) -> list[tuple]:
    """Where results lie: in which memory, from where on, with which strides."""
    known = {x.untyped_storage().data_ptr(): 0}
    found = []
    for t in given:
        memory = known.setdefault(t.untyped_storage().data_ptr(), len(known))
        found.append((memory, t.storage_offset(), t.stride(), t.dtype))
    return found


def written(given: list[torch.Tensor]) -> None:
    """Writes another number to the first element of each."""
    for k, t in enumerate(given):
        with torch.no_grad():
            t[(0,) * t.dim()].fill_(100 + k)


def both(y):
    return y[y.shape[0] // 2 :], y[: y.shape[0] // 2], y


CASES = {
    "half of an input": lambda x: x[x.shape[0] // 2 :],
    "chunks of an input": lambda x: x.chunk(4),
    "transposed input and a part": lambda x: (x.t(), x[1:, ::2], x.view(-1)),
    "the input and a part": lambda x: (x, x[0]),
    "input as another type": lambda x: x.view(torch.int16)[1:],
    "halves": lambda x: both(x.exp()),
    "chunks": lambda x: (x * 2).chunk(4),
    "unbound": lambda x: (x * 2).unbind(1),
    "result and transposed": lambda x: (lambda y: (y, y.t()))(x * 2),
    "transposed, reshaped, part": lambda x: (lambda y: (y.t(), y.view(-1), y[1:]))(x * 2),
    "expanded": lambda x: (x[:1] * 2).expand(4, 6),
    "windows": lambda x: (x * 2).unfold(1, 3, 1),
    "with gaps": lambda x: (x * 2)[:, ::2],
    "as another type": lambda x: (lambda y: (y.view(torch.int32), y))(x * 2),
    "parts of permuted memory": lambda x: (lambda y: (y[1:], y[:, 2:]))(x.t().exp()),
    "written before": lambda x: (lambda y: (y[0].add_(1), y.t(), y)[1:])(x * 2),
    "input written, then seen": lambda x: (x.mul_(2), x[1:])[1],
    "copies": lambda x: (lambda y: (y.clone(), y + 0, y))(x * 2),
    "no ops": lambda x: (lambda y: (y.contiguous(), y.reshape(y.shape), y))(x * 2),
}


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_results_lie_where_eager_mode_has_them(name, is_dynamic):
    torch._dynamo.reset()
    function = CASES[name]
    found = torch.compile(function, backend="opstep", dynamic=is_dynamic)
    for rows in (4, 8) if is_dynamic else (4,):
        data = torch.arange(6.0 * rows).reshape(rows, 6) / 24
        ours, theirs = data.clone(), data.clone()
        given, expected = listed(found(ours)), listed(function(theirs))
        assert places(given, ours) == places(expected, theirs)
        for _ in range(2):
            for a, b in zip([*given, ours], [*expected, theirs], strict=True):
                torch.testing.assert_close(a, b)
            written(given)
            written(expected)


def test_a_part_of_an_input_that_is_a_part():
    big = torch.arange(60.0).reshape(6, 10)
    function = compiled(lambda x: (x[x.shape[0] // 2 :], x.t()))
    for base in (big, big.clone()):
        half, across = function(base[1:5, 2:8])
        assert torch.equal(half, base[3:5, 2:8])
        assert torch.equal(across, base[1:5, 2:8].t())
        half.zero_()
        assert base[3:5, 2:8].abs().sum() == 0


def test_a_write_after_a_graph_break_reaches_the_other_views():
    def function(x):
        y = x * 2
        first, across = y[0], y.t()
        torch._dynamo.graph_break()
        first += 5
        return first, across

    x = torch.randn(4, 4)
    for a, b in zip(compiled(function)(x), function(x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["halves", "unbound", "transposed, reshaped, part", "with gaps"])
def test_gradients_through_views(name):
    function, data = CASES[name], torch.arange(24.0).reshape(4, 6) / 24

    def gradient(f):
        x = data.clone().requires_grad_()
        given = listed(f(x))
        sum((k + 2) * t.sin().sum() for k, t in enumerate(given)).backward()
        return x.grad

    torch.testing.assert_close(gradient(compiled(function)), gradient(function))


def test_complex_tensors_that_are_only_seen():
    x = torch.randn(4, dtype=torch.complex64)
    for function in (torch.real, torch.imag, torch.conj, lambda x: x.conj().imag):
        for given in (x, x.conj()):
            found, expected = compiled(function)(given), function(given)
            assert torch.equal(found, expected)
            assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
            assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_tensors_without_elements_in_memory():
    """Negatives that are marks, and zeros that PyTorch does not write out."""
    marked = torch.randn(4, dtype=torch.complex64).conj().imag
    zeros = torch._efficientzerotensor(4)
    function = lambda w: w.sin() * w  # noqa: E731
    for given in (marked, zeros):
        torch.testing.assert_close(compiled(torch.exp)(given), given.exp())
        start = torch.randn(4)
        w, v = (start.clone().requires_grad_() for _ in range(2))
        compiled(function)(w).backward(given)
        function(v).backward(given)
        torch.testing.assert_close(w.grad, v.grad)


@pytest.mark.parametrize("fallback", [False, True])
def test_second_derivatives(fallback):
    def derivatives(wrap):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        second = wrap(torch.func.vmap(torch.func.hessian(lambda x: net(x).sum())))
        given = second(torch.randn(5, 3))
        given.square().sum().backward()
        return [given, *(p.grad for p in net.parameters() if p.grad is not None)]

    found = derivatives(lambda f: compiled(f, fallback=fallback))
    for a, b in zip(found, derivatives(lambda f: f), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def loop(x):
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.tensor(0)
    return while_loop(lambda k, x: k < 4, lambda k, x: (k + 1, x * 2), (start, x))[1]


@pytest.mark.parametrize("function", [branch, loop])
def test_control_flow_in_compiled_functions(function):
    found = compiled(function)
    for x in (torch.rand(3), -torch.rand(3)):
        torch.testing.assert_close(found(x), function(x))


def test_gradients_of_branches():
    found = compiled(branch)
    for start in (torch.rand(3), -torch.rand(3)):
        x, y = (start.clone().requires_grad_() for _ in range(2))
        found(x).sum().backward()
        branch(y).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
