"""`opstep diff --against`: a PyTorch model beside PyTorch."""

from __future__ import annotations

from functools import partial
from importlib import metadata

import numpy as np
import pytest

import opstep

torch = pytest.importorskip("torch")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x):
        h = self.layer(x)
        h = torch.nn.functional.gelu(h)
        return h.exp()


LINE = Model.forward.__code__.co_firstlineno + 2  # of gelu


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(2)
    dims = {"x": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(Model().eval(), (torch.randn(5, 8),), dynamic_shapes=dims)
    torch.export.save(exported, tmp_path / "model.pt2")


@pytest.fixture
def wrong_gelu(monkeypatch):
    from opstep.frontends.torch.rules import all_rules
    from opstep.frontends.torch.rules.registry import RULES

    all_rules()
    monkeypatch.setitem(RULES, "gelu.default", lambda b, x, **_: b.relu(x))


@pytest.mark.usefixtures("model")
def test_a_model_that_agrees(cli):
    outcome = cli("diff", "model.pt2", "--against", "torch")
    lines = outcome.out.splitlines()
    assert outcome.code == 0 and outcome.err == ""
    assert lines[:2] == ["a: opstep; b: torch", "they agree, 3 results of ops compared"]
    assert lines[2].split() == ["apart", "a", "to", "f64", "b", "to", "f64"]
    assert lines[3].split()[0] == "output" and len(lines) == 4
    told = cli("diff", "model.pt2", "--against", "torch", "--json").json
    assert told["same"] and told["first"] is None and told["compared"] == 3
    assert told["outputs"]["output"]["a"]["relative"] < 1e-6


@pytest.mark.usefixtures("model", "wrong_gelu")
def test_a_wrong_op(cli):
    outcome = cli("diff", "model.pt2", "--against", "torch")
    assert outcome.code == 1
    for words in (
        "a has a fault, 3 results of ops compared",
        "first: aten.gelu.default gives f32[5, 4] (main/", "here: h_2 = relu(h)",
        f"test_diff_torch.py:{LINE}: h = torch.nn.functional.gelu(h)", "of 20 elements differ",
        "first, at [", "units in the last place", "from f64 on the same operands: a: ",
        "times what rounding makes; b: ", "a is wrong",
    ):  # fmt: skip
        assert words in outcome.out, outcome.out
    assert "more faults" not in outcome.out
    told = cli("diff", "model.pt2", "--against", "torch", "--json").json
    first = told["first"]
    assert not told["same"] and told["differing"] == 2 and len(told["ops"]) == 2
    assert (first["op"], first["verdict"], first["line"]) == ("aten.gelu.default", "a", LINE)
    assert first["own"]["a"]["excess"] > 100 > 1 > first["own"]["b"]["excess"]
    assert told["ops"][1]["verdict"] == "rounding" and told["ops"][1]["through"] == "gelu"


@pytest.mark.usefixtures("model")
def test_another_type_and_other_inputs(cli):
    outcome = cli("diff", "model.pt2", "--dtype", "bf16", "--rtol", 1e-4)
    assert outcome.code == 0 and outcome.out.startswith("a: opstep, bf16; b: torch\n")
    for words in ("only rounding is between them", "layer.weight, an operand, is", "most is added"):
        assert words in outcome.out, outcome.out
    np.save("x.npy", np.ones((3, 8), "f4"))
    sized = cli("diff", "model.pt2", "--against", "torch", "-i", "x=x.npy", "--json")
    assert sized.json["same"] and sized.json["outputs"]["output"]["apart"]["size"] == 12
    assert cli("diff", "model.pt2", "--against", "torch", "--a", "debug,threads=1").code == 0


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.pt2", "model.pt2"], "take one PyTorch model"),
        (["model.opg"], "torch.export.save"),
        (["none.pt2"], "none.pt2: there is no such file"),
        (["model.pt2", "--steps", 2], "--steps does not fit --against"),
        (["model.pt2", "--b", "debug"], "--b does not fit --against"),
        (["model.pt2", "--dtype", "bf17"], "did you mean bf16"),
        (["model.pt2", "-i", "y=random"], "has no input y"),
        (["model.pt2", "-s", "q=3"], "has no dimension q"),
    ],
)
def test_what_does_not_fit(cli, arguments, words):
    outcome = cli("diff", *arguments, "--against", "torch")
    assert outcome.code == 2 and words in outcome.err, outcome.err


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("against", ["torch", "inductor"])
def test_it_is_kept_as_two_runs(cli, against, monkeypatch):
    if against == "inductor":  # which needs a C++ compiler: its values are those of eager mode
        compiled = partial(torch.compile, backend="eager")
        monkeypatch.setattr(torch, "compile", lambda f, backend, **options: compiled(f, **options))
    outcome = cli("diff", "model.pt2", "--against", against, "-w", "runs.db")
    assert outcome.code == 0
    with opstep.Workspace("runs.db") as workspace:
        ours, theirs = workspace.runs
        assert f"opstep ws runs.db compare {ours.key} {theirs.key} --rtol 1e-5" in outcome.err
        assert (ours.device, theirs.device, theirs.steps) == ("cpu", against, 1)
        sites = [{s.site for s in run.stats() if s.op >= 0} for run in (ours, theirs)]
        assert sites[1] and sites[1] <= sites[0]
        found = workspace.compare(ours.key, theirs.key, 1e-4)
        assert found.first is None or against == "inductor"
        outputs = [{t.name for t in workspace.tensors(kind="output") if t.key == r.key}
                   for r in (ours, theirs)]  # fmt: skip
        assert outputs[0] == outputs[1] != set()
    summary = cli("ws", "runs.db").out
    assert f"compare {ours.key} {theirs.key} --rtol 1e-5  #" in summary
    assert f"rerun {ours.key}  #" in summary and f"rerun {theirs.key}" not in summary
    assert cli("ws", "runs.db", "rerun", ours.key).code == 0
    if against == "torch":  # the command that it tells says what it said
        words = outcome.err.partition(": opstep ")[2].split()
        assert cli(*words).code == 0 and cli(*words[:-2]).code == 1
    told = cli("diff", "model.pt2", "--against", against, "-w", "runs.db", "--json").json
    assert len(told["runs"]) == 2 and not {ours.key, theirs.key} & set(told["runs"])


@pytest.mark.usefixtures("model")
def test_what_there_is_nothing_of(cli, monkeypatch):
    assert "nothing to compare with" in cli("diff", "model.pt2", "--against", "jax").err
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    outcome = cli("diff", "model.pt2", "--against", "torch:cuda")
    assert outcome.code == 3 and "torch:cuda: PyTorch finds no GPU here" in outcome.err
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "no such device" in cli("diff", "model.pt2", "--against", "torch:cuda:63").err

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    outcome = cli("diff", "model.pt2", "--against", "torch")
    assert outcome.code == 2 and "pip install 'opstep[torch]'" in outcome.err
