"""What compiled models leave to PyTorch, or refuse before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from opstep.frontends.torch.importing import from_torch
from opstep.runtime.ir.errors import OpstepError


def test_ops_that_see_how_memory_lies_are_left_to_pytorch_with_their_graph(compiled):
    """Alone, they would be given contiguous operands."""

    def function(x):
        part = torch.as_strided(x * 2, (2, 12), (50, 3))
        return torch.as_strided(part, (2, 3), (1, 2))

    x = torch.randn(2, 3, 4, 5)
    with pytest.warns(UserWarning, match="how its operands lie in memory"):
        assert torch.equal(compiled(function, fallback=True)(x), function(x))


def test_complex_numbers_are_left_to_pytorch_or_refused_before_anything_runs(compiled):
    ran = []

    def function(a, b):
        return torch.complex(a, b).abs()

    def gradients(f):
        a, b = torch.arange(1.0, 4.0).requires_grad_(), torch.ones(3, requires_grad=True)
        y = f(a, b)
        ran.append(y)
        return torch.autograd.grad(y.sum(), (a, b))

    with pytest.warns(UserWarning, match="complex64"):
        found = gradients(compiled(function, fallback=True))
    for a, b in zip(found, gradients(function), strict=True):
        torch.testing.assert_close(a, b)
    ran.clear()
    with pytest.raises(Exception, match="complex64 have no counterpart"):
        gradients(compiled(function))
    assert not ran


def test_a_backward_without_a_counterpart_is_refused_with_its_forward(compiled):
    @torch.library.custom_op("opstep_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return doubled(grad)

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(Exception, match="doubled"):
        compiled(lambda x: Doubled.apply(x.sin()))(x)
    y = compiled(lambda x: Doubled.apply(x.sin()), fallback=True)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).cos())


def test_a_graph_that_is_retained_is_run_backward_again(compiled):
    def function(x):
        return (x.tanh() * x.sin()).sum()

    x = torch.arange(1.0, 4.0).requires_grad_()
    y = compiled(function)(x)
    first, again = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    wanted = torch.autograd.grad(function(x), x)[0]
    torch.testing.assert_close(first, wanted)
    assert torch.equal(first, again)


SIZES_OF_DATA = {
    "mask": lambda x, n: x[x > 0] * 2,
    "mask with a gradient": lambda x, n: (x[x > 0] ** 2).sum(),
    "places": lambda x, n: torch.nonzero(x > 0) + 1,
    "repeats": lambda x, n: x.repeat_interleave(n, dim=0) * 2,
    "a number": lambda x, n: x[: n[0].item()] * 2,
    "a part": lambda x, n: x.tensor_split(n[:1])[0],
}


@pytest.mark.parametrize("form", SIZES_OF_DATA)
def test_sizes_that_depend_on_data_are_left_to_pytorch_or_refused(compiled, form):
    function = SIZES_OF_DATA[form]
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad="gradient" in form)
    n = torch.tensor([2, 0, 1])
    captured = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(captured):
        with pytest.raises(Exception, match="a size depends on data"):
            compiled(function)(x, n)
        found = compiled(function, fallback=True)(x, n)
        assert torch.equal(found, function(x, n))
        if x.requires_grad:
            found.backward()
            assert x.grad.tolist() == [2.0, 0.0, 6.0]


REFUSED_TYPES = {
    "mm": lambda i, x: torch.mm(x.view(4, 6), i.view(6, 4)),
    "mm of two floats": lambda i, x: torch.mm(x.view(4, 6), x.view(6, 4).double()),
    "matmul": lambda i, x: x.view(4, 6) @ x.double()[:6],
    "addmm": lambda i, x: torch.addmm(x[:4], x.view(4, 6), i.view(6, 4)),
    "linear": lambda i, x: functional.linear(i.view(4, 6), x.view(4, 6)),
    "conv1d": lambda i, x: functional.conv1d(x.view(2, 3, 4), i.view(4, 3, 2)),
    "conv2d": lambda i, x: functional.conv2d(i.view(1, 2, 3, 4), x.view(4, 2, 1, 3)),
    "layer_norm": lambda i, x: functional.layer_norm(x, (24,), x.double()),
    "adaptive_avg_pool1d": lambda i, x: functional.adaptive_avg_pool1d(i.view(2, 3, 4), 2),
    "adaptive_avg_pool2d": lambda i, x: functional.adaptive_avg_pool2d(i.view(2, 3, 4), 2),
    "adaptive_max_pool2d": lambda i, x: functional.adaptive_max_pool2d(i.view(2, 3, 4), 2),
    "softmax": lambda i, x: torch.softmax(i, 0),
    "hardswish": lambda i, x: functional.hardswish(i),
    "elu": lambda i, x: functional.elu(i),
    "logaddexp": lambda i, x: torch.logaddexp(i, i),
    "interpolate": lambda i, x: functional.interpolate(i.view(1, 2, 12), 5, mode="linear"),
    "cross": lambda i, x: torch.linalg.cross(x.view(8, 3), i.view(8, 3)),
    "index_add": lambda i, x: x.index_add(0, i, i),
    "index_put": lambda i, x: x.index_put((i,), i),
    "index_copy": lambda i, x: x.index_copy(0, i.int(), x),
    "index_add of no index": lambda i, x: x.index_add(0, x, x),
    "put": lambda i, x: x.put(i.int(), x),
    "searchsorted": lambda i, x: torch.searchsorted(x, x, sorter=i.int()),
    "cross_entropy": lambda i, x: functional.cross_entropy(x.view(2, 12), i[:2].int()),
    "topk of truth values": lambda i, x: (x > 2).topk(3).values,
    "dot of truth values": lambda i, x: torch.dot(i > 2, i > 3),
}  # fmt: skip


IMPORTED_ONLY = ("interpolate",)  # compiled, it is traced as PyTorch defines it


@pytest.mark.parametrize("form", REFUSED_TYPES)
def test_types_that_pytorch_refuses_are_refused(compiled, form):
    """Its shape functions take some of them."""

    class Model(torch.nn.Module):
        def forward(self, whole, numbers):
            return REFUSED_TYPES[form](whole, numbers)

    x = torch.arange(24), torch.arange(24.0)
    with pytest.raises(RuntimeError):
        Model()(*x)
    with pytest.raises(OpstepError, match=r"element types|PyTorch cannot export") as refused:
        from_torch(Model(), x)
    assert "fallback" not in str(refused.value)  # it would not help
    if form not in IMPORTED_ONLY:
        with pytest.raises(Exception, match="type"):
            compiled(Model())(*x)
        with pytest.raises(RuntimeError):  # PyTorch's own
            compiled(Model(), fallback=True)(*x)


def test_calls_are_tried_without_indices_that_do_not_exist(compiled):
    """This kernel writes where they say."""
    x = torch.ones(64, 1, 1, 1, 1, requires_grad=True)
    compiled(functional.adaptive_max_pool3d)(x, 1).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
