"""PyTorch's kernels of attention, as graphs traced for a GPU have them, are one op of ours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from opstep.frontends.torch.backend import opstep
from opstep.frontends.torch.graphs import AtenGraph
from opstep.frontends.torch.importing import from_torch
from opstep.frontends.torch.labels import Labels

aten = torch.ops.aten
CAUSAL = {"is_causal": True, "scale": 0.4}
KERNELS = {
    "flash": lambda q, k, v, bias: aten._scaled_dot_product_flash_attention(q, k, v, **CAUSAL),
    "efficient": lambda q, k, v, bias: aten._scaled_dot_product_efficient_attention(
        q, k, v, bias, True, scale=0.4
    ),
    "cudnn": lambda q, k, v, bias: aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, **CAUSAL
    ),
    "overrideable": lambda q, k, v, bias: aten._scaled_dot_product_fused_attention_overrideable(
        q, k, v, bias, scale=0.4
    ),
    "cpu": lambda q, k, v, bias: aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, **CAUSAL
    ),
}
GRADIENTS = {
    "flash": lambda g, q, k, v, b, y: aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, *y[:6], 0.0, True, y[6], y[7], scale=0.4
    ),
    "efficient": lambda g, q, k, v, b, y: aten._scaled_dot_product_efficient_attention_backward(
        g, q, k, v, b, *y, 0.0, [True, True, True, True], scale=0.4
    ),
    "cudnn": lambda g, q, k, v, b, y: aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, y[0], y[1], y[6], y[7], None, *y[2:6], 0.0, True, scale=0.4
    ),
    "cpu": lambda g, q, k, v, b, y: aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, *y, 0.0, True, scale=0.4
    ),
}
BIASED = ("efficient", "overrideable")


def operands():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 8) for n in (8, 8, 8))
    return q, k, v, torch.randn(2, 4, 8, 8)


def expected(name, q, k, v, bias):
    if name in BIASED:
        return F.scaled_dot_product_attention(q, k, v, bias, scale=0.4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.4)


class Calls(nn.Module):
    def __init__(self, name, gradient=False):
        super().__init__()
        self.name, self.gradient = name, gradient

    def forward(self, q, k, v, bias):
        y = KERNELS[self.name](q, k, v, bias)
        if not self.gradient:
            return y[0] * 2, y[0]
        found = GRADIENTS[self.name](torch.ones_like(y[0]), q, k, v, bias, y)
        return tuple(t for t in found if t is not None)


def ops_of(program, graph="main"):
    return [s.callee.text for s in program.graphs[graph].body if hasattr(s, "callee")]


@pytest.mark.parametrize("name", KERNELS)
def test_exported_kernels_are_one_op(name):
    given = operands()
    program = from_torch(Calls(name), given)
    assert sorted(ops_of(program)[:2]) == ["mul", "scaled_dot_product_attention"]
    arrays = {n: t.numpy() for n, t in zip(["q", "k", "v", "bias"], given, strict=True)}
    doubled, found = program.run("main", arrays).values()
    torch.testing.assert_close(torch.as_tensor(found), expected(name, *given))
    torch.testing.assert_close(torch.as_tensor(doubled), 2 * expected(name, *given))


@pytest.mark.parametrize("name", GRADIENTS)
def test_their_gradients_are_those_of_pytorch(name):
    given = [t.requires_grad_() for t in operands()]
    with torch.no_grad():
        program = from_torch(Calls(name, gradient=True), tuple(t.detach() for t in given))
    wanted = torch.autograd.grad(expected(name, *given).sum(), given, allow_unused=True)
    names = ["q", "k", "v", "bias"]
    arrays = {n: t.detach().numpy() for n, t in zip(names, given, strict=True)}
    found = list(program.run("main", arrays).values())
    assert len(found) == (4 if name in BIASED else 3)
    for a, b in zip(found, wanted, strict=False):
        torch.testing.assert_close(torch.as_tensor(a), b, rtol=1e-4, atol=1e-5)


class Attention(nn.Module):
    def forward(self, x, bias):
        return (F.scaled_dot_product_attention(x, x, x, bias).sin(),)


@pytest.fixture
def graphs(monkeypatch):
    """What would have run, by name."""
    from opstep.frontends.torch import backend

    found = {}

    class Looked(backend._Maker):
        def _runner(self, module, name):
            found[name] = AtenGraph(module, name, Labels([])).graph
            return lambda *args: None

    monkeypatch.setattr(backend, "_Maker", Looked)
    return found


def called(graph):
    return {str(n.target) for n in graph.nodes if n.op == "call_function"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_on_a_gpu_is_compiled_to_the_op(graphs, dtype):
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(2, 4, 16, 8, device="cuda", dtype=dtype)
        bias = torch.empty(16, 16, device="cuda", dtype=dtype)
        opstep(torch.fx.symbolic_trace(Attention()), [x, bias])
    assert called(graphs["inference"]) == {"opstep.attention.default", "aten.sin.default"}


def test_training_away_from_the_cpu_is_the_op_forward_and_backward(graphs, monkeypatch):
    x = torch.empty(2, 4, 16, 8, device="meta", requires_grad=True)
    bias = torch.empty(16, 16, device="meta")
    aot = opstep(torch.fx.symbolic_trace(Attention()), [x, bias])
    del aot
    assert "opstep.attention.default" in called(graphs["forward"])
    assert not any("softmax" in name or "bmm" in name for name in called(graphs["forward"]))
    if "backward" in graphs:  # compiled when it is first called, in some versions
        assert "opstep.attention_backward.default" in called(graphs["backward"])
