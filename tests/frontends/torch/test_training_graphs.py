"""What AOTAutograd makes of training steps: forward and backward graphs of core ATen ops."""

import copy
import subprocess
import sys

import pytest
import torch
from agreement import check
from torch import nn
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_function
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.GELU(), nn.AvgPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Hardswish(), nn.LeakyReLU(),
            nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 10),
        )  # fmt: skip

    def forward(self, x, label):
        return functional.cross_entropy(self.layers(x), label)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.norm = nn.RMSNorm(16)
        self.head = nn.Linear(16, 20)

    def forward(self, x, label):
        h = self.norm(self.encoder(self.embedding(x)))
        h = h * torch.sigmoid(h) + torch.tanh(h) + functional.silu(h) + h.clamp(-1, 1)
        h = h + functional.softplus(h) + functional.elu(h)
        close = functional.smooth_l1_loss(h, 0.5 * h.detach())
        return functional.cross_entropy(self.head(h).transpose(1, 2), label) + close


MODELS = {
    "images": lambda: (Images(), torch.rand(2, 3, 16, 16), torch.tensor([1, 2])),
    "words": lambda: (Words(), torch.randint(0, 20, (2, 5)), torch.randint(0, 20, (2, 5))),
}


class Captured(nn.Module):
    """A graph of AOTAutograd, and what it was run with."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        self.inputs = ()

    def forward(self, *inputs):
        return [t for t in self.graph(*inputs) if isinstance(t, torch.Tensor)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step(name):
    torch.manual_seed(0)
    model, *args = MODELS[name]()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    captured = []

    def compiled(gm, example_inputs):
        captured.append(Captured(gm))
        return run_boxed(captured[-1])

    def loss(state, *args):
        return torch.func.functional_call(model, state, args)

    table: dict = {**core_aten_decompositions()}
    with sdpa_kernel(SDPBackend.MATH):
        aot_function(loss, compiled, compiled, decompositions=table)(state, *args).backward()
    assert len(captured) == 2
    for graph in captured:
        check(graph, *graph.inputs)


def run_boxed(captured: Captured):
    def run(inputs):
        captured.inputs = tuple(t.detach().clone() for t in inputs)
        found = captured.graph(*inputs)
        inputs.clear()
        return found

    run._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return run


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_batch_norm_trains_on_batches_that_vary(shape):
    """The backward multiplies by 1 / n, a number that follows from the batch's size."""
    layer = nn.BatchNorm1d(4)
    eager, fast = copy.deepcopy(layer), torch.compile(layer, backend="opstep")
    for batch in (6, 4, 5):
        x = torch.randn(batch, *shape)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        fast(ours).square().sum().sin().backward()
        eager(theirs).square().sum().sin().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(dict(layer.state_dict()), dict(eager.state_dict()))


EXPORT = """
import torch
from opstep.frontends.torch.autograd import single_ops
from opstep.frontends.torch.rules import all_rules

all_rules()
with single_ops():
    torch.export.default_decompositions()
model, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
torch.onnx.export(model, (x,), "model.onnx", dynamo=True, verbose=False)
"""


def test_a_model_is_exported_to_onnx_after_ops_had_other_kernels(tmp_path):
    """PyTorch lists its composite ops once, by the kernels that they have then."""
    subprocess.run([sys.executable, "-c", EXPORT], cwd=tmp_path, check=True)
