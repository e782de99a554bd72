"""Scripts of eager PyTorch under ``opstep hunt`` and ``opstep run``: as they are, and watched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from scripts import LOGARITHM, NET, TRAINING

from opstep.frontends.torch.eager import native

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("fresh")

SCALE = """\
import torch
from torch import nn

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x / self.weight

net = nn.Sequential(Scale())
print(net(torch.ones(2)).sum().item())
"""
HARMLESS = """\
import torch

x = torch.tensor([0.0, 1.0])
print(torch.where(x > 0, x.log(), 0.0).sum().item())
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(2):
    (w * x).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module", params=["native", "python"], autouse=True)
def form(request):
    """Both forms of the watcher: the one in Python where nothing can be compiled."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "native":
            try:
                native.build()
            except native.Unavailable as error:
                pytest.skip(f"no native watcher: {error}")
        else:
            patch.setattr(native, "path", lambda: native._SOURCES / "not.so")
            patch.setenv("CXX", "no-such-compiler")
        yield request.param


def summary(outcome) -> str:
    """What is said on standard error, without how the script was watched."""
    return re.sub(r"^note: \S+: watched in Python, .*\n", "", outcome.err, flags=re.MULTILINE)


# --- what is found --------------------------------------------------------------------------------


def test_a_report_begins_with_the_line(cli, script):
    outcome = cli("hunt", script(LOGARITHM))
    assert (outcome.code, outcome.out) == (5, "step 0\nthe end\n")
    lines = summary(outcome).splitlines()
    assert lines[0] == "train.py:7: return torch.log(y)  # line 7"
    assert lines[1].startswith("infinity born in log: log of 0 (log[0] = -inf of input[0] = 0)")
    assert lines[2] == "  Log.forward (Log) train.py:7 / <module> :12"


@pytest.mark.parametrize(
    ("op", "born"),
    [
        ("log_", "infinity born in log: log of 0 (log[1] = -inf)"),
        ("sqrt_", "NaN born in sqrt: square root of a negative number (sqrt[2] = nan)"),
    ],
)
def test_operands_that_are_overwritten_are_not_shown(cli, script, op, born):
    number = 3.0 if op == "log_" else -1.0
    text = f"import torch\nx = torch.tensor([4.0, 0.0, {number}])\nx.{op}()\nprint(x)\n"
    outcome = cli("hunt", script(text))
    lines = summary(outcome).splitlines()
    assert lines[:2] == [f"train.py:3: x.{op}()", born]
    assert "input" not in outcome.err


def test_as_json(cli, script):
    outcome = cli("hunt", "--json", script(LOGARITHM))
    assert outcome.code == 5 and outcome.err.startswith("step 0\nthe end\n")
    (found,) = outcome.json["findings"]
    assert (found["op"], found["line"], found["bad"], found["phase"]) == (
        "log",
        7,
        "inf",
        "forward",
    )
    assert [frame["line"] for frame in found["frames"]] == [7, 12]
    assert found["module"] == "Log" and found["harm"].startswith("the result of the model is inf")


def test_an_editor_reads_the_findings(cli, script, tmp_path, monkeypatch):
    file = tmp_path / "findings.json"
    monkeypatch.setenv("OPSTEP_FINDINGS", str(file))
    assert cli("hunt", script(LOGARITHM)).code == 5
    found = json.loads(file.read_text())
    assert (found["found"], found["step"]) == (True, 0)
    (one,) = found["findings"]
    assert one["rules"] and one["statement"] and one["line"]
    assert "OPSTEP_FINDINGS" not in os.environ  # nor in that of the script's processes


def test_nan_only(cli, script):
    outcome = cli("hunt", "--nan-only", script(LOGARITHM))
    assert (outcome.code, outcome.out) == (5, "step 0\nstep 1\nthe end\n")
    assert "\nNaN born in log: log of a negative number" in outcome.err


def test_keep_going(cli, script):
    both = LOGARITHM + "    (torch.ones(1) / 0).sum().item()\n"
    outcome = cli("hunt", "--keep-going", script(both))
    assert (
        outcome.code == 5 and outcome.out == "".join(f"step {k}\n" for k in range(4)) + "the end\n"
    )
    assert re.findall(r"^train.py:(\d+): ", outcome.err, re.MULTILINE) == ["7", "16"]


def test_masked(cli, script):
    name = script(HARMLESS)
    assert cli("hunt", name).code == 0
    outcome = cli("hunt", "--masked", name)
    assert outcome.code == 5 and "train.py:4: print(torch.where(" in outcome.err
    assert "1 of 2 elements of log was born here" in outcome.err


@pytest.mark.parametrize("name", ["train.py:10", "div", "0"])
def test_wanted(cli, script, name):
    assert cli("hunt", script(SCALE)).code == 5
    outcome = cli("hunt", "--wanted", name, script(SCALE))
    assert (outcome.code, outcome.out) == (0, "inf\n")
    assert "no NaN and no infinity but those wanted came out" in outcome.err


def test_a_parameter_that_is_wanted(cli, script):
    text = "import torch\nnet = torch.nn.Linear(2, 1)\nnet.bias.data.fill_(float('inf'))\n"
    outcome = cli("hunt", script(text))
    assert outcome.code == 5 and "bias is infinite at the end of the script" in outcome.err
    outcome = cli("hunt", "--wanted", "bias", "--wanted", "weight", script(text))
    assert outcome.code == 0
    assert "note: no value that was bad is called weight, which --wanted names" in outcome.err


def test_a_thread_ends_the_script(cli, script):
    text = """
    import threading, torch
    def work():
        print((-torch.ones(2)).log().sum().item())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("joined", (torch.ones(2) + 1).sum().item())
    """
    outcome = cli("hunt", script(text))
    assert (outcome.code, outcome.out) == (5, "joined 4.0\n")
    assert "train.py:4: print((-torch.ones(2)).log().sum().item())\nNaN born in log" in outcome.err


# --- what is said of the rest ---------------------------------------------------------------------


def test_nothing_to_find(cli, script):
    outcome = cli("hunt", script(NET + TRAINING))
    assert (outcome.code, outcome.out) == (0, "step 0\nstep 1\nstep 2\n")
    found = re.fullmatch(
        r"train.py: (\d+) ops in 3 steps of optimizers, no NaN or infinity came out\n",
        summary(outcome),
    )
    assert found and int(found[1]) > 100


def test_births_without_harm(cli, script):
    outcome = cli("hunt", script(HARMLESS))
    assert outcome.code == 0
    assert summary(outcome).endswith(
        " ops in 2 steps of optimizers, no NaN or infinity came out; some were born that did no "
        "harm (log, train.py:4): --masked reports them\n"
    )


def test_steps_that_a_scaler_skipped(cli, script):
    text = """
    import torch
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for step in range(6):  # f16 holds 65504: four times 2**13
        optimizer.zero_grad()
        scaler.scale((w.half() * 4).sum().float()).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    outcome = cli("hunt", script(text))
    assert outcome.code == 0, outcome.err
    assert (
        "in 3 steps of optimizers, no NaN or infinity came out; GradScaler skipped 3 steps\n"
        in (outcome.err)
    )


def test_results_that_were_not_looked_at(cli, script):
    text = """
    import torch
    class Own(torch.Tensor):
        pass
    print((torch.eye(2).to_sparse() * 2).values().sum().item())
    """
    outcome = cli("hunt", script(text))
    assert (outcome.code, outcome.out) == (0, "4.0\n")
    assert re.search(r"; results that were not looked at: \d+ of [Ss]parse", outcome.err)


def test_no_op_of_pytorch(cli, script):
    outcome = cli("hunt", script("import torch; print('hello')"))
    assert (outcome.code, outcome.out) == (2, "hello\n")
    assert "train.py: nothing was checked: the script ran no op of PyTorch's\n" in outcome.err


@pytest.mark.parametrize(
    "words",
    ["--streams 2", "--alloc fresh", "--fill nan", "--kernels numba", "--mode debug", "--threads 1",
     "--autotune", "--fallback torch", "--break"],
)  # fmt: skip
def test_options_of_what_is_compiled_are_refused(cli, script, words):
    name = script("import torch; print('never')")
    for command in ("hunt", "run")[: 1 + (words != "--break")]:
        outcome = cli(command, *words.split(), name)
        assert (outcome.code, outcome.out) == (2, "")
        flag = words.partition(" ")[0]
        assert f"{flag} is for what runs on opstep, and this runs in PyTorch" in outcome.err
        assert "hint: add --compiled" in outcome.err


# --- as Python runs it ----------------------------------------------------------------------------


def test_a_module_by_name(cli, script):
    script("from . import part; import sys; print(part.total(), sys.argv[1:])", "packed/go.py")
    script("import torch\ndef total(): return torch.ones(3).sum().item()", "packed/part.py")
    outcome = cli("hunt", "-m", "packed.go", "--json")
    assert (outcome.code, outcome.out) == (0, "3.0 ['--json']\n")


@pytest.mark.parametrize(
    "end, code, said", [("7", 7, ""), ("'enough'", 1, "enough\n"), ("None", 0, " ops, no NaN")]
)
def test_exit_codes(cli, script, end, code, said):
    name = script(f"import sys, torch\nprint(torch.ones(2).sum().item())\nsys.exit({end})\n")
    outcome = cli("hunt", name)
    assert (outcome.code, outcome.out) == (code, "2.0\n") and said in outcome.err


def test_errors_are_shown_as_python_shows_them(script, tmp_path):
    text = "import torch\ndef act(x):\n    return torch.nn.Linear(2, 2)(x)\nact(torch.ones(3, 5))\n"
    alone, watched = (
        subprocess.run([sys.executable, *words, script(text)], cwd=tmp_path, text=True,
                       capture_output=True, timeout=120)
        for words in ([], ["-m", "opstep", "hunt"])
    )  # fmt: skip
    assert alone.returncode == watched.returncode == 1
    lines = [line.replace(f"{tmp_path}/", "") for line in watched.stderr.splitlines()]
    own = [line for line in alone.stderr.splitlines() if "_call" not in line]
    assert lines[0] == own[0] and lines[-1] == own[-1]
    assert not [line for line in lines if "opstep" in line]


CHILDREN = """
import multiprocessing, os, sys
import torch

def work(k):
    return torch.full((2,), float(k)).log().sum().item()

if __name__ == "__main__":
    child = os.fork()
    if child == 0:
        print("child", work(0), flush=True)
        os._exit(9)
    print("left", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(how, pool.map(work, [0, 1]), flush=True)
    print(work(1))
"""


@pytest.mark.slow
def test_children_run_unwatched(script, tmp_path):
    name = script(CHILDREN)
    alone, watched = (
        subprocess.run([sys.executable, *words, name], cwd=tmp_path, capture_output=True,
                       timeout=300)
        for words in ([], ["-m", "opstep", "hunt"])
    )  # fmt: skip
    assert watched.returncode == alone.returncode == 0, watched.stderr
    assert watched.stdout == alone.stdout
    assert b"no NaN or infinity came out" in watched.stderr


def test_what_the_script_compiles(cli, script, form):
    text = """
    import torch
    ran = []
    def backend(module, inputs):
        ran.append(module)
        return module.forward
    double = torch.compile(lambda x: x * 2, backend=backend)
    print(double(torch.ones(2)).sum().item(), len(ran))
    print(double(torch.ones(2)).log().sub(1e39).sum().item())
    """
    outcome = cli("hunt", script(text))
    assert outcome.code == 5 and outcome.out == f"4.0 {int(form == 'native')}\n"
    assert "train.py:9: print(double(torch.ones(2)).log().sub(1e39).sum().item())" in outcome.err
    healthy = text.replace(".sub(1e39)", "")
    outcome = cli("hunt", script(healthy))
    assert outcome.code == 0
    said = "functions that the script compiles ran eagerly, to be watched"
    assert (said in outcome.err) == (form == "python")


def test_a_recursion_is_as_deep_as_without(cli, script):
    text = """
    import torch
    def deep(n):
        return deep(n - 1) if n else torch.ones(2).sum().item()
    print(deep(990))
    """
    assert cli("hunt", script(text)).out == "2.0\n"


GROWS = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=1e8)
for step in range(3):
    loss = net(torch.randn(8, 4)).exp().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_parameter_that_grows(cli, script, form):
    outcome = cli("hunt", script(GROWS))
    assert outcome.code == 5 and "infinity born in exp: overflow of f32" in outcome.err
    grew = r"  (weight|bias) grew from 0\.\d+ to [\d.e+]+ in one update, and 1 more: clip gradients"
    assert bool(re.search(grew, outcome.err)) == (form == "native")
    assert "grew" not in cli("hunt", script(GROWS.replace("1e8", "1e-3").replace("exp", "log"))).err
