"""Recurrent layers of PyTorch: as loops, of any length, forward and backward."""

from __future__ import annotations

import copy
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from opstep.frontends.torch import findings, recurrent  # noqa: E402
from opstep.frontends.torch.importing import from_torch  # noqa: E402
from opstep.runtime.ir.errors import InputError  # noqa: E402
from tests.frontends.torch.agreement import TOLERANCES, called, check  # noqa: E402

LAYERS = {
    "lstm": lambda: nn.LSTM(5, 4),
    "lstm deep": lambda: nn.LSTM(5, 4, 2, bidirectional=True),
    "lstm projected": lambda: nn.LSTM(5, 4, 2, proj_size=3, bias=False, bidirectional=True),
    "gru": lambda: nn.GRU(5, 4, bias=False),
    "gru deep": lambda: nn.GRU(5, 4, 2, bidirectional=True),
    "tanh": lambda: nn.RNN(5, 4, bidirectional=True),
    "relu": lambda: nn.RNN(5, 4, 2, nonlinearity="relu", bias=False),
}
EVERY_DTYPE = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
TIME = torch.export.Dim("time")
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")


@pytest.fixture(autouse=True)
def recurrent_layers_are_compiled():
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.mark.parametrize("layer", LAYERS)
def test_imported_for_any_length(layer):
    torch.manual_seed(0)
    longer, one = torch.randn(9, 2, 5), torch.randn(1, 2, 5)
    check(LAYERS[layer]().eval(), torch.randn(4, 2, 5), also=[(longer,), (one,)],
          dynamic_shapes=({0: TIME},))  # fmt: skip


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_imported_in_each_element_type(dtype):
    torch.manual_seed(0)
    for layer in (nn.LSTM(5, 4, batch_first=True), nn.GRU(5, 4, batch_first=True)):
        check(layer.to(dtype).eval(), torch.randn(2, 6, 5, dtype=dtype))


def text(layer, length):
    program = from_torch(layer.eval(), (torch.zeros(length, 2, 5),))
    return {name: called(graph) for name, graph in program.graphs.items()}


def test_one_cell_whatever_the_length():
    found = text(nn.LSTM(5, 4), 3)
    assert found == text(nn.LSTM(5, 4), 300)
    assert found["lstm"] == ["linear", "zeros", "while"]
    assert found["lstm_turn"].count("linear") == 1


def test_the_text_is_that_of_the_guide(tmp_path):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(6, 8, bidirectional=True)

        def forward(self, x):
            return self.lstm(x)[0]

    program = from_torch(Tagger(), (torch.zeros(5, 2, 6),), dynamic_shapes=({0: TIME},))
    path = program.save(tmp_path / "tagger.opg")[0]
    guide = (Path(__file__).parents[3] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```opg\n(graph lstm.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert re.sub(r" +# .*", "", shown) in Path(path).read_text(encoding="utf-8")


def test_layers_of_one_size_are_one_loop():
    found = text(nn.LSTM(5, 4, 3), 7)
    assert found["LSTM" if "LSTM" in found else "main"].count("lstm_2") == 2
    assert [n for n in found if n.startswith("lstm_turn")] == ["lstm_turn"]


def test_a_model_that_needs_decompositions_stays_open():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(5, 4)

        def forward(self, x):
            y, _ = self.layer(x)
            y[0] = 1.0  # in place: PyTorch traces the graph again
            return y.logit(0.1)

    torch.manual_seed(0)
    check(Model(), torch.randn(4, 2, 5), also=[(torch.randn(7, 2, 5),)],
          dynamic_shapes=({0: TIME},))  # fmt: skip


def test_gradient_of_an_imported_layer():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(5, 4, bidirectional=True)

        def forward(self, x):
            return self.layer(x)[0].square().mean()

    torch.manual_seed(0)
    model, x = Loss().double(), torch.randn(6, 2, 5, dtype=torch.float64)
    program = from_torch(model, (x,)).with_grad("main", ["*"])
    _, *found = program.run("main_grad", {"x": x.numpy()}).values()
    model(x).backward()
    for ours, param in zip(found, model.parameters(), strict=True):
        assert param.grad is not None
        np.testing.assert_allclose(ours, param.grad.numpy(), rtol=0, atol=1e-14)


def gradients(model, function, x, *states):
    """The results, then the derivatives by the inputs and the params of a sum of them all."""
    given = [t.clone().requires_grad_() for t in (x, *states)]
    state = given[1:] if len(given) != 2 else given[1]
    found = torch.utils._pytree.tree_leaves(function(given[0], state or None))
    total = sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t)).sum()
                for t in found)  # fmt: skip
    by = [*given, *model.parameters()]
    return [*found, *torch.autograd.grad(total, by)]


def assert_agree(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert (a - b).abs().max() <= TOLERANCES[a.dtype] * b.abs().max()


@pytest.mark.parametrize("layer", LAYERS)
def test_compiled_forward_and_backward(layer, compiled, programs):
    model, x = LAYERS[layer](), torch.randn(4, 2, 5)
    assert_agree(gradients(model, compiled(model), x), gradients(model, model, x))
    for name in ("forward", "backward"):
        assert any("while" in called(g) for g in programs[name].graphs.values())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_compiled_in_each_element_type(dtype, compiled):
    model, x = nn.LSTM(5, 4, 2).to(dtype), torch.randn(4, 2, 5, dtype=dtype)
    states = [torch.randn(2, 2, 4, dtype=dtype) for _ in range(2)]
    found = gradients(model, compiled(model), x, *states)
    assert_agree(found, gradients(model, model, x, *states))


def test_compiled_without_gradients_keeps_nothing(compiled, programs):
    model, x = nn.LSTM(5, 4), torch.randn(4, 2, 5)
    with torch.no_grad():
        assert_agree(compiled(model)(x)[1], model(x)[1])
    assert len(programs["inference"].graphs["lstm"].results) == 3


@pytest.mark.slow
def test_compiled_once_for_all_lengths(compiled, programs):
    model = nn.GRU(5, 4)
    run = compiled(model, dynamic=True)
    for length in (3, 8, 5):
        x = torch.randn(length, 2, 5)
        assert_agree(gradients(model, run, x), gradients(model, model, x))
    assert all(p is not None for p in programs.values())


def test_a_sequence_without_a_batch(compiled):
    model, x = nn.LSTM(5, 4), torch.randn(6, 5)
    assert_agree(gradients(model, compiled(model), x), gradients(model, model, x))


def test_autocast_computes_the_layer_in_its_type(compiled):
    model, x = nn.LSTM(5, 4), torch.randn(4, 2, 5)
    with torch.no_grad():
        wanted = model(x)[0]  # in f32: not on every processor PyTorch has the layer in bf16
        with torch.autocast("cpu", torch.bfloat16):
            found = compiled(model)(x)[0]
    assert found.dtype == torch.bfloat16
    assert (found.float() - wanted).abs().max() < 0.03


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("backwards", [False, True])
def test_kernels_for_graphs_that_pytorch_runs(cell, backwards):
    torch.manual_seed(0)
    n = recurrent.GATES[cell] * 4
    shapes = [(3, 2, 5), (2, 4), (2, 4), (n, 5), (n, 4), (n,), (n,)]
    x, h, c, *weights = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    states = [h, c] if cell == "lstm" else [h]
    series = x.flip(0) if backwards else x
    stacked = [s[None] for s in states] if cell == "lstm" else h[None]
    y, *ends = getattr(torch, cell)(series, stacked, weights, True, 1, 0.0, True, False, False)
    theirs = [y.flip(0) if backwards else y, *(e[0] for e in ends)]
    op = torch.ops.opstep.recurrent
    ours = op(cell, x, h, c if cell == "lstm" else None, *weights, None, backwards)[: len(theirs)]
    by = [x, *states, *weights]
    results = [torch.autograd.grad(sum(t.cos().sum() for t in found), by)
               for found in (ours, theirs)]  # fmt: skip
    assert_agree([*ours, *results[0]], [*theirs, *results[1]])


def test_the_stack_has_the_turn(tmp_path):
    program = from_torch(nn.LSTM(5, 4).eval(), (torch.randn(4, 2, 5),))
    path = program.save(tmp_path / "layer.opg")[0]
    shown = debugged(path, "break lstm_turn", "run", "continue", "continue", "bt")
    assert "* #0  lstm_turn [i=2]" in shown and "LSTM.forward at" in shown


LABELLING = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(5, 4, 2), nn.GRU(4, 3)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, state = self.gru(y)
        w, pair = self.lstm(x + 1)
        return z.sum() + h.sum() + c.sum() + state.sum() + pair[0].sum() + w.sum()
"""


def test_values_have_the_names_in_pythons_tuples(tmp_path, monkeypatch):
    (tmp_path / "labelling.py").write_text(LABELLING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    program = from_torch(importlib.import_module("labelling").Net(), (torch.ones(3, 2, 5),))
    path = program.save(tmp_path / "net.opg")[0]
    text = Path(path).read_text(encoding="utf-8")
    assert "  y, h, c = LSTM(" in text and "  w, " in text
    assert " pair" not in text  # a tuple, which is no tensor
    commands = ["break labelling.py:12", "run", "info locals", "print sum(h)"]
    shown = debugged(path, *commands)
    for name, shape in (("h", "2, 2, 4"), ("c", "2, 2, 4")):
        assert f"\n{name} = f32[{shape}]" in shown
    assert "not known here: x, y, z, state\n" in shown  # the file does not say what is in place


def debugged(path, *commands):
    given = [word for c in commands for word in ("-ex", c)]
    words = [sys.executable, "-m", "opstep", "debug", path, "--input", "example", *given, "--batch"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120).stdout


class Diverging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.RNN(5, 4, nonlinearity="relu")
        torch.nn.init.constant_(self.layer.weight_hh_l0, 1e38)
        torch.nn.init.constant_(self.layer.weight_ih_l0, 1.0)

    def forward(self, x):
        return self.layer(x)[0]  # line of the hunt


def test_a_hunt_names_the_turn_and_the_line_of_the_model(compiled):
    findings.clear()
    with pytest.warns(UserWarning, match="born"):
        compiled(Diverging(), hunt=True)(torch.ones(5, 1, 5)).sum().backward()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = 1 + next(k for k, line in enumerate(lines) if line.endswith("# line of the hunt"))
    assert "infinity born in linear r at rnn_relu_turn [i=1]" in str(findings[0])
    assert f"test_recurrent.py:{number}: overflow" in str(findings[0])
    findings.clear()


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(5, 4)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=True)
        return self.layer(packed)[0].data


def test_packed_sequences_are_refused_by_name():
    x, lengths = torch.randn(4, 2, 5), torch.tensor([4, 2])
    with pytest.raises(InputError) as refused:
        from_torch(Packed().eval(), (x, lengths))
    assert "packed sequences have no counterpart" in str(refused.value)
    assert "self.layer(packed)" in str(refused.value)


def test_patches_are_taken_back():
    op, table = torch.ops.aten.gru.input, torch._decomp.decomposition_table
    kernels, definition = copy.copy(op.py_kernels), table[op]
    with recurrent.whole_layers():
        assert op.py_kernels != kernels and table[op] is not definition
    assert op.py_kernels == kernels and table[op] is definition
