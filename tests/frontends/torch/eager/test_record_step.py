"""One step of a training script as a program: it gives what the script had, and names its lines."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import opstep

torch = pytest.importorskip("torch")

from opstep.frontends.scripts.script import Script  # noqa: E402
from opstep.frontends.torch.eager.programs import record_step  # noqa: E402
from opstep.frontends.torch.eager.steps import AsIs  # noqa: E402
from opstep.frontends.torch.errors import ImportFailed  # noqa: E402
from opstep.hunting.search import hunt  # noqa: E402
from opstep.runtime.ir.errors import InputError  # noqa: E402

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
"""
LOOP = """
for step in range(3):
    {batch}
    loss = {loss}
    opt.zero_grad()
    loss.backward()
    {before}
    opt.step()
    torch.save({{"loss": loss.detach(), **model.state_dict()}}, f"after{{step}}.pt")
"""
MLP = """
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
"""
LENET = """
class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 8, 5)
        self.norm = nn.BatchNorm2d(4)
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))

model = LeNet()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
"""
GPT = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.1))

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(2, 8, 4, 4).transpose(1, 2) for t in parts)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + self.proj(a.transpose(1, 2).reshape(2, 8, 16))
        return x + self.mlp(self.norm2(x))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 20, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(8))
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
"""
LSTM = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])

model = Tagger()
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
"""
LABELS = "x, y = {x}, torch.randint(0, {classes}, (4,))"
CLIPPED = "nn.utils.clip_grad_norm_(model.parameters(), 0.5)"
SCRIPTS = {
    "mlp": HEAD + MLP + LOOP.format(
        batch="x = torch.randn(8, 4)", before=CLIPPED,
        loss="(model(x) - x.sum(1, keepdim=True)).pow(2).mean()",
    ),
    "lenet": HEAD + LENET + LOOP.format(
        batch=LABELS.format(x="torch.randn(4, 1, 16, 16)", classes=10), before="",
        loss="F.cross_entropy(model(x), y, label_smoothing=0.1)",
    ),
    "gpt": HEAD + GPT + LOOP.format(
        batch="ids = torch.randint(0, 20, (2, 9))", before=CLIPPED,
        loss="F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())",
    ),
    "lstm": HEAD + LSTM + LOOP.format(
        batch=LABELS.format(x="torch.randn(4, 6, 3)", classes=4), before="",
        loss="F.cross_entropy(model(x), y)",
    ),
}  # fmt: skip
# Changes in place: of views, by a mask, of what outlives the step, of a gradient.
IN_PLACE = (
    HEAD
    + """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g

w, seen = torch.randn(6, 6, requires_grad=True), torch.zeros(6, 6)
opt = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    h = torch.randn(4, 6) @ w * 1.0
    h[:, 0] = 0.5
    h[:, 1:3] += 1.0
    h.view(-1)[3] = h[0, 0] * 2
    h[h > 2] = 2.0
    seen[1].add_(h.detach().sum(0))
    seen.t()[2] *= 0.5
    loss = Square.apply(h).mean() + (w * seen).sum() * 0.01
    opt.zero_grad(set_to_none=False)
    loss.backward()
    with torch.no_grad():
        w.grad[0].clamp_(-1, 1)
    opt.step()
    torch.save({"loss": loss.detach(), "w": w.detach(), "new_seen": seen}, f"after{step}.pt")
"""
)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        return Script.find("train.py")

    return write


def recorded(script, step):
    """The program, saved and read again; what it gives, and what the script had."""
    assert script.run(AsIs()) == 0
    record_step(script, step).save("step.opg")
    program = opstep.load("step.opg")
    result = program.run("step", program.example)
    wanted = torch.load(f"after{step}.pt")
    got = dict(zip(result.names, result.outputs, strict=True))
    got |= {n: program.params[n] for n in program.params if n in wanted}
    return program, {n: (np.asarray(got[n]), wanted[n].numpy()) for n in wanted if n in got}, wanted


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("step", [0, 2])
def test_it_gives_what_the_script_had(script, name, step):
    program, pairs, wanted = recorded(script(SCRIPTS[name]), step)
    assert pairs.keys() == wanted.keys()
    for name, (got, expected) in pairs.items():
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    declared = {d.name.text: d.kind for d in program.module.items if hasattr(d, "kind")}
    parameters = {n for n, kind in declared.items() if kind == "param"}
    assert parameters == {n for n in wanted if n.endswith(("weight", "bias")) or "_l" in n}


def test_changes_in_place_and_a_function_of_its_own(script):
    _, pairs, wanted = recorded(script(IN_PLACE), 1)
    assert pairs.keys() == wanted.keys()
    for name, (got, expected) in pairs.items():
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_was_drawn_is_an_input(script):
    program = record_step(script(SCRIPTS["mlp"]), 1)
    assert {"randn", "bernoulli"} <= program.example.keys()
    assert set(np.unique(program.example["bernoulli"])) <= {0.0, 1.0}


NAN = (
    HEAD
    + """
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.full((2, 4), 1e30 if step == 2 else 1.0)
    h = model(x)
    p = h.exp()  # overflow
    q = p / p.sum(1, keepdim=True)
    loss = q[:, 0].mean()
    loss.backward()
    opt.step()
"""
)


def test_a_hunt_in_it_names_the_line(script):
    program = record_step(script(NAN), 2)
    found = hunt(program, "step", program.example)
    first = next(f for f in found.findings if f.where is not None)
    line = next(k for k, text in enumerate(NAN.split("\n"), 1) if "# overflow" in text)
    assert (first.op, first.where.imported) == ("exp", f"{Path('train.py').resolve()}:{line}")
    before = hunt(program := record_step(script(NAN), 1), "step", program.example)
    assert not before.findings


def test_what_has_no_counterpart_is_refused_with_its_line(script):
    text = MLP.replace("foreach=True", "fused=True")
    one = script(HEAD + text + LOOP.format(
        batch="x = torch.randn(8, 4)", loss="model(x).mean()", before=""))  # fmt: skip
    with pytest.raises(ImportFailed) as failed:
        record_step(one, 0)
    (missing,) = failed.value.missing
    assert "_fused_adam" in missing.op
    assert Path(missing.file).read_text().split("\n")[missing.line - 1].strip() == "opt.step()"


@pytest.mark.parametrize("index", ["x[:, 0] > 0", "(x[:, 0] > 0).nonzero()[:, 0]"])
def test_sizes_that_depend_on_data_are_as_they_were(script, index):
    loop = LOOP.format(batch="x = torch.randn(8, 4)", before="", loss=f"model(x)[{index}].mean()")
    _, pairs, _ = recorded(script(HEAD + MLP + loop), 0)
    assert "loss" in pairs
    for got, expected in pairs.values():
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_step_that_there_is_not(script):
    with pytest.raises(InputError, match="has no step 7: it ended after 3 steps"):
        record_step(script(NAN), 7)


def test_a_script_that_fails_before(script):
    with pytest.raises(InputError, match="exit code 1 after 0 steps"):
        record_step(script(HEAD + "raise ValueError('no data')"), 0)


def test_the_command(script, capsys):
    from opstep.cli.main import main

    script(NAN)
    assert main(["run", "--record-step", "2", "-o", "kept.opg", "train.py"]) == 0
    assert "wrote kept.opg, kept.safetensors" in capsys.readouterr().err
    assert main(["hunt", "kept.opg", "-i", "example"]) == 5
    assert "train.py:" in capsys.readouterr().out


INFERENCE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
with torch.inference_mode():
    for k in range(3):
        x = torch.full((2, 4), 1.0 - k)
        y = model(x)
        z = (x[:, 0] + 0.5).log()  # here
        print(z.sum().item())
"""
BEFORE = """
import torch
x = torch.ones(8, 4)
x = (x - x.mean(0)) / x.std(0)  # here
model = torch.nn.Linear(4, 3)
print(model(x).sum().item())
torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    ("text", "step", "op"),
    [(NAN.replace("# overflow", "# here"), 2, "exp"), (INFERENCE, 0, "log"), (BEFORE, 0, "div")],
    ids=["training", "inference", "before"],
)
def test_a_hunt_keeps_the_step_that_it_finds(script, capsys, text, step, op):
    from opstep.cli.main import main

    script(text)
    line = next(k for k, t in enumerate(textwrap.dedent(text).split("\n"), 1) if "# here" in t)
    assert main(["hunt", "--keep-step", "train.py"]) == 5
    assert f"step {step}, " in capsys.readouterr().err
    program = opstep.load(f"train-step{step}.opg")
    first = hunt(program, "step", program.example).first
    assert (first.op, first.where.imported) == (op, f"train.py:{line}")


def test_the_report_names_the_command_that_records_the_step(script, capsys):
    from opstep.cli.main import main

    script(NAN)
    assert main(["hunt", "train.py", "--name", "a b"]) == 5
    last = capsys.readouterr().err.strip().split("\n")[-1]
    assert last.startswith("opstep run --record-step 2 train.py --name 'a b' ")
    script(BEFORE)  # in a process that has no other optimizers
    words = [sys.executable, "-c", "from opstep.cli.main import main; main(['hunt', 'train.py'])"]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.stderr.strip().split("\n")[-1].startswith("opstep hunt --keep-step ")


def test_a_step_that_the_script_does_not_finish(script):
    text = NAN.replace("loss.backward()", "assert loss.isfinite()\n    loss.backward()")
    program = record_step(script(text.replace("q = p", "q = p - p")), 2)
    assert hunt(program, "step", program.example).first.op == "exp"


def test_a_step_that_cannot_be_kept(script, capsys):
    from opstep.cli.main import main

    script(NAN.replace("x = torch", "s = torch.eye(3).to_sparse()\n    x = torch"))
    assert main(["hunt", "--keep-step", "train.py"]) == 5
    assert "the step was not written: " in capsys.readouterr().err
    assert not list(Path().glob("*.opg"))
