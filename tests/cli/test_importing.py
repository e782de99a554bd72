"""``opstep import``, and commands on a ``.pt2`` file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from opstep.runtime import arrays

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.second(h).log()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has net.py and model.pt2, whose result has NaNs; gives the folder."""
    import importlib.util

    path = tmp_path_factory.mktemp("models")
    (path / "net.py").write_text(MODEL)
    spec = importlib.util.spec_from_file_location("net", path / "net.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    exported = torch.export.export(
        module.Net(), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(exported, path / "model.pt2")
    return path


@pytest.fixture
def model(folder, tmp_path):
    """model.pt2 where the test stands."""
    for name in ("model.pt2", "net.py"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return "model.pt2"


def test_a_model_becomes_three_files(cli, model, tmp_path):
    outcome = cli("import", model)
    assert outcome.code == 0, outcome.err
    assert "model.opg, model.safetensors, model.example.safetensors" in outcome.err
    assert set(arrays.list_safetensors("model.safetensors")) == {
        "first.weight", "first.bias", "second.weight", "second.bias",
    }  # fmt: skip
    assert arrays.read_safetensors("model.example.safetensors")["x"].shape == (3, 4)
    assert cli("check", "model.opg").code == 0
    assert cli("fmt", "--check", "model.opg").code == 0


def test_files_that_exist_are_replaced_only_when_asked(cli, model, tmp_path):
    (tmp_path / "net.safetensors").write_bytes(b"somebody's")
    outcome = cli("import", model, "-o", "net.opg")
    assert outcome.code == 2
    assert "net.safetensors exist" in outcome.err and "--force" in outcome.err
    assert not (tmp_path / "net.opg").exists()
    assert cli("import", model, "-o", "net.opg", "--force").code == 0


@pytest.mark.parametrize("saved", [False, True])
def test_every_command_takes_it(cli, model, saved):
    if saved:
        assert cli("import", model).code == 0
    file = "model.opg" if saved else model
    run = cli("run", file, "-i", "example", "--json")
    assert run.code == 0, run.err
    assert run.json["outputs"][0]["nan"] > 0
    assert cli("run", file, "-i", "x=example", "-g", "main").code == 0
    hunt = cli("hunt", file, "-i", "example")
    assert hunt.code == 5 and "log" in hunt.out
    assert cli("plan", file, "-s", "s0=2", "--summary").code == 0
    assert cli("bench", file, "-i", "example").code == 0
    assert cli("diff", file, "-i", "example").code == 0
    debug = cli("debug", file, "-i", "example", "-ex", "break relu", "-ex", "run", "--batch")
    assert debug.code == 0, debug.err


def test_a_recorded_run_has_its_weights(cli, model):
    assert cli("import", model).code == 0
    assert cli("run", "model.opg", "-i", "example", "-w", "runs.db").code == 0
    for file in ("model.opg", "model.safetensors", "model.example.safetensors"):
        from pathlib import Path

        Path(file).unlink()
    assert cli("ws", "runs.db", "rerun", "1").code == 0


def test_inputs_that_are_missing_name_the_example(cli, model, scale):
    assert "--input example for those" in cli("run", model).err
    outcome = cli("run", scale, "-i", "example", "-s", "N=4")
    assert outcome.code == 2 and "has no example of input" in outcome.err


def test_other_params_win_over_those_beside_it(cli, model):
    cli("import", model)
    values = arrays.read_safetensors("model.safetensors")
    values = {n: np.full_like(a, 0.5) for n, a in values.items()}
    arrays.write_safetensors("other.safetensors", values)
    outcome = cli(
        "run", "model.opg", "-i", "x=1", "-s", "s0=1", "--params", "other.safetensors", "--json"
    )
    expected = float(np.log(0.5 * 8 * 2.5 + 0.5))
    assert outcome.json["outputs"][0]["values"] == [[pytest.approx(expected)] * 2]


def test_weights_of_another_model_are_refused(cli, model):
    cli("import", model)
    values = arrays.read_safetensors("model.safetensors")
    values["first.bias"] = np.zeros(3, np.float32)
    arrays.write_safetensors("model.safetensors", values)
    outcome = cli("run", "model.opg", "-i", "example")
    assert outcome.code == 2
    assert "model.safetensors: param first.bias is f32[8], not f32[3]" in outcome.err


def test_what_is_no_exported_program(cli, tmp_path):
    (tmp_path / "text.pt2").write_text("graph main() {}")
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
    for args in (
        ("import", "none.pt2"), ("import", "text.pt2"), ("run", "text.pt2", "-i", "example"),
        ("import", "whole.pt"), ("run", "whole.pt"), ("debug", "whole.pt"),
    ):  # fmt: skip
        outcome = cli(*args)
        assert outcome.code == 2
        assert args[1] in outcome.err and "internal error" not in outcome.err


def test_an_op_without_a_counterpart_has_its_line(cli, tmp_path):
    class Mask(nn.Module):
        def forward(self, x):
            return x[x > 0]

    exported = torch.export.export(Mask(), (torch.randn(3),))
    torch.export.save(exported, tmp_path / "mask.pt2")
    outcome = cli("import", "mask.pt2")
    assert outcome.code == 2
    assert f"{__file__}:" in outcome.err and "return x[x > 0]" in outcome.err
