"""Scripts that are hard on a watcher: half made modules, streams replaced, many births."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")

import torch

from opstep.cli.common import FOUND, OK
from opstep.cli.main import main
from opstep.frontends.torch.eager import births

HEAD = "import os, sys, tempfile, torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
BAD = "torch.log(torch.zeros(2) - 1).sum().item()\n"
BORN = "NaN born in log"
HALF_MADE = """
class Model(nn.Module):
    def __init__(self): pass
model, other = Model(), nn.Module.__new__(nn.Linear)
"""
RAISES = """
class Model(nn.Module):
    def named_parameters(self, *args, **kwargs): raise RuntimeError
    def __getattr__(self, name): raise KeyError(name)
    @property
    def _modules(self): raise ZeroDivisionError
    @_modules.setter
    def _modules(self, value): pass
model = Model()
"""
FOLDER_GONE = "folder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)\n"


@pytest.fixture
def hunt(tmp_path, monkeypatch, capsys):
    """Hunts in a script: its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def hunted(text):
        (tmp_path / "script.py").write_text(HEAD + text)
        with monkeypatch.context() as m:
            for name in ("stdout", "stderr"):
                m.setattr(sys, name, getattr(sys, name))
            m.setattr(sys, "argv", ["opstep", "hunt", str(tmp_path / "script.py")])
            try:
                code = main()
            except SystemExit as error:
                code = error.code
        return code, *capsys.readouterr()

    return hunted


@pytest.mark.parametrize(
    "before",
    [
        HALF_MADE,
        RAISES,
        FOLDER_GONE,
        "import io\nsys.stderr = io.StringIO()\n",
        "sys.stderr = None\n",
    ],
    ids=["half_made_module", "methods_raise", "folder_gone", "stderr_replaced", "stderr_none"],
)
def test_reports_all_the_same(hunt, before):
    code, _, err = hunt(before + BAD)
    line = (HEAD + before).count("\n") + 1
    assert code == FOUND
    assert f"script.py:{line}: " in err and BORN in err and "internal error" not in err


@pytest.mark.parametrize("read", ["x.item()", "float(x)", "bool(x)"])
def test_numbers_read_in_inference_mode(hunt, read):
    code, _, err = hunt(
        f"with torch.inference_mode():\n    x = torch.log(-torch.ones(1))\n    {read}"
    )
    assert code == FOUND and "script.py:5: " in err and BORN in err


def test_wrappers_of_transforms_have_no_storage(hunt):
    text = """
from torch.func import grad, hessian, vmap
f = lambda x: x.abs().sqrt().sum()
vmap(grad(f))(torch.zeros(2, 4))
print(torch.isnan(hessian(f)(torch.zeros(4))).any().item())
"""
    code, out, err = hunt(text)
    assert (code, out) == (OK, "True\n"), err


def test_a_scale_that_overflows_is_lowered(hunt):
    text = """
net = nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
for _ in range(12):
    optimizer.zero_grad()
    scaler.scale(net(torch.ones(3)).sum() * 100).backward()
    scaler.step(optimizer)
    scaler.update()
print(scaler.get_scale() < 2.0**127)
"""
    code, out, err = hunt(text)
    assert (code, out) == (OK, "True\n"), err


def test_keeps_no_more_births_than_it_may(monkeypatch):
    monkeypatch.setattr(births, "KEPT_BIRTHS", 8)
    from opstep.frontends.torch.eager.session import Session

    with Session(lambda found: None) as session:
        for _ in range(20):
            torch.log(torch.zeros(2))
    held = [b for b in session.births_of_own if b.arguments]
    assert len(session.births_of_own) == 20 and len(held) == 8


def test_what_a_compiled_function_gave():
    """Ops that no watcher has seen: stood for here by a write through NumPy."""
    from opstep.frontends.torch.eager.report import headline
    from opstep.frontends.torch.eager.session import Session

    found = []
    for compiles in (False, True):
        with Session(found.append) as session:
            session.births.compiles = compiles
            x = torch.zeros(3)
            x.numpy()[1] = float("nan")
            (x * 2).sum().item()
    assert [headline(one).partition(": ")[2] for one in found] == [
        "no op of PyTorch's wrote it",
        "no op that was seen wrote it",
    ]
    assert [births.COMPILED in one.why for one in found] == [False, True]
