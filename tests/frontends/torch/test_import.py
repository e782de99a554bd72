"""`from_torch`: what it computes, how the program reads, and files."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import plain
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import sym_or

import opstep
from opstep.api.origins import locate
from opstep.frontends.torch.size_texts import is_size
from opstep.runtime.ir.printer import print_module

BATCH = Dim("batch")


def made(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.3)
    return model.eval()


def text_of(program: opstep.Program) -> str:
    return print_module(program.module)


def assert_equal(program: opstep.Program, model: nn.Module, args=(), kwargs=None, inputs=None):
    """The program gives what the model gives."""
    ours = program.run("main", inputs).outputs
    with torch.no_grad():
        theirs = torch.utils._pytree.tree_leaves(copy.deepcopy(model)(*args, **(kwargs or {})))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5, atol=1e-5)


# --- what it computes -----------------------------------------------------------------------------

MODELS = {
    "mlp": (plain.mlp, lambda: (torch.randn(4, 6),), ({0: BATCH},), {0: 7}),
    "transformer": (
        plain.Transformer, lambda: (torch.randint(0, 50, (2, 9)),),
        ({0: BATCH, 1: Dim("length", max=64)},), {0: 3, 1: 5},
    ),
    "unet": (plain.UNet, plain.image, ({0: BATCH},), {0: 3}),
    "tagger": (plain.Tagger, plain.words, ({0: BATCH},), {0: 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_as_eager_does_at_several_sizes(name):
    make, example, dims, other = MODELS[name]
    model, args = made(make()), example()
    assert_equal(opstep.from_torch(model, args), model, args)
    program = opstep.from_torch(model, args, dynamic_shapes=dims)
    (binding,) = program.graphs["main"].inputs
    for sizes in ({}, other):
        shape = [sizes.get(k, n) for k, n in enumerate(args[0].shape)]
        x = (
            torch.ones(shape, dtype=args[0].dtype) * 0.5
            if name == "unet"
            else torch.zeros(shape, dtype=args[0].dtype)
        )
        assert_equal(program, model, (x,), inputs={binding.name.text: x})


def test_buffers_that_the_model_updates_are_states():
    model = made(plain.Counter()).train()
    x = torch.randn(5, 4)
    program = opstep.from_torch(copy.deepcopy(model), (x,))
    assert_equal(program, model, (x,))
    model(x)
    assert program.params["seen"] == model.seen == 5
    np.testing.assert_allclose(
        program.params["norm.running_var"], model.norm.running_var, rtol=1e-6
    )
    assert "state seen: i64[]" in text_of(program)


def test_arguments_by_name_nested_and_numbers():
    model = plain.Mixed()
    pair = {"a": torch.randn(3), "b": torch.randn(3)}
    kwargs = {"scale": torch.tensor(2.0), "mask": torch.tensor([True, False, False])}
    program = opstep.from_torch(model, (pair,), kwargs)
    assert_equal(program, model, (pair,), kwargs)
    assert list(program.example) == ["pair_a", "pair_b", "scale", "mask"]


def test_names_that_are_taken_or_words_of_the_language():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.add_module("größe-1", nn.Linear(2, 2))

        def forward(self, graph, batch, weight=None):
            graph = self.get_submodule("größe-1")(graph * batch)
            return {"return": graph * self.weight * weight}

    model, args = made(Odd()), (torch.randn(3, 2), torch.randn(2))
    kwargs = {"weight": torch.randn(2)}
    program = opstep.from_torch(model, args, kwargs, dynamic_shapes=({0: BATCH}, None, None))
    assert_equal(program, model, args, kwargs)
    assert list(program.example) == [b.name.text for b in program.graphs["main"].inputs]
    assert "größe-1.weight" in program.params


def test_arguments_by_name_in_another_order():
    class Three(nn.Module):
        def forward(self, a, *, b, c):
            return a - 2 * b - 3 * c

    kwargs = {"c": torch.randn(2), "b": torch.randn(2)}
    args = (torch.randn(2),)
    program = opstep.from_torch(Three(), args, kwargs)
    assert_equal(program, Three(), args, kwargs)
    np.testing.assert_array_equal(program.example["c"], kwargs["c"])


def test_an_input_that_the_model_changes_is_a_result_more():
    class Doubling(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x + 1

    result = opstep.from_torch(Doubling(), (torch.ones(2),)).run()
    assert {n: list(a) for n, a in result.items()} == {"output": [3, 3], "x_updated": [2, 2]}


def test_bf16():
    model, x = made(plain.mlp()).bfloat16(), torch.randn(4, 6).bfloat16()
    (ours,) = opstep.from_torch(model, (x,)).run().outputs
    wanted = copy.deepcopy(model).double()(x.double()).detach().numpy()
    eager = np.abs(model(x).double().detach().numpy() - wanted).max()
    assert np.abs(ours.astype(np.float64) - wanted).max() <= 2 * eager


def test_gradients_are_those_of_autograd():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = plain.mlp()

        def forward(self, x, y):
            return nn.functional.mse_loss(self.net(x), y)

    model, args = made(Loss()), (torch.randn(4, 6), torch.randn(4, 3))
    program = opstep.from_torch(model, args).with_grad("main", ["net.0.weight"])
    found = program.run("main_grad").outputs[1]
    model(*args).backward()
    np.testing.assert_allclose(found, model.net[0].weight.grad, rtol=1e-4, atol=1e-6)


# --- how the program reads ------------------------------------------------------------------------


def test_a_sequential_model_reads_like_its_source():
    program = opstep.from_torch(made(plain.mlp()), (torch.randn(2, 6),))
    text = text_of(program)
    assert text.startswith("param `0.weight`: f32[16, 6]\nparam `0.bias`: f32[16]\n")
    assert "linear(input, `0.weight`, `0.bias`)" in text
    assert sorted(program.params) == ["0.bias", "0.weight", "3.bias", "3.weight"]


def test_modules_are_graphs_and_alike_ones_one():
    model = made(plain.Transformer())
    ids = torch.randint(0, 50, (2, 9))
    program = opstep.from_torch(model, (ids,), dynamic_shapes=({0: BATCH, 1: Dim("length")},))
    assert list(program.graphs) == ["main", "Block", "Attention"]
    text = text_of(program)
    assert (
        "# plain.Transformer\ngraph main(ids: i64[batch, length]) -> f32[batch, length, 50]" in text
    )
    assert text.count("= Block(") == 3
    assert "query, key, value = " in text
    for line in text.splitlines():
        assert " at " not in line or "plain.py" in line


def test_statements_have_the_line_and_the_module_they_come_from():
    model = made(plain.Transformer())
    program = opstep.from_torch(model, (torch.randint(0, 50, (2, 9)),))
    lines = Path(plain.__file__).read_text().splitlines()
    for graph in program.graphs.values():
        for statement in graph.body:
            if statement.at is not None:
                assert statement.at.file == plain.__file__
    attention = program.graphs["Attention"].body
    wanted = {"split": "return x.view(", "out": "return self.out("}
    found = {lines[s.at.line - 1].strip()[:14] for s in attention if s.at}
    assert {w[:14] for w in wanted.values()} <= found
    split = next(s for s in attention if s.at and "x.view(" in lines[s.at.line - 1])
    assert len(split.at.frames) == 2  # split, called from forward
    assert any(s.at and s.at.module == "qkv" for s in attention)


def test_results_of_a_call_are_called_as_where_they_are_made():
    class Inner(nn.Module):
        def forward(self, x):
            early = x * 2
            late = torch.relu(early + 1)
            return late, early

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            first, second = self.inner(x)  # the order in which they are made is another
            return first - second

    text = text_of(opstep.from_torch(Outer(), (torch.randn(3),)))
    assert "early, late = Inner(x)" in text
    assert "sub(late, early)" in text


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        y = x
        for k in (2, 3):
            y = torch.relu(y @ x + k + 1)
        for layer in self.layers:
            x = layer(x) + x
        z = x + y + x
        return z * 2


def test_each_turn_of_a_loop_on_one_line_makes_its_variable():
    program = opstep.from_torch(Loops(), (torch.randn(4, 4),))
    names = [s.results[0].name.text for s in program.graph("main").body[:-1]]
    assert [n for n in names if n[0] in "xyz"] == ["y", "y_2", "x_2", "x_3", "z"]


def test_inputs_of_a_graph_are_those_of_forward():
    text = text_of(opstep.from_torch(plain.Weighted(), (torch.randn(3),)))
    assert "graph Mean(states: f32[3], mask: f32[3])" in text
    assert "count = sum(mask)" in text


def test_reshapes_of_one_line_are_one():
    class Twice(nn.Module):
        def forward(self, x):
            return x[:, None, :, None] + x.unsqueeze(0).unsqueeze(-1)

    text = text_of(opstep.from_torch(Twice(), (torch.randn(3, 3),)))
    assert text.count("reshape(") == 2


# --- sizes ----------------------------------------------------------------------------------------


def test_a_size_that_the_model_was_not_exported_for_is_refused():
    class Small(nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] <= 5 else x - 1

    program = opstep.from_torch(Small(), (torch.ones(3),), dynamic_shapes=({0: Dim.AUTO},))
    assert list(program.run(None, {"x": np.ones(4, np.float32)}).outputs[0]) == [2] * 4
    with pytest.raises(opstep.OpstepError, match="exported for s0 <= 5"):
        program.run(None, {"x": np.ones(6, np.float32)})


def test_a_condition_on_sizes_is_kept():
    class Thirds(nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] % 3 == 0 else x - 1

    program = opstep.from_torch(Thirds(), (torch.ones(6),), dynamic_shapes=({0: Dim.AUTO},))
    assert program.run(None, {"x": np.ones(9, np.float32)}).outputs[0][0] == 2
    with pytest.raises(opstep.OpstepError, match="exported for"):
        program.run(None, {"x": np.ones(7, np.float32)})


def test_conditions_are_kept_whatever_joins_them():
    class Joined(nn.Module):
        def forward(self, x, y):
            n, m = x.shape[0], y.shape[0]
            torch._check(sym_or(n >= 2 * m, n % 5 == 0))
            if torch.sym_max(n, m) < 12 and not sym_or(n == m, n == m + 1):
                return x[None] + x[:, None, None]  # reshapes that are merged, before the asserts
            return x

    auto = ({0: Dim.AUTO}, {0: Dim.AUTO})
    program = opstep.from_torch(Joined(), (torch.ones(6), torch.ones(3)), dynamic_shapes=auto)

    def run(n: int, m: int):
        inputs = {"x": np.ones(n, np.float32), "y": np.ones(m, np.float32)}
        return program.run(None, inputs).outputs[0].shape

    assert run(9, 4) == (9, 1, 9)
    for sizes in ((7, 4), (16, 8)):
        with pytest.raises(opstep.OpstepError, match="exported for"):
            run(*sizes)


def test_the_smaller_of_two_sizes_is_a_size_where_it_is_known():
    class Limited(nn.Module):
        def forward(self, x):
            return x.new_ones(torch.sym_min(x.shape[0], 64), torch.sym_max(0, 2 - x.shape[0]))

    shapes = ({0: Dim("n", max=60)},)
    program = opstep.from_torch(Limited(), (torch.ones(6),), dynamic_shapes=shapes)
    assert program.run(None, {"x": np.ones(9, np.float32)}).outputs[0].shape == (9, 0)


def test_dims_name_symbols_wherever_they_stand():
    class Two(nn.Module):
        def forward(self, x, y):
            return x.sum() + y

    args = (torch.ones(3), torch.ones(4))
    shapes = {"y": {0: Dim("width")}, "x": {0: Dim("height")}}
    program = opstep.from_torch(Two(), args, dynamic_shapes=shapes)
    assert [str(b.type) for b in program.graphs["main"].inputs] == ["f32[height]", "f32[width]"]


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path):
    """A model's ``.pt2``, and what eager gives for its example."""
    model, x = made(plain.mlp()), torch.randn(4, 6)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    return tmp_path / "model.pt2", model(x).detach().numpy()


def test_an_exported_file_is_loaded_saved_and_loaded_again(exported, tmp_path):
    path, wanted = exported
    program = opstep.load(path)
    np.testing.assert_allclose(program.run().outputs[0], wanted, rtol=1e-6)
    files = program.save(tmp_path / "net.opg")
    assert [f.name for f in files] == ["net.opg", "net.safetensors", "net.example.safetensors"]
    again = opstep.load(tmp_path / "net.opg")
    np.testing.assert_array_equal(again.run().outputs[0], program.run().outputs[0])
    np.testing.assert_array_equal(again.example["input"], program.example["input"])


def test_saved_lines_are_relative_to_the_program_and_found_again(tmp_path):
    program = opstep.from_torch(made(plain.Transformer()), (torch.randint(0, 50, (2, 9)),))
    program.save(tmp_path / "net.opg")
    statement = opstep.load(tmp_path / "net.opg").graphs["Attention"].body[0]
    assert not Path(statement.at.file).is_absolute()
    assert locate(statement.at.file, str(tmp_path)) == plain.__file__
    assert locate("torch/nn/modules/linear.py", str(tmp_path)) == nn.modules.linear.__file__
    assert locate("no_such_file.py", str(tmp_path)) is None


def test_trained_values_are_saved_and_win_over_initialisers(tmp_path):
    program = opstep.loads("param w: f32[2] = zeros()\ngraph main() -> f32[2] {\n  return w\n}\n")
    program.params["w"] = [1.0, 2.0]
    program.save(tmp_path / "net.opg")
    assert list(opstep.load(tmp_path / "net.opg").run().outputs[0]) == [1, 2]


def test_a_tensor_that_no_file_holds_is_named(exported, tmp_path):
    opstep.load(exported[0]).save(tmp_path / "net.opg")
    text = (tmp_path / "net.opg").read_text()
    (tmp_path / "net.opg").write_text(
        "param more: f32[2]\n" + text.replace("{\n", "{\n  m = neg(more)\n", 1)
    )
    with pytest.raises(
        opstep.OpstepError, match=r"more: f32\[2\] has no value, and .*net.safetensors"
    ):
        opstep.load(tmp_path / "net.opg").run()


def changed(path: Path, member: str, data: bytes) -> Path:
    """A copy of an archive with one file in it changed or added."""
    target = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if not name.endswith(member):
                new.writestr(name, old.read(name))
        new.writestr(f"model/{member}", data)
    return target


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def pickled() -> bytes:
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    return buffer.getvalue()


def test_a_file_that_brings_code_is_refused_and_runs_nothing(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, _ = exported
    size = {"as_expr": {"expr_str": "__import__('pathlib').Path('ran').touch()", "hint": None}}
    with zipfile.ZipFile(path) as archive:
        graph = json.loads(archive.read("model/models/model.json"))
    graph["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] = size
    files = {
        "data/sample_inputs/model.pt": pickled(),
        "data/weights/model.pt": pickled(),
        "data/aotinductor/model/run.so": b"\x7fELF",
        "models/model.json": json.dumps(graph).encode(),
    }
    for member, data in files.items():
        with pytest.raises(opstep.OpstepError) as caught:
            opstep.load(changed(path, member, data))
        assert "changed.pt2" in str(caught.value)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "target", ["torch.hub.load_state_dict_from_url", "torch.ops.load_library.__call__", "os.system"]
)
def test_a_graph_that_calls_anything_but_ops_is_refused(exported, target):
    path, _ = exported
    with zipfile.ZipFile(path) as archive:
        text = archive.read("model/models/model.json").decode()
    evil = changed(
        path, "models/model.json", text.replace("torch.ops.aten.relu.default", target).encode()
    )
    with pytest.raises(opstep.OpstepError):
        opstep.load(evil)


def test_a_newer_format_is_said_to_be_one(exported):
    path, _ = exported
    with zipfile.ZipFile(path) as archive:
        content = json.loads(archive.read("model/models/model.json"))
    content["schema_version"]["major"] += 1
    newer = changed(path, "models/model.json", json.dumps(content).encode())
    with pytest.raises(opstep.OpstepError, match="a newer version of PyTorch than"):
        opstep.load(newer)


def test_damaged_files_have_one_message(exported, tmp_path):
    path, _ = exported
    data = path.read_bytes()
    (tmp_path / "cut.pt2").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.pt2").write_text("graph main() {}")
    (tmp_path / "empty.pt2").write_bytes(b"")
    torch.save(plain.mlp().state_dict(), tmp_path / "state.pt2")
    newer = changed(path, "archive_version", b"9")
    for file in ("cut.pt2", "text.pt2", "empty.pt2", "state.pt2", "none.pt2", newer.name):
        with pytest.raises(opstep.OpstepError, match=file):
            opstep.load(tmp_path / file)
    torch.save(plain.mlp(), tmp_path / "whole.pt")
    with pytest.raises(opstep.OpstepError, match="pickles, which are never read"):
        opstep.load(tmp_path / "whole.pt")


@pytest.mark.parametrize(
    "text, fits",
    [
        ("Symbol('s77', positive=True, integer=True)", True),
        ("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))", True),
        ("FloorDiv(Pow(Symbol('s0'), Integer(2)), Integer(3))", True),
        ("Pow(Symbol('s0'), Rational(1, 2))", True),
        ("2*s0**2 - 3", True),
        ("Integer(9)**Integer(9)**Integer(9)**Integer(9)", False),
        ("Pow(Integer(9), Pow(Integer(9), Integer(9)))", False),
        ("Pow(Pow(Pow(Integer(9), Integer(64)), Integer(64)), Integer(64))", False),
        ("LShift(Integer(1), Integer(1000000000))", False),
        ("PowByNatural(Integer(9), Symbol('s0'))", False),
        (f"Max({', '.join(f's{n}' for n in range(300))})", False),
        ("factorial(Integer(1000000))", False),
        ("FloorToInt(Float('1e99999999999'))", False),
        ("(" * 100_000, False),
        ("s0.func", False),
    ],
)
def test_what_sympy_is_let_evaluate(text, fits):
    assert is_size(text) is fits


def test_an_archive_of_more_than_its_file_is_not_read(exported, tmp_path):
    path, _ = exported
    target = tmp_path / "large.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + bytes((1 << 25) * name.endswith("weight_0")))
        new.writestr("model/extra/more", bytes(1 << 25))
    with pytest.raises(opstep.OpstepError, match="more than fit in a file of"):
        opstep.load(target)
