"""Training through `torch.compile`: layers whose gradients or random numbers need care."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from agreement import called
from test_backend import assert_all_close, trained
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from opstep.frontends.torch import findings
from opstep.frontends.torch.module_calls import ModuleCalls


class Checkpointed(nn.Module):
    """Draws the same numbers again in the backward."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x):
        def noisy(x):
            return self.part(x) * torch.rand_like(x)

        for part in (noisy, self.part):
            x = checkpoint(part, x + torch.randn(6), use_reentrant=False)
        return x


def test_checkpoints(compiled):
    model, x = Checkpointed(), torch.randn(5, 6)
    eager = copy.deepcopy(model)
    assert_all_close(trained(compiled(model), x), trained(eager, x))


def pooled(x):
    return F.max_pool2d(torch.tanh(x), 3, 2, 1)


def test_indices_of_maxima_are_neither_saved_nor_computed(compiled, programs):
    x = torch.randn(2, 3, 9, 8, requires_grad=True)
    (found,) = torch.autograd.grad(compiled(pooled)(x).sum(), x)
    (expected,) = torch.autograd.grad(pooled(x).sum(), x)
    torch.testing.assert_close(found, expected)
    assert called(programs["forward"].graphs["forward"]) == ["tanh", "max_pool2d"]
    assert "max_pool2d_with_indices" not in called(programs["backward"].graphs["backward"])


@pytest.mark.parametrize(
    "shape, axis", [((3, 5), -1), ((3, 5), 0), ((4,), 0), ((), 0), ((2, 0), 1)]
)
def test_running_products_have_one_gradient(compiled, programs, shape, axis):
    x = torch.randn(shape)
    if x.numel() > 1:
        x.view(-1)[1::3] = 0.0
    x.requires_grad_()
    weights = torch.randn(shape)
    product = compiled(lambda x: x.cumprod(axis))
    (found,) = torch.autograd.grad(product(x), x, weights)
    (expected,) = torch.autograd.grad(x.cumprod(axis), x, weights)
    torch.testing.assert_close(found, expected)
    wanted = ["cumprod_grad"] if shape else ["identity"]
    assert called(programs["backward"].graphs["backward"]) == wanted


RESIZED = {
    "nearest": 1, "nearest-exact": 2, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3,
}  # fmt: skip


@pytest.mark.parametrize("mode", RESIZED)
def test_upsampling_is_one_op_and_so_is_its_gradient(compiled, programs, mode):
    def resized(x):
        return F.interpolate(x, scale_factor=1.5, mode=mode)

    n = RESIZED[mode]
    x = torch.randn((2, 3, 4, 5, 6)[: 2 + n], requires_grad=True)
    expected, found = resized(x), compiled(resized)(x)
    gy = torch.randn_like(expected)
    torch.testing.assert_close(found, expected)
    of_found, of_expected = (torch.autograd.grad(y, x, gy)[0] for y in (found, expected))
    torch.testing.assert_close(of_found, of_expected)
    assert called(programs["forward"].graphs["forward"]) == [f"upsample{n}d"]
    assert called(programs["backward"].graphs["backward"]) == [f"upsample{n}d_grad"]


@pytest.mark.parametrize("pads", [(2, 1, 0, 3), (-1, 2, 1, -1), (0, 0, 2, 0, 1, 1)])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pads_and_their_gradients(compiled, programs, mode, pads):
    x = torch.randn((2, 3, 4, 5, 6)[: 2 + len(pads) // 2], requires_grad=True)
    expected, found = (f(x, pads, mode=mode) for f in (F.pad, compiled(F.pad)))
    gy = torch.randn_like(expected)
    torch.testing.assert_close(found, expected)
    of_found, of_expected = (torch.autograd.grad(y, x, gy)[0] for y in (found, expected))
    torch.testing.assert_close(of_found, of_expected)
    graphs = (p.graphs[name] for name, p in programs.items())
    others = {"index", "index_put_add", "slice_scatter"}
    assert not others & {op for g in graphs for op in called(g)}


def test_the_gradient_of_a_matrix_times_a_vector_transposes_nothing(compiled, programs):
    operands = [torch.randn(n, requires_grad=True) for n in ((5, 3), (3,))]
    gy = torch.randn(5)
    found, expected = (
        torch.autograd.grad(f(*operands), operands, gy) for f in (compiled(torch.mv), torch.mv)
    )
    torch.testing.assert_close(found, expected)
    assert "transpose" not in called(programs["backward"].graphs["backward"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_linear_units(compiled, programs, dtype):
    x = torch.randn(3, 4, 8, dtype=dtype, requires_grad=True)
    expected, found = (f(x, 1) for f in (F.glu, compiled(F.glu)))
    gy = torch.randn_like(expected)
    torch.testing.assert_close(found, expected)
    of_found, of_expected = (torch.autograd.grad(y, x, gy)[0] for y in (found, expected))
    torch.testing.assert_close(of_found, of_expected)
    for name, program in programs.items():
        assert called(program.graphs[name])[0] == "split", "before it is converted"


def test_maxima_in_a_graph_that_pytorch_runs_itself(compiled):
    def f(x):
        return torch.fft.fft(pooled(x)).abs()

    x = torch.randn(2, 3, 9, 8, requires_grad=True)
    with pytest.warns(UserWarning, match="itself"):
        (found,) = torch.autograd.grad(compiled(f, fallback=True)(x).sum(), x)
    (expected,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Bags(nn.Module):
    """Layers with gradients of their own: bags, norms of weights, sampling, pools."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(9, 4, mode=m, padding_idx=p)
            for m, p in (("sum", None), ("mean", 2), ("max", 2))
        )
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 2, 3, padding=1))
        self.pad, self.pool = nn.ReplicationPad2d(1), nn.AdaptiveMaxPool2d(3)

    def forward(self, index):
        offsets = torch.tensor([0, 3, 3])
        x = torch.cat([bag(index, offsets) for bag in self.bags], 1)[None, None]
        x = self.pool(self.pad(self.conv(x)))
        return F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False)


def test_gradients_that_pytorch_has_kernels_for(compiled):
    model, index = Bags(), torch.tensor([1, 2, 4, 5, 4, 2])
    eager = copy.deepcopy(model)
    assert_all_close(trained(compiled(model), index), trained(eager, index))


class Chosen(nn.Module):
    """Gradients that are no ops of a forward: by weights of rows, of scattered values."""

    def __init__(self):
        super().__init__()
        self.table, self.weights = nn.Parameter(torch.randn(9, 4)), nn.Parameter(torch.rand(6) + 1)

    def forward(self, index):
        offsets = torch.tensor([0, 3, 3])
        bags = F.embedding_bag(
            index, self.table, offsets, mode="sum", per_sample_weights=self.weights
        )
        mask = torch.tensor([True, False, True, True])
        scattered = torch.ones(2, 4).masked_scatter(mask, self.table[:3] * 2)
        return bags.mean() + scattered.cos() @ torch.digamma(self.weights[:4])


class Stacked(nn.Module):
    """Recurrent layers with dropout between them, of both ways, batches first and packed."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, 2, dropout=0.4, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(6, 4, 3, dropout=0.3)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        packed = nn.utils.rnn.PackedSequence(y.transpose(0, 1).flatten(0, 1), torch.tensor([3, 3]))
        z, last = self.gru(packed)
        return torch.cat([y.mean() + z.data.mean(0), h.flatten(), c.flatten(), last.flatten()])


def test_dropout_between_recurrent_layers(compiled):
    model, x = Stacked(), torch.randn(3, 2, 4)
    eager = copy.deepcopy(model)
    with torch._dynamo.config.patch(allow_rnn=True):
        assert_all_close(trained(compiled(model), x), trained(eager, x))


def test_gradients_of_chosen_values(compiled):
    model, index = Chosen(), torch.tensor([1, 2, 4, 5, 4, 2])
    eager = copy.deepcopy(model)
    assert_all_close(trained(compiled(model), index), trained(eager, index))


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(2, 2)

    def forward(self, x):
        y, _ = self.layer(x)
        return (y - y).log().sum()


def test_a_module_of_a_script_with_a_recurrent_layer():
    torch._dynamo.reset()
    findings.clear()
    with ModuleCalls({"hunt": True}) as calls, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Logarithm()(torch.randn(2, 1, 2))
    assert calls.compiled == 1 and "log of 0" in str(findings[0])
    findings.clear()
    torch._dynamo.reset()


class Sequential(nn.Module):
    """PyTorch runs its parts itself, in the backward too."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh())

    def forward(self, x):
        return checkpoint_sequential(self.parts, 2, x.sin(), use_reentrant=False).cos()


def test_checkpoints_of_a_script_that_pytorch_runs():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Sequential(), torch.randn(2, 3)
    eager = copy.deepcopy(model)
    with ModuleCalls({}) as calls:
        found = trained(model, x)
    assert calls.count == 5  # one each step
    assert_all_close(found, trained(eager, x))
    torch._dynamo.reset()


def test_bounds_that_are_sizes(compiled):
    """Of a bilinear upsampling, the last row."""

    def function(x):
        n, k = x.shape
        return x.clamp(max=n - 3), x.clamp(-1, k), x.clamp(n, 2), x.clamp(min=-k), x * (k - n)

    x = 6 * torch.randn(7, 5)
    fast = compiled(function, dynamic=True)
    for a, b in zip(fast(x), function(x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaled, eps", [(True, 1e-5), (False, 1e-5), (True, None)])
def test_rms_norm_and_its_gradient_are_single_ops(compiled, programs, scaled, eps, dtype):
    x = torch.randn(3, 4, 6, dtype=dtype, requires_grad=True)
    scale = torch.randn(4, 6, dtype=dtype, requires_grad=True) if scaled else None

    def normed(x, scale):
        return F.rms_norm(1e-3 * x, (4, 6), scale, eps)

    expected, found = normed(x, scale), compiled(normed)(x, scale)
    near = {} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    torch.testing.assert_close(found, expected, **near)
    gy, leaves = torch.randn_like(expected), [x, scale] if scaled else [x]
    of_found, of_expected = (torch.autograd.grad(y, leaves, gy) for y in (found, expected))
    torch.testing.assert_close(of_found, of_expected, **near)
    assert called(programs["forward"].graphs["forward"]) == ["mul", "rms_norm"]
    assert "rms_norm_grad" in called(programs["backward"].graphs["backward"])


OF_SIZES = {
    "quantile": lambda x: torch.quantile(x, 0.3, dim=1),
    "masked_fill": lambda x: x.masked_fill(x > 0, x.shape[0] - 1),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([1]), x.shape[1]),
    "scatter": lambda x: x.scatter(0, torch.tensor([[0, 1]]), x.shape[1]),
    "hardtanh": lambda x: F.hardtanh(x, -1, x.shape[0] - 2),
    "full": lambda x: torch.full((2,), x.shape[1], dtype=torch.int64) + x.shape[0],
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_sizes_that_vary_are_numbers(name, compiled):
    function = OF_SIZES[name]
    fast = compiled(function, dynamic=True)
    for shape in ((3, 9), (4, 7)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(fast(x), function(x))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_resizing_to_sizes_that_vary(mode, compiled):
    """To those of another tensor, as decoders do it."""

    def resized(x, like):
        return F.interpolate(x, size=like.shape[2:], mode=mode)

    fast = compiled(resized, dynamic=True)
    for n, size in ((2, (9, 3)), (3, (5, 12))):
        x, like = torch.randn(n, 2, 5, 6, requires_grad=True), torch.zeros(n, 1, *size)
        expected, found = resized(x, like), fast(x, like)
        torch.testing.assert_close(found, expected)
        gy = torch.randn_like(expected)
        (of_found,), (of_expected,) = (torch.autograd.grad(y, x, gy) for y in (found, expected))
        torch.testing.assert_close(of_found, of_expected, rtol=1e-5, atol=1e-5)
