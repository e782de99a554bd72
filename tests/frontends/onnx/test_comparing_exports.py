"""``opstep diff model.onnx --against`` the PyTorch model: a changed export is found where it is."""

from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from opstep.cli.main import main
from opstep.frontends.torch.onnx_exports import diff_exported
from opstep.runtime.ir.errors import InputError

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

NET = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        x = x + torch.softmax(scores, -1) @ v
        h = F.gelu(self.up(x))
        return x + self.drop(self.down(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList([Block(8) for _ in range(2)])
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 2).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return torch.softmax(self.head(x.mean(1)), -1)


def net():
    torch.manual_seed(4)
    made = Net()
    made.stem[1].running_mean.uniform_(-1, 1)
    made.stem[1].running_var.uniform_(0.5, 2)
    return made.eval()


number = 3
print("imported" if __name__ == "net" else "run")
"""
EXPORTERS = {"dynamo": "x", "torchscript": "image"}  # and what they call the input


def export(model, args, path, exporter, **options):
    name = EXPORTERS[exporter]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            options |= {"external_data": False, "verbose": False}
        torch.onnx.export(
            model, args, path, dynamo=exporter == "dynamo", input_names=[name], **options
        )
    return path


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """The model, its input, and a folder with what both exporters make of it."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "net.py").write_text(NET)
    from opstep.frontends.scripts.named import named

    model = named(str(folder / "net.py"), "net")()
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for exporter in EXPORTERS:
        export(model, (x,), folder / f"{exporter}.onnx", exporter)
    return model, x, folder


def nodes(model, op):
    return [n for n in model.graph.node if n.op_type == op]


def attribute(node, name):
    return next(a for a in node.attribute if a.name == name)


def weight(node, model):
    """The first weight of a node, changed in one element."""
    (tensor,) = (t for t in model.graph.initializer if t.name == node.input[1])
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] += 0.01
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def epsilon(model):
    attribute(nodes(model, "LayerNormalization")[1], "epsilon").f = 2e-5


def axis(model):
    attribute(nodes(model, "Softmax")[0], "axis").i = 1


def approximate(model):
    node = nodes(model, "Gelu")[1]
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("approximate", "tanh"))


def swapped(model):
    attribute(nodes(model, "Softmax")[1], "axis").i = -2


def operator(model):
    nodes(model, "Relu")[0].op_type = "Softplus"


FAULTS = {  # what is changed; the module, the end of the operators, and PyTorch's op
    "epsilon": (epsilon, "blocks.1.norm", "LayerNormalization", "layer_norm"),
    "axis": (axis, "blocks.0", "Softmax", "softmax"),
    "other axis": (swapped, "blocks.1", "Softmax", "softmax"),
    "approximation": (approximate, "blocks.1", "Gelu", "gelu"),
    "weight": (lambda m: weight(nodes(m, "Gemm")[0], m), "head", "Gemm", "linear"),
    "product": (lambda m: weight(nodes(m, "MatMul")[-1], m), "blocks.1.down", "Add", "linear"),
    "operator": (operator, "stem.2", "Softplus", "relu"),
}  # fmt: skip


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_right_export_is_right(exports, exporter):
    model, x, folder = exports
    found = diff_exported(folder / f"{exporter}.onnx", model, {EXPORTERS[exporter]: x.numpy()})
    assert found.same and not found.differing
    assert found.compared > 25 > found.unpaired
    (output,) = found.outputs.values()
    assert output.apart.relative < 1e-6


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_changed_is_named(exports, exporter, fault, tmp_path):
    model, x, folder = exports
    change, module, op, theirs = FAULTS[fault]
    file = onnx.load(folder / f"{exporter}.onnx")
    change(file)
    onnx.save(file, tmp_path / "changed.onnx")
    found = diff_exported(tmp_path / "changed.onnx", model, {EXPORTERS[exporter]: x.numpy()})
    (first,) = found.faults  # and nothing of what comes behind it
    assert not found.same and first is found.first and first.verdict == "export"
    assert (first.module, first.op.split(", ")[-1]) == (module, op)
    assert theirs in first.other
    assert first.file.endswith("net.py") and first.source in NET
    assert (first.weights == ("head.weight",)) == (fault == "weight")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_folded_norm_is_no_difference_and_its_convolution_is_named(exports, exporter, tmp_path):
    model, x, folder = exports
    file = onnx.load(folder / f"{exporter}.onnx")
    assert not nodes(file, "BatchNormalization")
    weight(nodes(file, "Conv")[0], file)
    onnx.save(file, tmp_path / "changed.onnx")
    found = diff_exported(tmp_path / "changed.onnx", model, {EXPORTERS[exporter]: x.numpy()})
    (first,) = found.faults
    assert first.op == "Conv" and first.module in ("stem.0", "stem.1")


def test_dropout_that_was_left_on(exports, tmp_path):
    model, x, _ = exports
    dropping = copy.deepcopy(model)
    for block in dropping.blocks:
        block.drop.train()
    path = export(dropping, (x,), tmp_path / "drop.onnx", "dynamo")
    found = diff_exported(path, model, {"x": x.numpy()})
    assert (found.first.op, found.first.module) == ("Dropout", "blocks.0.drop")
    with pytest.raises(InputError, match="draws random numbers") as raised:
        diff_exported(path, dropping, {"x": x.numpy()})
    assert "model.eval()" in str(raised.value.diagnostics[0].hint)


def test_a_norm_in_training_mode(exports, tmp_path):
    model, x, _ = exports
    training = torch.onnx.TrainingMode.TRAINING
    path = export(
        copy.deepcopy(model), (x,), tmp_path / "train.onnx", "torchscript", training=training,
        do_constant_folding=False,
    )  # fmt: skip
    found = diff_exported(path, model, {"image": x.numpy()})
    assert (found.first.op, found.first.module) == ("BatchNormalization", "stem.1")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_shorter_type_is_rounding(exports, exporter, tmp_path):
    model, x, _ = exports
    path = export(copy.deepcopy(model).half(), (x.half(),), tmp_path / "half.onnx", exporter)
    found = diff_exported(path, model, {EXPORTERS[exporter]: x.numpy()})
    assert found.same
    (output,) = found.outputs.values()
    assert 1e-5 < output.apart.relative < 1e-2


def test_what_a_shorter_type_does_not_reach(tmp_path):
    class Far(nn.Module):
        def forward(self, x):
            return torch.tanh(((x + 1) * 1000).square() / 1e6)

    x = torch.rand(3, 4)
    path = export(Far(), (x.half(),), tmp_path / "far.onnx", "dynamo")
    found = diff_exported(path, torch.export.export(Far(), (x,)), {"x": x.numpy()})
    assert found.first.verdict == "export" and "square" in found.first.other
    assert found.first.elements.unlike > 0


def test_decomposed_ops_and_functions(tmp_path):
    """What PyTorch does in one op and the file in many: all of them are named."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(2, 8)
            self.gru = nn.Linear(6, 6)

        def forward(self, x):
            y = F.silu(self.norm(x))
            y = F.scaled_dot_product_attention(y[None], y[None], y[None])[0]
            return F.log_softmax(self.gru(y), -1), y.argmax(-1)

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 8, 6)
    for exporter, name in EXPORTERS.items():
        path = export(model, (x,), tmp_path / f"{exporter}.onnx", exporter)
        assert diff_exported(path, model, {name: x.numpy()}).same
        file = onnx.load(path)
        (norm,) = (n for n in file.graph.node if n.op_type in (
            "InstanceNormalization", "GroupNormalization"))  # fmt: skip
        attribute(norm, "epsilon").f = 1e-3
        onnx.save(file, path)
        found = diff_exported(path, model, {name: x.numpy()})
        assert [d.module for d in found.faults] == ["norm"]
        assert norm.op_type in found.first.op


def test_files_whose_names_say_nothing(exports, tmp_path):
    """The outputs are compared all the same, and all that makes them is named."""
    model, x, folder = exports
    file = onnx.load(folder / "dynamo.onnx")
    made = (o for n in file.graph.node for o in n.output)
    renamed = {o: f"t{k}" for k, o in enumerate(made)}
    for k, node in enumerate(file.graph.node):
        del node.metadata_props[:]
        node.name = f"n{k}"
        for names in (node.input, node.output):
            names[:] = [renamed.get(n, n) for n in names]
    file.graph.output[0].name = renamed[file.graph.output[0].name]
    del file.graph.value_info[:]
    onnx.save(file, tmp_path / "bare.onnx")
    assert diff_exported(tmp_path / "bare.onnx", model, {"x": x.numpy()}).same
    epsilon(file)
    onnx.save(file, tmp_path / "bare.onnx")
    found = diff_exported(tmp_path / "bare.onnx", model, {"x": x.numpy()}, rtol=1e-7)
    assert not found.same and found.unpaired


def test_the_command(exports, tmp_path, monkeypatch, capsys):
    model, x, folder = exports
    monkeypatch.chdir(tmp_path)
    file = onnx.load(folder / "dynamo.onnx")
    (tmp_path / "net.py").write_text(NET)
    onnx.save(file, "net.onnx")
    assert main(["diff", "net.onnx", "--against", "net.py:net"]) == 0
    shown = capsys.readouterr().out
    assert "imported" in shown and "they agree" in shown and "have no counterpart" in shown
    epsilon(file)
    onnx.save(file, "net.onnx")
    exported = torch.export.export(model, (x,))
    torch.export.save(exported, "net.pt2")
    assert main(["diff", "net.onnx", "--against", "net.pt2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["first"]["verdict"] == "export" and found["unpaired"] > 0
    assert found["first"]["module"] == "blocks.1.norm"
    np.save("x.npy", x.numpy())
    assert main(["diff", "net.onnx", "--against", "net.py:net", "-i", "x=x.npy"]) == 1
    shown = capsys.readouterr().out
    assert "the export changed the numbers" in shown
    source = "q, k, v = self.qkv(self.norm(x)).chunk(3, -1)"
    line = NET[: NET.index(source)].count("\n") + 1
    assert f"net.py:{line}: {source}" in shown
    assert "there: aten.layer_norm.default" in shown


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("net.py", "name the model in it"),
        ("net.py:none", "has nothing called none"),
        ("net.py:number", "is a int, and no PyTorch module"),
        ("net.py:Block", "Block() fails: TypeError"),
        ("broken.py:net", "broken.py:2"),
        ("missing.py:net", "no such file"),
        ("none.pt2", "no such file"),
        ("torch", "cannot be compared with 'torch'"),
        ("small.py:net", "outputs"),
    ],
)
def test_what_cannot_be_compared(exports, tmp_path, monkeypatch, capsys, against, message):
    _, _, folder = exports
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "broken.py").write_text("import torch\nraise ValueError('no data')\n")
    small = "import torch\nclass net(torch.nn.Module):\n    def forward(self, x): return x + 1, x\n"
    (tmp_path / "small.py").write_text(small)
    code = main(["diff", str(folder / "dynamo.onnx"), "--against", against])
    assert code == 2 and message in capsys.readouterr().err
