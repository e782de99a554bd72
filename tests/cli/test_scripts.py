"""Python scripts in place of programs: run and hunted as they are."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from scripts import LOGARITHM, NET, TRAINING, commands

import opstep
from opstep.cli.common import ADD_BREAK

torch = pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch"

pytestmark = pytest.mark.usefixtures("fresh")


# --- as Python runs it ----------------------------------------------------------------------------


def test_a_script_is_the_program_that_runs(cli, script, tmp_path):
    name = script(
        """
        import sys
        from pathlib import Path
        assert sys.modules["__main__"].__dict__ is globals() and __name__ == "__main__"
        assert Path(__file__) == Path(sys.path[0], "train.py").absolute(), __file__
        print(sys.argv)
        sys.exit(3)
        """
    )
    before = list(sys.path), sys.argv, sys.modules["__main__"]
    outcome = cli("run", "--compiled", "--mode", "async", name, "--lr", "0.1", "--json")
    assert (outcome.code, outcome.err) == (3, "")
    assert outcome.out == f"{['train.py', '--lr', '0.1', '--json']}\n"
    assert before == (list(sys.path), sys.argv, sys.modules["__main__"])


def test_a_module_by_name(cli, script, monkeypatch):
    script("from . import part; import sys; print(part.N, sys.argv[1:], __package__)", "pack/go.py")
    script("N = 7", "pack/part.py")
    outcome = cli("run", "-m", "pack.go", "-x")
    assert outcome.out == "7 ['-x'] pack\n"
    assert (
        outcome.err
        == "note: pack.go ran no op of PyTorch's, and no function with @opstep.jax.debug\n"
    )
    outcome = cli("run", "-m", "pack.stop")
    assert outcome.code == 2 and "there is no module pack.stop" in outcome.err


def test_how_it_ends(cli, script):
    assert cli("run", script("import sys; sys.exit('enough')")).err == "enough\n"
    assert cli("run", script("raise SystemExit")).code == 0
    assert cli("run", script("raise KeyboardInterrupt")).code == 130
    outcome = cli("run", "missing.py")
    assert outcome.code == 2 and "missing.py: there is no such file" in outcome.err
    outcome = cli("run", script("\ndef f(:\n"))
    assert outcome.code == 1 and "SyntaxError" in outcome.err and "line 2" in outcome.err


def test_without_pytorch(cli, script, monkeypatch):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    for command in ("run", "hunt"):
        outcome = cli(command, script("print(1)"))
        assert outcome.code == 2 and "pip install 'opstep[torch]'" in outcome.err, command


@pytest.mark.parametrize(
    "words, told",
    [
        ("run --steps 3 train.py", "--steps is not for scripts\nhint: the script says how often"),
        ("run -i x=x.npy train.py", "--input is not for scripts"),
        ("run --device cuda train.py", "a script runs where its tensors are"),
        ("run --fallback cpu train.py", "--fallback cpu is for programs"),
        ("debug --wait train.py", "--wait needs --listen PORT"),
        ("run --module x net.opg", "--module is for Python scripts"),
        ("hunt --import mylib train.py", "--import is not for scripts"),
        ("run --keep-going train.py", "No such option"),
    ],
)
def test_options_that_make_no_sense(cli, script, words, told):
    script("print(1)")
    outcome = cli(*words.split())
    assert outcome.code == 2 and told in outcome.err and outcome.out == ""


@pytest.mark.parametrize("flush", [True, False])
def test_a_closed_pipe_ends_it_quietly(script, tmp_path, flush):
    script(f"for step in range(30_000):\n    print(step, flush={flush})\n")
    line = f"{sys.executable} -m opstep hunt train.py | head -2"
    ended = subprocess.run(
        line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("0\n1\n", "")


@pytest.mark.parametrize("command", ["check", "plan", "fmt", "bench", "grad"])
def test_commands_of_programs_take_no_scripts(cli, script, command):
    outcome = cli(command, script(LOGARITHM))
    assert outcome.code == 2 and outcome.err.count("error:") == 1
    assert "train.py is a Python script, not a program" in outcome.err
    assert "opstep run, opstep hunt and opstep debug take scripts" in outcome.err


# --- run ------------------------------------------------------------------------------------------


def test_a_training_is_recorded(cli, script):
    name = script(NET + TRAINING + "sys.exit(4)\n")
    outcome = cli("run", "--compiled", "-w", "runs.db", "--tag", "lr=0.1", name)
    assert outcome.code == 4 and outcome.out == "step 0\nstep 1\nstep 2\n"
    assert "wrote runs.db" in outcome.err
    with opstep.Workspace("runs.db") as workspace:
        graphs = [row[0] for row in workspace.sql("select graph from runs order by graph").rows]
        names = {t.name for t in workspace.tensors()}
    assert graphs == ["backward", "backward", "forward", "forward"]
    assert {"grad_encoder_0_weight", "out"} <= names


def test_modules_by_name(cli, script):
    name = script(NET + "net(torch.ones(2, 4))\n")
    assert (
        cli(
            "run", "--compiled", "-w", "a.db", "--module", "encoder.*", "--module", "out", name
        ).code
        == 0
    )
    with opstep.Workspace("a.db") as workspace:
        ops = [row[0] for row in workspace.sql("select count(*) from runs").rows]
    assert ops == [3]
    torch._dynamo.reset()
    outcome = cli("run", "--compiled", "--module", "decoder", name)
    assert outcome.err == (
        "note: no module that was called matches --module decoder; "
        "there are encoder, encoder.0, encoder.1, out; "
        "did you mean encoder, encoder.1 or encoder.0?\n"
    )


ODD = """
import copy, io, os, threading
from torch.func import vmap
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 6
    def __getitem__(self, k): return net(torch.ones(4) * k).detach()

seen = []
def eager(module, inputs):
    seen.append(module)
    return module.forward

x = torch.ones(3, 4)
expected = net.out(net.encoder(x))
assert net(x).allclose(expected)
assert [b.shape[0] for b in DataLoader(Data(), batch_size=3, num_workers=2)] == [3, 3]
child = os.fork()
if child == 0:
    net(x)
    sys.exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

assert torch.compile(net, backend=eager)(x).allclose(expected) and len(seen) == 1
assert torch.compile(lambda x: net(x) + 1, backend=eager)(x).allclose(expected + 1)
assert len(seen) == 2
assert torch.export.export(net, (x,)).graph is not None
assert torch.fx.symbolic_trace(net)(x).allclose(expected)
assert torch.jit.trace(net, x)(x).allclose(expected)
assert vmap(net)(x).allclose(expected)

file = io.BytesIO()
torch.save(net, file)
file.seek(0)
for other in (torch.load(file, weights_only=False), copy.deepcopy(net), copy.copy(net)):
    assert type(other) is Net and other(x).allclose(expected)
found = []
threads = [threading.Thread(target=lambda: found.append(net(x).detach())) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 4 and all(f.allclose(expected) for f in found)

called = []
hook = net.encoder.register_forward_hook(lambda *_: called.append("forward"))
net.out.register_full_backward_hook(lambda *_: called.append("backward"))
net(x).sum().backward()
assert called == ["forward", "backward"], called
hook.remove()
with torch.no_grad(): net.eval()(x)
with torch.inference_mode(): net.train()(x)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g * 3

class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x, *, scale=1.0):
        y = Double.apply(x) * scale
        if float(y.sum()) > 0:
            y = y + 1
        return self.net(y)

y = torch.ones(3, 4, requires_grad=True)
Breaks()(y, scale=0.5).sum().backward()
z = torch.ones(3, 4, requires_grad=True)
net.forward(z + 1).sum().backward()
assert y.grad.allclose(z.grad * 1.5), (y.grad, z.grad)
print("all is well")
"""


@pytest.mark.slow
def test_what_scripts_do(tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(NET + ODD, encoding="utf-8")
    command = [sys.executable, "-m", "opstep", "run", "--compiled", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stderr


# --- hunt -----------------------------------------------------------------------------------------


def test_a_hunt_ends_the_script(cli, script):
    outcome = cli("hunt", "--compiled", script(LOGARITHM))
    assert outcome.code == 5
    assert "step 0\ntrain.py:12: log(torch.ones(3) - step).sum()\n" in outcome.out
    assert "at inference, train.py:7: log of 0" in outcome.out
    assert outcome.out.endswith("the end\n") and outcome.out.count("is bad") == 1


def test_a_hunt_in_a_script_that_calls_no_model(cli, script):
    outcome = cli("hunt", "--compiled", script("import torch; model = torch.nn.Linear(2, 3)"))
    assert outcome.code == 2 and "train.py: nothing ran on opstep" in outcome.err


def test_a_hunt_of_modules_that_there_are_not(cli, script):
    name = script(NET + "net(torch.ones(2, 4))\n")
    outcome = cli("hunt", "--compiled", "--module", "encodr", name)
    assert outcome.code == 2 and "did you mean encoder" in outcome.err
    assert "there are encoder, encoder.0, encoder.1, out" in outcome.err
    assert "train.py: nothing ran on opstep: nothing matched --module encodr\n" in outcome.err
    torch._dynamo.reset()
    outcome = cli("hunt", "--compiled", "--module", "encodr", "--module", "out", name)
    assert outcome.code == 0 and "1 call of 1 module" in outcome.err


def test_a_torch_that_lacks_a_private_name_is_not_the_models_fault(cli, script, monkeypatch):
    import torch

    monkeypatch.delattr(torch._C, "_get_tracing_state")
    text = "import torch; torch.nn.Linear(2, 3)(torch.ones(1, 2))"
    outcome = cli("hunt", "--compiled", script(text))
    assert outcome.code == 2
    assert f"opstep does not work with PyTorch {torch.__version__}" in outcome.err
    assert "'Linear' object has no attribute" not in outcome.err


def test_a_hunt_can_go_on(cli, script):
    outcome = cli("hunt", "--compiled", "--keep-going", "--nan-only", script(LOGARITHM))
    assert outcome.code == 5
    assert "step 1\ntrain.py:12" in outcome.out and "step 3" in outcome.out
    assert "log of a negative number" in outcome.out and "log of 0" not in outcome.out


def test_a_hunt_behind_a_break_of_a_graph(cli, script):
    text = LOGARITHM.replace("y = x * 2\n", "y = x * float(x.max()) + x.sum().item()\n")
    text = text.replace("return torch.log(y)", "return torch.log(y - 100)")
    outcome = cli("hunt", "--compiled", script(text))
    assert outcome.code == 5 and "train.py:7: return torch.log(y - 100)" in outcome.out


def test_a_hunt_tells_outputs_from_what_is_saved(cli, script):
    text = """\
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.relu(torch.sqrt(x)).sum()

    Net()(torch.full((3,), -1.0, requires_grad=True)).backward()
    """
    outcome = cli("hunt", "--compiled", script(text))
    assert outcome.code == 5
    assert "sqrt is saved for the backward" in outcome.out


def test_a_hunt_as_json(cli, script):
    found = cli("hunt", "--compiled", "--json", script(LOGARITHM))
    assert found.code == 5 and "step 0\nthe end\n" in found.err
    (finding,) = found.json["findings"]
    assert finding["graph"] == "inference" and finding["step"] == 1


def test_a_thread_ends_the_script(cli, script):
    name = script(
        """
        import threading, torch
        class Log(torch.nn.Module):
            def forward(self, x):
                return torch.log(x)
        log = Log()
        thread = threading.Thread(target=lambda: log(-torch.ones(2)))
        thread.start()
        thread.join()
        print("joined")
        log(torch.ones(2))
        print("never")
        """
    )
    outcome = cli("hunt", "--compiled", name)
    assert (outcome.code, outcome.err) == (5, f"{ADD_BREAK}\n")
    assert "at inference, train.py:5: log of a negative number" in outcome.out
    assert outcome.out.endswith("joined\n")


def test_executors_do_what_they_were_given(cli, script):
    name = script(
        """
        import threading, torch
        from concurrent.futures import ThreadPoolExecutor
        net = torch.nn.Linear(3, 2)
        ready = threading.Event()
        def work(k):
            ready.wait()
            print(k, *net(torch.ones(1, 3)).shape)
        pool = ThreadPoolExecutor(1)
        for k in range(3):
            pool.submit(work, k)
        def begin():
            threading.Thread(target=ready.set).start()
        threading.Timer(0.01, begin).start()
        print("end")
        """
    )
    outcome = cli("run", name)
    assert (outcome.code, outcome.out) == (0, "end\n0 1 2\n1 1 2\n2 1 2\n")
    outcome = cli("hunt", "--compiled", name)  # a second script has executors as well
    assert (outcome.code, outcome.err) == (
        0,
        f"{name}: 3 calls of 1 module, no NaN or infinity came out\n",
    )


def test_threads_of_others_are_not_waited_for(cli, script):
    idle = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(idle.wait, 60)
    try:
        assert cli("run", script("print(1)")).out == "1\n"
        assert not idle.is_set() and pool.submit(abs, -1)
    finally:
        idle.set()
        pool.shutdown()


def test_nothing_to_find(cli, script):
    outcome = cli("hunt", "--compiled", script(NET + TRAINING))
    assert outcome.code == 0
    assert outcome.err == "train.py: 6 calls of 2 modules, no NaN or infinity came out\n"


@pytest.mark.parametrize(
    "text, told",
    [
        ("net(x / 0).sum()", "infinity born in div: division by 0"),
        ("net.out.weight.data[0, 0] = nan; net(x)", "NaN written here"),
        ("net.load_state_dict(torch.load('nan.pt')); net(x)", "no op of PyTorch's wrote it"),
    ],
)
def test_what_comes_from_outside_of_modules(cli, script, text, told, tmp_path):
    net = torch.nn.Sequential()
    net.add_module("encoder", torch.nn.Sequential(torch.nn.Linear(4, 4)))
    net.add_module("out", torch.nn.Linear(4, 2))
    torch.nn.init.constant_(net.out.weight, float("nan"))
    torch.save(net.state_dict(), tmp_path / "nan.pt")
    name = script(f"{NET}from math import nan\nx = torch.ones(2, 4)\n{text}\n")
    outcome = cli("hunt", "--compiled", name)
    first, *_ = outcome.out.splitlines()
    assert outcome.code == 5 and first == f"train.py:19: {text}"
    assert told in outcome.out.partition("\nnote: it was made outside of compiled modules:\n")[2]


def test_a_finding_in_the_debugger(cli, script, monkeypatch):

    monkeypatch.setattr(sys, "stdin", io.StringIO("p y\nbt\nq\n"))
    outcome = cli("hunt", "--compiled", "--break", script(LOGARITHM))
    assert outcome.code == 5
    assert (
        "Log.forward at train.py:7" in outcome.out and "#1  <module> at train.py:12" in outcome.out
    )


# --- the example ----------------------------------------------------------------------------------


def test_the_example(cli, monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    text = (EXAMPLE / "model.py").read_text().splitlines()
    line = text.index("    return squares.sqrt()") + 1
    try:
        outcome = cli("hunt", "--compiled", "train.py")
        assert outcome.code == 5 and f", model.py:{line}: division by 0" in outcome.out
        torch._dynamo.reset()
        sys.modules.pop("model")
        wanted = commands(f"break model.py:{line} if squares.min() == 0", "run", "up",
                          "p (anchor[14] - same[14]).tolist()")  # fmt: skip
        outcome = cli("debug", *wanted, "--batch", "train.py")
        assert outcome.out.endswith(f"(anchor[14] - same[14]).tolist() = {[0.0] * 8}\n")
    finally:
        sys.modules.pop("model", None)
