"""Models beside PyTorch: which op differs, and whose fault it is."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from opstep.api.settings import RunSettings
from opstep.differing.taps import Taps
from opstep.frontends.torch import evaluating
from opstep.frontends.torch.comparing import diff_torch
from opstep.frontends.torch.importing import translated
from opstep.frontends.torch.rules import all_rules
from opstep.frontends.torch.rules.registry import RULES
from opstep.runtime.ir.errors import DeviceError, InputError


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.up(self.norm(x))
        h = F.gelu(h)
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8) for _ in range(2)])
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.softmax(self.head(x.transpose(0, 1)), -1)


@pytest.fixture
def net():
    torch.manual_seed(1)
    return Net().eval(), (torch.randn(3, 4, 8),)


def plant(monkeypatch, wrong):
    """Our gelu becomes ``wrong(body, x, right)``."""
    all_rules()
    right = RULES["gelu.default"]
    monkeypatch.setitem(RULES, "gelu.default", lambda b, x, **_: wrong(b, x, right(b, x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_model_agrees_with_pytorch(net, dtype):
    model, (x,) = net
    found = diff_torch(model.to(dtype), (x.to(dtype),))
    assert found.same and found.complete and found.names == ("opstep", "torch")
    assert found.compared == 13  # every ATen op of it
    eps = torch.finfo(dtype).eps
    (errors,) = found.outputs.values()
    assert errors.a and errors.b
    assert 0 < errors.a.relative < 4 * eps and 0 < errors.b.relative < 4 * eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_op_of_ours_is_named(net, dtype, monkeypatch):
    plant(monkeypatch, lambda b, x, right: b.relu(x))
    model, (x,) = net
    found = diff_torch(model.to(dtype), (x.to(dtype),))
    first = found.first
    assert not found.same and first
    assert (first.op, first.verdict, first.module) == ("aten.gelu.default", "a", "blocks.0")
    assert first.source == "h = F.gelu(h)" and first.file.endswith("test_comparing.py")
    assert first.statement.endswith("= relu(h)") and first.site.startswith("main/Block:")
    assert first.came < torch.finfo(dtype).eps < 0.1 < first.total.relative
    assert first.elements.differing > 30 and first.elements.of == 3 * 4 * 16
    # what comes behind it differs as well, and has no fault of its own
    assert [d.module for d in found.faults] == ["blocks.0", "blocks.1"]
    assert len(found.differing) > 8


def test_an_error_of_a_few_units_more_than_rounding_is_a_fault(net, monkeypatch):
    plant(monkeypatch, lambda b, x, right: b.mul(right, 1 + 3e-5))
    first = diff_torch(*net).first
    assert first and first.verdict == "a" and first.op == "aten.gelu.default"
    ours, theirs = first.own
    assert ours.error.relative == pytest.approx(3e-5, rel=0.1) and theirs.right
    assert first.elements.most_relative < 5e-5


def test_an_error_within_rounding_is_none(net, monkeypatch):
    plant(monkeypatch, lambda b, x, right: b.mul(right, 1 + 2.0**-22))
    assert diff_torch(*net).same


@pytest.fixture
def broken_gelu():
    """PyTorch's gelu of f32 on the CPU is wrong for x > 1; that of other types is right."""

    def gelu(x, *, approximate="none"):
        right = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        return torch.where(x > 1, right * 1.01, right) if x.dtype == torch.float32 else right

    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", gelu, "CPU", allow_override=True)
    yield
    library._destroy()


@pytest.mark.usefixtures("broken_gelu")
@pytest.mark.filterwarnings("ignore:.*verriding a previously registered kernel")
def test_a_wrong_op_of_pytorch_is_named(net):
    model, (x,) = net
    found = diff_torch(model, (3 * x,))
    first = found.first
    assert first and first.verdict == "b" and first.op == "aten.gelu.default"
    ours, theirs = first.own
    assert ours.right and theirs.error.relative > 1e-3
    assert 0.009 < first.elements.most_relative < 0.011 and first.elements.a > 0


def test_our_floats_in_another_type(net):
    model, args = net
    found = diff_torch(model, args, dtype="bf16")
    (errors,) = found.outputs.values()
    assert found.same and found.names == ("opstep, bf16", "torch")
    assert errors.a.relative > 1e-4 > 1e-6 > errors.b.relative
    closer = diff_torch(model, args, dtype="bf16", rtol=1e-3)
    first = closer.first
    assert closer.same and first and first.verdict == "rounding"
    assert first.op == "aten.layer_norm.default" and first.type == "bf16[3, 4, 8]"
    assert first.through == "x" and 1e-4 < first.came < first.total.relative < 1e-2
    exact = diff_torch(model, args, dtype="f64")
    assert exact.same and next(iter(exact.outputs.values())).a.relative < 1e-14


def test_a_type_without_the_model_s_largest_numbers():
    class Masked(nn.Module):
        def forward(self, x):
            lowest = torch.finfo(torch.float32).min
            return x.masked_fill(x > 0, lowest).softmax(-1), x.masked_fill(x > 0, lowest)

    for dtype in ("bf16", "f16"):
        assert diff_torch(Masked(), (torch.randn(4, 8),), dtype=dtype).same


def test_statistics_that_a_model_updates():
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.GELU()).train()
    args = (torch.randn(4, 6),)
    assert diff_torch(model, args).same and diff_torch(model, args, dtype="bf16").same


def test_indices_among_equal_elements():
    class Choose(nn.Module):
        def forward(self, x):
            values, indices = x.round().topk(3)
            return values, indices, x.round().argmax(0), x.round().sort(-1)[1]

    found = diff_torch(Choose(), (torch.randn(8, 64),))
    assert found.same and found.compared >= 5


def test_the_largest_elements_in_any_order():
    class Model(nn.Module):
        def forward(self, x):
            values, indices = x.round().topk(5, sorted=False)
            return values, indices, x.gather(1, indices).cumsum(1)

    found = diff_torch(Model(), (2 * torch.randn(6, 8),))
    assert found.same and found.differing
    assert {d.verdict for d in found.differing} == {"rounding"}


def test_a_wrong_choice_of_the_largest_elements(monkeypatch):
    class Model(nn.Module):
        def forward(self, x):
            return x.topk(3, sorted=False)

    all_rules()
    monkeypatch.setitem(RULES, "topk.default", lambda b, x, k, *_: b.top_k(x, k=k, largest=False))
    found = diff_torch(Model(), (torch.randn(4, 8),))
    assert [(d.value, d.verdict) for d in found.faults] == [("topk", "a"), ("topk", "a")]


def test_inputs_of_another_size():
    class Scaled(nn.Module):
        def forward(self, x, *, mask, scale=2.0):
            return {"y": (x * x.shape[0]).reshape(-1), "m": mask * scale}

    exported = torch.export.export(
        Scaled(), (torch.randn(6, 8),), {"mask": torch.ones(3)},
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}, "mask": None},
    )  # fmt: skip
    found = diff_torch(
        exported, inputs={"x": np.ones((10, 8), "f4")}, settings=RunSettings(mode="debug")
    )
    assert found.same and list(found.outputs) == ["y", "m"]
    assert found.outputs["y"].apart.size == 80
    with pytest.raises(InputError, match="as x"):
        diff_torch(exported, inputs={"x": np.ones((10, 9), "f4")})


def test_outputs_that_no_op_of_their_own_makes():
    class Twice(nn.Module):
        def forward(self, x):
            y = x.exp()
            return y, y, x, y.reshape(-1), torch.zeros(3), 5, None, x[:0]

    found = diff_torch(Twice(), (torch.randn(2, 3),))
    assert found.same and {e.apart.size for e in found.outputs.values()} == {6, 3, 0}


def test_pytorch_is_given_our_random_numbers(monkeypatch):
    def native_dropout(b, x, p, train):
        kept = b.bernoulli(shape=list(x.shape), p=1.0 - p, seed=7)
        return b.mul(b.mul(x, b.to(kept, x.dtype)), 1 / (1 - p)), kept

    class Drop(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, True).exp()

    all_rules()
    monkeypatch.delitem(RULES, "dropout.default")
    monkeypatch.setitem(RULES, "native_dropout.default", native_dropout)
    args = (torch.randn(20, 30),)
    found = diff_torch(Drop(), args)
    assert found.same and not found.differing and found.compared >= 2
    assert next(iter(found.outputs.values())).b.relative < 1e-6
    with pytest.raises(InputError, match="draws other numbers"):
        diff_torch(Drop(), args, against="inductor")


def test_every_value_has_its_op_in_the_program(net):
    found = translated(*net)
    taps = Taps(found.program.on("cpu"), 1 << 20)
    found.program.run("main", {"x": net[1][0]}, listeners=[taps])
    sites = {key[0]: tapped for key, tapped in taps.found.items()}
    assert sites.keys() == found.nodes.keys()
    for site, value in found.nodes.items():
        shape = evaluating.results_of(value.node.meta["val"])[value.index].shape
        assert tuple(sites[site].type.shape) == tuple(shape)


@pytest.mark.parametrize(
    ("against", "error", "message"),
    [
        ("jax", InputError, "nothing to compare with"),
        ("torch:tpu", InputError, "nothing to compare with"),
        ("torch:cuda:63", DeviceError, "no such device"),
        ("inductor:cuda:63", DeviceError, "no such device"),
    ],
)
def test_what_there_is_not(net, against, error, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(error, match=message):
        diff_torch(*net, against=against)


def test_small_memory_is_told(net):
    found = diff_torch(*net, budget=2048)
    assert found.same and not found.complete and 0 < found.compared < 13


# --- what Inductor makes -------------------------------------------------------------------------


def compiler(monkeypatch, wrong):
    """In place of Inductor: gives the values wanted, with those changed that are ``wrong(node,
    wanted)``. Returns what was wanted each time.
    """
    asked = []

    def run_compiled(graph, known, wanted, device):
        asked.append([v.node.name for v in wanted])
        values = dict(known)
        for node in (n for n in graph.nodes if n.op == "call_function"):

            def operand(leaf):
                is_node = isinstance(leaf, torch.fx.Node)
                return values[evaluating.value_of(leaf)] if is_node else leaf

            made = node.target(*map(operand, node.args), **node.kwargs)
            values[evaluating.value_of(node)] = made * (1.01 if wrong(node.name, asked[-1]) else 1)
        return {v: t for v, t in values.items() if v in known or v in wanted}

    monkeypatch.setattr(evaluating, "run_compiled", run_compiled)
    return asked


def test_a_fault_of_the_compiler_is_found_through_the_modules(net, monkeypatch):
    asked = compiler(monkeypatch, lambda node, wanted: node == "gelu_1")
    found = diff_torch(*net, against="inductor")
    first = found.first
    assert first and (first.value, first.verdict, first.module) == ("gelu_1", "b", "blocks.1")
    assert len(found.faults) == 1 and not found.fused
    assert asked[0] == ["softmax"]  # what the model gives
    assert "linear_3" in asked[1] and "gelu_1" not in asked[1]  # what modules give
    assert "gelu_1" in asked[2] and "gelu" not in asked[2]  # what is in the module


def test_a_fault_that_only_fusing_shows(net, monkeypatch):
    asked = compiler(monkeypatch, lambda node, wanted: node == "gelu_1" and len(wanted) == 1)
    found = diff_torch(*net, against="inductor")
    assert found.fused and [d.value for d in found.faults] == ["softmax"] and len(asked) == 2


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a C++ compiler")
def test_inductor(net):
    found = diff_torch(*net, against="inductor")
    assert found.same and found.compared == 1 and found.names[1] == "inductor"


def test_inductor_without_a_compiler(net, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    with (
        config.patch(force_disable_caches=True),
        pytest.raises(DeviceError, match="no-such-compiler") as raised,
    ):
        diff_torch(*net, against="inductor")
    assert "CXX" in str(raised.value.diagnostics[0].hint)


# --- random models -------------------------------------------------------------------------------


def random_model(seed: int) -> tuple[nn.Sequential, tuple[torch.Tensor]]:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    width = int(draw.integers(3, 20))
    layers: list[nn.Module] = []
    for _ in range(int(draw.integers(4, 9))):
        after = int(draw.integers(3, 20))
        choices = [
            lambda w=width, a=after: nn.Linear(w, a), lambda w=width: nn.LayerNorm(w),
            lambda w=width: nn.RMSNorm(w, eps=1e-6), lambda: nn.Softmax(-1), lambda: nn.GELU(),
            lambda: nn.SiLU(), lambda: nn.Softplus(), lambda: nn.ELU(), lambda: nn.Hardswish(),
            lambda: nn.Tanh(),
        ]  # fmt: skip
        layer = choices[int(draw.integers(len(choices)))]()
        layers.append(layer)
        width = after if isinstance(layer, nn.Linear) else width
        torch.manual_seed(int(draw.integers(1 << 30)))
    shape = (int(draw.integers(1, 5)), int(draw.integers(1, 7)))
    first = next((m for m in layers if hasattr(m, "weight")), None)
    start = first.weight.shape[-1] if first is not None else width
    return nn.Sequential(*layers).eval(), (torch.randn(*shape, start) * 10,)


@pytest.mark.parametrize("seed", range(5))
def test_random_models_have_no_faults(seed):
    model, args = random_model(seed)
    for dtype in (None, "bf16", "f16", "f64"):
        found = diff_torch(model, args, dtype=dtype)
        assert found.same, [(d.op, d.verdict, d.own) for d in found.faults]
        assert found.compared >= len(model)
