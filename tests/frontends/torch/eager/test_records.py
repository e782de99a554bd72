"""Records of scripts in eager PyTorch: what a workspace and a timeline have of their ops."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from cli.conftest import cli, script  # noqa: F401 - fixtures

import opstep
from opstep.cli.main import main

torch = pytest.importorskip("torch")

from opstep.frontends.torch.eager import native  # noqa: E402

pytestmark = pytest.mark.usefixtures("threads_of_pytorch")

TRAIN = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.last = torch.nn.Linear(8, 1)
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.last(hidden)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x, y = torch.randn(16, 4), torch.randn(16, 1)
total = 0.0
for k in range(5):
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    total += loss.item()
    print(f"{k}: {loss:.6f}")
with torch.no_grad():
    share = (net(x) > 0).float().mean().item()
print(total, share)
"""
LOG = """
import torch
w = torch.nn.Parameter(torch.tensor([1.25, 2.25]))
optimizer = torch.optim.SGD([w], 1.0)
for k in range(8):
    optimizer.zero_grad()
    shifted = w - 0.5 * k
    root = torch.sqrt(shifted)
    loss = root.sum() * 0.0
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.fixture
def threads_of_pytorch():
    """A script may set them."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recorded(cli, script):  # noqa: F811 - fixtures
    """Runs a script with these options; gives the run, and what the command did."""

    def record(text: str, *options: object, verb: str = "run"):
        outcome = cli(verb, "-w", "runs.db", *options, script(text))
        return opstep.Workspace("runs.db").run("last"), outcome

    return record


def test_ops_are_named_by_line_module_and_phase(recorded):
    run, outcome = recorded(TRAIN)
    assert outcome.code == 0
    assert (run.name, run.file, run.status) == ("train.py", os.path.abspath("train.py"), "done")
    sites = {op.site: op for op in run.ops}
    relu = sites["forward/Net/train.py:11 relu"]
    assert (relu.line, relu.statement) == (11, "hidden = torch.relu(self.first(x))")
    ran = Counter(e.op for e in run.executions())
    assert ran[relu.op] == 6  # with the one after the last step
    assert sites["backward/last/train.py:12 mm"].line == 12
    assert sites["backward/Net/train.py:11 threshold_backward"].line == 11
    assert ran[sites["update/train.py:21 add_"].op] == 5 * 4  # parameters
    assert len(sites) == len(run.ops)


def test_figures_are_those_of_the_results(recorded):
    run, _ = recorded(TRAIN)
    relu = next(op for op in run.ops if op.name == "relu")
    torch.manual_seed(0)
    first, _last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    hidden = torch.relu(first(torch.randn(16, 4))).detach().double().numpy()
    stat = next(s.statistics for s in run.stats() if (s.op, s.step) == (relu.op, 0))
    assert (stat.count, stat.zero, stat.nan) == (128, int((hidden == 0).sum()), 0)
    np.testing.assert_allclose([stat.max, stat.mean], [hidden.max(), hidden.mean()], rtol=1e-12)


def test_numbers_that_the_script_reads_are_metrics_of_their_step(recorded):
    run, outcome = recorded(TRAIN)
    printed = [float(line.split(": ")[1]) for line in outcome.out.splitlines()[:5]]
    np.testing.assert_allclose(run.metric("loss")[:5], printed, atol=1e-6)
    shares = {m.step: m.value for m in run.metrics if m.name == "share"}
    assert shares == {5: float(outcome.out.split()[-1])}


def test_the_script_runs_as_without_a_record(recorded, script):  # noqa: F811
    plain = subprocess.run([sys.executable, "-"], input=TRAIN, capture_output=True, text=True)
    _, outcome = recorded(TRAIN, "--trace", "run.pftrace")
    assert outcome.out == plain.stdout
    _, failed = recorded("import torch\ntorch.ones(2).sum()\nraise SystemExit(7)")
    assert failed.code == 7
    assert main(["run", "-w", "runs.db", script("import torch\ntorch.ones(2).sum()\n1 / 0")]) == 1
    run = opstep.Workspace("runs.db").run("last")
    assert (run.status, run.error) == ("failed", "division by zero")


def test_two_runs_are_compared_by_site(recorded, cli):  # noqa: F811
    recorded(TRAIN)
    recorded(TRAIN)
    assert cli("ws", "runs.db", "compare", 1, 2).code == 0
    recorded(TRAIN.replace("randn(16, 1)", "randn(16, 1) * 2"))
    differ = cli("ws", "runs.db", "compare", 1, 3)
    assert differ.code == 1
    assert "mse_loss" in differ.out and "train.py:19" in differ.out
    again = cli("ws", "runs.db", "rerun", 1)
    assert again.code == 2
    assert "run the script again" in again.err


def test_statistics_are_of_what_is_asked_for(recorded, cli, script):  # noqa: F811
    run, _ = recorded(TRAIN, "--stats", "relu:*", "--stats-every", 2, "--name", "mine")
    names = {op.op: op.name for op in run.ops}
    assert {(names[s.op], s.step) for s in run.stats()} == {("relu", k) for k in (0, 2, 4)}
    assert run.name == "mine"
    for option in (("--keep-inputs", 1), ("--stats", "outputs")):
        outcome = cli("run", "-w", "runs.db", *option, script(TRAIN))
        assert outcome.code == 2
        assert "hint: " in outcome.err


def test_findings_of_a_hunt_stand_in_the_run(recorded, cli):  # noqa: F811
    run, outcome = recorded(LOG, verb="hunt")
    assert outcome.code == 5
    finding = next(f for f in run.findings if f.kind == "origin")
    assert (finding.line, finding.step) == (8, 3)
    assert "NaN born in sqrt" in finding.message
    assert next(op for op in run.ops if op.op == finding.op).name == "sqrt"
    assert "train.py:8" in cli("ws", "runs.db").out
    run, _ = recorded(LOG)
    why = cli("ws", "runs.db", "why", run.id)
    assert (why.code, "train.py:8" in why.out) == (5, True)


def test_a_timeline_nests_ops_in_modules_and_phases(recorded):
    from opstep.trace.viewer.engine import Engine

    recorded(TRAIN, "--trace", "run.pftrace", "--trace-steps", "1:3")
    with Engine("run.pftrace") as engine:
        rows = engine.query(
            "select s.name, m.name, p.name from slice s join slice m on m.id = s.parent_id "
            "left join slice p on p.id = m.parent_id where s.category = 'op'"
        ).rows
        marks = engine.query("select name from slice where category = 'mark'").rows
    found = Counter(map(tuple, rows))
    assert found["relu", "Net", "forward"] == 2
    assert found["threshold_backward", "Net", "backward"] == 2
    assert found["add_", "update", None] == 2 * 4
    assert [name for (name,) in marks] == ["step of SGD"] * 2


def test_both_watchers_make_the_same_timeline(cli, script, monkeypatch):  # noqa: F811
    from opstep.trace.viewer.engine import Engine

    def facts() -> Counter:
        outcome = cli("run", "--trace", "run.pftrace", script(TRAIN))
        assert ("watched in Python" in outcome.err) == is_python
        with Engine("run.pftrace") as engine:
            rows = engine.query(
                "select s.name, a.key, a.display_value from slice s join args a using (arg_set_id) "
                "where s.category = 'op' and a.key != 'debug.run'"
            ).rows
        return Counter(map(tuple, rows))

    try:
        native.build()
    except native.Unavailable as error:
        pytest.skip(f"no native watcher: {error}")
    is_python = False
    natively = facts()
    monkeypatch.setattr(native, "path", lambda: native._SOURCES / "not.so")
    monkeypatch.setenv("CXX", "no-such-compiler")
    is_python = True
    assert facts() == natively
    assert natively["relu", "debug.results", "hidden: f32[16, 8]"] == 6


def test_infinities_that_do_no_harm_are_no_findings(recorded):
    run, outcome = recorded("""
        import torch
        scores = torch.zeros(2, 3) + torch.tensor([0.0, 0.0, float("-inf")])
        print(torch.softmax(scores, 1).sum())
    """)
    assert (run.findings, "found:" in outcome.err) == ([], False)
    assert any(s.statistics.neginf == 2 for s in run.stats())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_stops_no_script(cli, script):  # noqa: F811
    outcome = cli("run", "--trace", "/dev/full", script(TRAIN))
    assert outcome.code == 4
    assert outcome.out.startswith("0: ")
    assert len(outcome.out.splitlines()) == 6
    assert "/dev/full is incomplete" in outcome.err
