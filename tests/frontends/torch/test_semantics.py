"""PyTorch's semantics where they are easily missed, in hand-written calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agreement import Call, Calls, check
from torch import nn
from torch.nn import functional

from opstep.frontends.torch.errors import ImportFailed
from opstep.frontends.torch.importing import from_torch
from opstep.runtime.ir.diagnostics import OpstepError

aten = torch.ops.aten
NAN = float("nan")


def agree(*calls: tuple) -> None:
    """Each call: a function, and its arguments."""
    model = Calls([Call("call", f, tuple(args), {}) for f, *args in calls])
    check(model, *model.tensors)


def numbers(*shape, dtype=torch.float32):
    torch.manual_seed(len(shape))
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-9, 9, shape)


def test_scalars_adapt():
    half, whole, tiny = numbers(3).half(), torch.arange(-2, 3), torch.arange(3, dtype=torch.uint8)
    agree(
        (lambda x, y: x + y, half, torch.tensor(2.5)),  # a scalar tensor keeps f16
        (lambda x, y: x + y, half, torch.tensor([2.5])),  # one of rank 1 does not
        (lambda x, y: x * y, whole, torch.tensor(2.5)),
        (lambda x: x * 2.5, whole),
        (lambda x: x / 2, whole),
        (lambda x: x * True, whole),
        (lambda x, y: x + y, tiny, torch.tensor(300)),  # wraps
        (lambda x, y: x > y, tiny, torch.tensor(1.5)),
        (lambda x, y: torch.where(x > 0, x, y), half, torch.tensor(7, dtype=torch.float64)),
        (lambda x: torch.pow(2, x), whole),
        (lambda x: 3 - x, tiny),
        (torch.maximum, half, torch.tensor(1.0, dtype=torch.float64)),
    )


def test_numbers_alone_have_the_type_of_the_result():
    one = torch.tensor([True, False])
    agree(
        (lambda c: torch.where(c, 5 * 10**9, 7), one),
        (lambda c: torch.where(c, 2 * 10**9, 7) * 3, one),
        (lambda c: torch.where(c, True, False), one),
        (lambda c: torch.where(c, 0.1, 7), one),
    )
    torch.set_default_dtype(torch.float64)
    try:
        agree((lambda c: torch.where(c, 0.1, 1 / 3), one))
    finally:
        torch.set_default_dtype(torch.float32)


def test_bits_of_another_type():
    x = torch.tensor([[1.5, -0.0, NAN], [float("inf"), 1e-40, 3.0]])
    agree(
        (lambda x: x.view(torch.int32), x),
        (lambda x: x.view(torch.uint8), x),
        (lambda x: x.view(torch.float32), x.double()),
        (lambda x: x.view(torch.float64), torch.arange(8, dtype=torch.int16)),
        (lambda x: x.view(torch.int16), x.bfloat16()),
        (lambda x: (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32), x),
    )


def test_integer_division():
    a, b = torch.tensor([7, -7, 7, -7, 0]), torch.tensor([2, 2, -2, -2, 5])
    agree(
        *((lambda x, y, m=m: torch.div(x, y, rounding_mode=m), a, b)
          for m in (None, "floor", "trunc")),
        *((lambda x, y, m=m: torch.div(x, y, rounding_mode=m), a / 3, b)
          for m in (None, "floor", "trunc")),
        (torch.fmod, a, b),
        (torch.remainder, a, b),
        (lambda x: x // -2, a),
        (lambda x: x % 3, a),
    )  # fmt: skip


def test_nan_in_extremes_and_orders():
    x = torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, 0.0], [2.0, 5.0, 4.0]])
    agree(
        (lambda x: torch.max(x, 1), x),
        (lambda x: torch.min(x, 0, keepdim=True), x),
        (torch.amax, x),
        (torch.argmax, x, 1),
        (torch.argmin, x),
        (lambda x: torch.sort(x, 1), x),
        (lambda x: torch.sort(x, 1, descending=True)[0], x),
        (lambda x: torch.topk(x, 2)[0], x),
        (lambda x: torch.median(x, 1)[0], x),
        (torch.median, x),
        (torch.fmax, x, x.flip(1)),
        (lambda x: x.clamp(0, 2), x),
        (torch.sign, x),
        (torch.relu, x),
        (torch.cumsum, x, 0),
    )


def test_slices_and_views():
    x = numbers(4, 5, 6)
    agree(
        (lambda x: x[:, -3:-1], x),
        (lambda x: x[1::2, ::3, -1], x),
        (lambda x: x[..., None, 7:2], x),  # empty
        (lambda x: x[-2].mT[1:], x),
        (lambda x: x.transpose(0, -1).reshape(-1, 5), x),
        (lambda x: x.unfold(1, 3, 2), x),
        (lambda x: torch.as_strided(x, (3, 4), (5, 2), 7), x),
        (lambda x: torch.as_strided(x.permute(2, 0, 1), (3, 4), (5, 2), 7), x),
        (
            lambda x, y: torch.as_strided_scatter(x.transpose(0, 2), y, (3, 4), (20, 2), 7),
            x,
            numbers(3, 4),
        ),
        (lambda x: x.movedim((0, 1), (-1, 0)), x),
        (lambda x: x.squeeze(0).unsqueeze(-2), x),
        (lambda x: x.flatten(1).unflatten(1, (2, -1)), x),
        (lambda x: x.split([1, 4], 1), x),
        (lambda x: x.chunk(4, -1), x),
        (lambda x: torch.tensor_split(x, [1, 3], 1), x),
    )


def test_rank_0_and_empty():
    scalar, empty = torch.tensor(2.5), torch.zeros(0, 3)
    agree(
        (lambda x: x.sum(0), scalar),
        (lambda x: x.max(0), scalar),
        (lambda x: torch.softmax(x, 0), scalar),
        (lambda x: torch.sort(x), scalar),
        (lambda x: x.cumsum(0), scalar),
        (lambda x: x.expand(2, 3), scalar),
        (lambda x: x.argmax(), scalar),
        (lambda x: (x.sum(), x.sum(0), x.mean(), x.prod(1)), empty),
        (lambda x: torch.cat([x, x.new_ones(2, 3)]), empty),
        (lambda x: x @ x.new_ones(3, 2), empty),
        (lambda x: x.mT @ x, empty),
        (lambda x: functional.softmax(x, 1), empty),
    )


def test_in_place_ops_on_views():
    def rows(x):
        y = x.clone()
        y[1:3, ::2] += 1
        y[0].mul_(2)
        y.view(-1)[3:5] = 7
        y.t()[0] = y.t()[1]
        return y

    def masked(x, mask):
        y = x.clone()
        y[mask] = 0.5
        y[:, 1][y[:, 1] > 0] = -1.0
        y.masked_fill_(y > 1, 1)
        return y.relu_().clamp_(max=0.75)

    def indexed(x, index):
        y = x.clone()
        y[index, 1] = 9.0
        y[:, index] += 1
        y.index_put_((index, index), y.new_ones(2), accumulate=True)
        return y.index_add_(0, index + 1, x[:2], alpha=-2).index_fill_(1, index, 3.0)

    x = numbers(4, 5)
    agree((rows, x), (masked, x, x > 0), (indexed, x, torch.tensor([2, -1])))


def test_tensors_as_indices():
    x, i, j = numbers(4, 5, 6), torch.tensor([[0, 2], [3, -1]]), torch.tensor([1, 0])
    agree(
        (lambda x, i, j: x[i], x, i, j),
        (lambda x, i, j: x[:, i, j], x, i, j),
        (lambda x, i, j: x[i, :, j], x, i, j),
        (lambda x, i, j: x[i, 1:3], x, i, j),
        (lambda x, i: functional.one_hot(i.abs(), 7), x, i),
        (lambda x, m, v: x.index_put((m,), v), x, torch.tensor([True, False, True, True]),
         numbers(3, 5, 6)),
        (lambda x, m, v: x.masked_scatter(m, v), x, x > 0, numbers(200)),
        (lambda x, r: x.repeat_interleave(r, 0, output_size=5), x, torch.tensor([2, 0, 1, 2])),
    )  # fmt: skip


def test_counts_whose_number_other_ops_decide():
    def count(i, *weights):
        return torch.bincount(i, *weights, minlength=4) / torch.ones(4)

    i = torch.tensor([2, 0, 2, 3])
    agree((count, i), (count, i, numbers(4)), (count, i, torch.arange(4)))
    program = from_torch(Calls([Call("count", count, (i,), {})]), (i,))
    (name,) = program.example
    with pytest.raises(OpstepError, match="a number is larger than the others allow"):
        program.run("main", {name: np.array([2, 0, 2, 4])})


def test_losses_by_class():
    loss = functional.binary_cross_entropy_with_logits
    x, y, w = numbers(4, 5), numbers(5, 4).sigmoid().T, numbers(5).exp()
    agree(
        *((lambda x, y, w, r=r: loss(x, y, pos_weight=w, reduction=r), x, y, w)
          for r in ("none", "mean", "sum")),
        (lambda x, y, w: loss(30 * x, y, weight=w, pos_weight=w), x, y, w),
    )  # fmt: skip


def test_embedding_bags():
    w, i, offsets = numbers(7, 3), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 2])
    calls = [
        (lambda w, i, o, mode=mode: functional.embedding_bag(i, w, o, mode=mode), w, i, offsets)
        for mode in ("sum", "mean", "max")
    ]
    agree(
        *calls,
        (lambda w, i: functional.embedding_bag(i, w, padding_idx=4), w, i.reshape(2, 3)),
        (lambda w, i, p: functional.embedding_bag(i, w, per_sample_weights=p, mode="sum"),
         w, i.reshape(2, 3), numbers(2, 3)),
        (lambda w, i: functional.embedding(i, w, padding_idx=-1), w, i),
    )  # fmt: skip


def test_result_types_that_are_asked_for():
    x = torch.arange(-4, 4, dtype=torch.int32).reshape(2, 4)
    agree(
        (lambda x: x.sum(1, dtype=torch.float16), x),
        (lambda x: x.prod(0, dtype=torch.float64), x),
        (lambda x: torch.softmax(x, 0, dtype=torch.float32), x),
        (lambda x: x.cumsum(1, dtype=torch.int8), x),
        (lambda x: x.to(torch.uint8), x),
        (lambda x: torch.full_like(x, 3, dtype=torch.bool), x),
        (lambda x: torch.arange(5, dtype=torch.bfloat16) + x[0, 0], x),
        (lambda x: x.float().mean(dtype=torch.float64), x),
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_of_convolutions(n, transposed):
    size = [7, 6, 5][:n]
    x = numbers(2, 4, *size)
    w = numbers(4, 3, *[3, 2, 2][:n]) if transposed else numbers(6, 2, *[3, 2, 2][:n])
    attrs = ([2] * n, [1] * n, [1] * n, transposed, [1 if transposed else 0] * n,
             1 if transposed else 2)  # fmt: skip
    gy = torch.ones_like(aten.convolution(x, w, None, *attrs)).cumsum(1)
    backward = aten.convolution_backward.default
    masks = ([True, True, True], [False, True, False])
    agree(
        *(
            (lambda g, x, w, m=m: backward(g, x, w, [g.shape[1]], *attrs, m), gy, x, w)
            for m in masks
        )
    )


def test_gradients_of_pools_and_resizing():
    x = numbers(2, 3, 6, 7)
    pooled, places = aten.max_pool2d_with_indices(x, [3, 2], [2, 2], [1, 1], [1, 1], True)
    window = ([3, 2], [2, 2], [1, 1])
    agree(
        (lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *window, [1, 1], True, i),
         pooled, x, places),
        (lambda x: (aten.max_pool2d_with_indices(x, *window, [1, 1], True)), x),
        *((lambda g, x, c=c, d=d: aten.avg_pool2d_backward(g, x, *window, True, c, d), pooled, x)
          for c, d in ((True, None), (False, None), (True, 5))),
        (lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), numbers(2, 3, 4, 2), x),
        (lambda g: aten.upsample_nearest2d_backward(g, [6, 8], [2, 3, 3, 4]), numbers(2, 3, 6, 8)),
        (lambda g: aten.upsample_bilinear2d_backward(g, [6, 8], [2, 3, 3, 4], True),
         numbers(2, 3, 6, 8)),
        (lambda g, i: aten.embedding_dense_backward(g, i, 5, 2, False), numbers(2, 3, 4),
         torch.tensor([[0, 2, 4], [1, 0, 4]])),
    )  # fmt: skip


def test_gradients_of_layers():
    x, w = numbers(4, 6, 5), numbers(6)
    rows, row_mean, row_rstd = aten.native_layer_norm(x, [5], None, None, 1e-5)
    groups, mean, rstd = aten.native_group_norm(x, w, None, 4, 6, 5, 3, 1e-5)
    mask = [True, True, True]
    agree(
        (lambda *t: aten.native_layer_norm(t[0], [5], None, None, 1e-5), x),
        (lambda g, x, m, r, w: aten.native_layer_norm_backward(g, x, [5], m, r, w, w, mask),
         rows, x, row_mean, row_rstd, numbers(5)),
        (lambda g, x, m, r, w: aten.native_group_norm_backward(g, x, m, r, w, 4, 6, 5, 3, mask),
         groups, x, mean, rstd, w),
        (lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), x, rows),
        (lambda g, x: aten.gelu_backward(g, x), x, rows),
        (lambda g, x: aten.threshold_backward(g, x, 0), x, rows),
        (lambda g, x: aten.sigmoid_backward(g, x.sigmoid()), x, rows),
        (lambda g, x: aten.tanh_backward(g, x.tanh()), x, rows),
        (lambda g, x: aten._softmax_backward_data(g, x.softmax(1), 1, torch.float32), x, rows),
        (lambda g, x: aten._log_softmax_backward_data(g, x.log_softmax(1), 1, torch.float32),
         x, rows),
        (lambda g, x: aten.hardtanh_backward(g, x, -0.5, 0.5), x, rows),
        (lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), x, rows),
        (lambda g, x: aten.elu_backward(g, 1.0, 1, 1, False, x), x, rows),
        (lambda g, x: aten.hardswish_backward(g, x), x, rows),
    )  # fmt: skip


def test_gradients_of_batch_norm():
    """In training and not, with a scale and without, of some of the operands."""
    x, gy, w = numbers(4, 6, 5, 3), numbers(4, 6, 5, 3).cos(), numbers(6)
    _, mean, rstd = aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-3)
    old, var = numbers(6) / 2, numbers(6).abs() + 0.1
    backward = aten.native_batch_norm_backward
    agree(
        *(
            (lambda g, x, o, v, m, r, s=s, t=t, mask=mask: backward(
                g, x, s, o, v, m, r, t, 1e-3, mask), gy, x, old, var, mean, rstd)
            for s in (w, None)
            for t in (True, False)
            for mask in ([True, s is not None, s is not None], [True, False, False])
        ),
    )  # fmt: skip


def test_attention_and_its_gradient():
    q, k, v = numbers(2, 4, 5, 8), numbers(2, 4, 7, 8) + 1, numbers(2, 4, 7, 8)
    mask = numbers(5, 7) > 0
    mask[2] = False  # nothing to look at
    attend = functional.scaled_dot_product_attention
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    y, logsumexp = forward(q, k, v, is_causal=True)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    agree(
        (lambda *t: attend(*t), q, k, v),
        (lambda *t: attend(*t, is_causal=True), q, k, v),
        (lambda q, k, v, m: attend(q, k, v, attn_mask=m, scale=0.3), q, k, v, mask),
        (lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, numbers(4, 5, 7)),
        (lambda q, k, v: attend(q, k[:, :2], v[:, :2], enable_gqa=True), q, k, v),
        (lambda q, k, v: attend(q[0], k[0], v[0]), q, k, v),
        (lambda q, k, v: forward(q, k, v, is_causal=True), q, k, v),
        (lambda q, k, v, y, s: backward(torch.ones_like(y), q, k, v, y, s, 0.0, True),
         q, k, v, y, logsumexp),
    )  # fmt: skip


def test_statistics_of_batches_are_updated():
    torch.manual_seed(0)
    layer, x = nn.BatchNorm1d(3, momentum=0.3), numbers(4, 3, 5)
    program = from_torch(layer, (x,))
    (found,) = program.run("main", {"input": x.numpy()}).values()
    torch.testing.assert_close(torch.as_tensor(found), layer(x).detach())
    for name, buffer in layer.named_buffers():
        torch.testing.assert_close(torch.as_tensor(program.params[name]), buffer)


class Unsupported(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.unique(x), "a size depends on data"),
        (lambda x: torch.linalg.svd(x)[1], "there is no op"),
        (lambda x: torch.linalg.inv(x), "there is no op"),
        (lambda x: x[:, 1:].as_strided((2,), (1,)), "of a part of a tensor"),
        (lambda x: functional.embedding(x.long(), x, max_norm=1.0), "there is no op"),
    ],
)
def test_refusals_have_reasons(function, reason):
    with pytest.raises(ImportFailed) as caught:
        from_torch(Unsupported(function), (torch.ones(3, 3),))
    assert all(reason in m.reason for m in caught.value.missing)


class AnySize(nn.Module):
    """Of batches and sequences of any size."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(8, 8, 3, padding="same"), nn.LayerNorm(8)
        self.deconv = nn.ConvTranspose1d(8, 8, 2, stride=2)

    def forward(self, x, index):
        attended = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        y = self.norm(attended + self.conv(x.mT).mT)
        y = torch.cat([y[:, 1:], y[:, :1].roll(1, 0)], 1).cumsum(1) / x.shape[1]
        picked = y.gather(1, index[:, :, None].expand(-1, -1, 8))
        put = torch.zeros_like(y).index_put((torch.arange(x.shape[0])[:, None], index), picked)
        pooled = functional.avg_pool1d(functional.pad(y.mT, (1, 1)), 2)
        wide = functional.interpolate(self.deconv(pooled), scale_factor=2.0)
        best, where = y.max(1)
        return put, wide, best, where, torch.tril(attended @ attended.mT), y.mean((0, 1)), y[-1]


def test_sizes_that_are_not_known():
    torch.manual_seed(0)
    batch, picks = torch.export.Dim("batch", min=2), torch.export.Dim("picks", min=2)
    length = torch.export.Dim("length", min=4)
    first = numbers(3, 6, 8), torch.tensor([[0, 3], [2, 1], [5, 4]])
    other = numbers(2, 9, 8), torch.tensor([[8, 1, 0, 3], [7, 2, 5, 6]])
    shapes = ({0: batch, 1: length}, {0: batch, 1: picks})
    check(AnySize(), *first, also=[other], dynamic_shapes=shapes)
