"""Ops that PyTorch runs itself in compiled models: what they are given, and what they give."""

from __future__ import annotations

import pytest
import torch

import opstep


def test_what_has_no_result_is_an_assert(compiled):
    fast = compiled(torch.linalg.cholesky, fallback=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(4 * torch.eye(3)), 2 * torch.eye(3))
        with pytest.raises(opstep.OpstepError, match="cholesky has no result for this input"):
            fast(-torch.eye(3))


def test_a_number_that_is_no_size_may_be_symbolic(compiled):
    fast = compiled(torch.special.chebyshev_polynomial_t, dynamic=True, fallback=True)
    x = torch.rand(3, 3)
    for n in (2, 4):
        torch.testing.assert_close(fast(x, n), torch.special.chebyshev_polynomial_t(x, n))


def test_a_gradient_of_maxima_has_its_own_indices(compiled):
    aten, pool = torch.ops.aten, ([2, 2], [2, 2], [0, 0], [1, 1], False)

    def function(grad, x, indices):
        return aten.max_pool2d_with_indices_backward(grad, x, *pool, indices)

    x = torch.randn(2, 4, 18, 14)
    y, indices = aten.max_pool2d_with_indices(x, *pool)
    found = compiled(function, dynamic=True, fallback=True)(y, x, indices)
    torch.testing.assert_close(found, function(y, x, indices))


def test_a_whole_graph_is_left_to_pytorch_where_one_op_cannot_be(compiled):
    fast = compiled(lambda x: torch.fft.fft(x).real, fallback=True)
    x = torch.randn(8)
    with torch.no_grad(), pytest.warns(UserWarning, match="PyTorch runs the inference itself"):
        torch.testing.assert_close(fast(x), torch.fft.fft(x).real)


@pytest.mark.filterwarnings("ignore:opstep leaves:UserWarning")
@pytest.mark.parametrize(
    "by", [{"offsets": torch.tensor([0, 2, 6])}, {"lengths": torch.tensor([2, 4])}]
)
def test_operands_are_given_by_their_names(compiled, by):
    """Some of those before them may be absent."""

    def function(x, part):
        return torch.segment_reduce(x, "sum", **dict.fromkeys(by, part))

    (part,) = by.values()
    x = torch.arange(6.0)
    assert compiled(function, fallback=True)(x, part).tolist() == [1.0, 14.0]
