"""How Python scripts end that opstep runs: errors, and what is left to PyTorch."""

from __future__ import annotations

import pytest
from scripts import NET

from opstep.cli.main import main

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def fresh():
    """As at the start of a process."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def script(write):
    """Writes a script; gives its name."""
    return lambda text: write("train.py", text)


def test_a_traceback_is_the_scripts_own(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = script(NET + "def wrong(m, args, out): raise KeyError('oops')\n"
                  "net.register_forward_hook(wrong)\nnet(torch.ones(1, 4))\n")  # fmt: skip
    assert main(["run", "--compiled", name]) == 1
    told = capsys.readouterr().err
    assert "KeyError: 'oops'" in told and told.startswith("Traceback")
    files = [line.split('"')[1] for line in told.splitlines() if line.startswith("  File")]
    assert files[0] == files[-1] == str(tmp_path / name)
    assert not [f for f in files if "opstep/" in f or "_dynamo" in f]


def test_a_traceback_has_all_callers(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = script("import torch\nclass Net(torch.nn.Module):\n"
                  "    def forward(self, x): return self.check(x + 1)\n"
                  "    def check(self, y):\n        print(y.sum().item() > 0)\n"
                  "        y = y + 1\n        print(y.sum().item())\n"
                  "        raise KeyError('oops')\nNet()(torch.ones(2))\n")  # fmt: skip
    assert main(["run", "--compiled", name]) == 1
    told = capsys.readouterr().err
    lines = [int(line.split()[3].strip(",")) for line in told.splitlines() if "  File" in line]
    assert lines[0] == 9 and lines[-1] == 8 and lines.count(8) == 1, told


def test_shapes_that_do_not_fit(script, tmp_path, monkeypatch, capsys):
    """The error is PyTorch's own; nothing is said of how modules are compiled."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--compiled", script(NET + "net(torch.ones(1, 5))\n")]) == 1
    told = capsys.readouterr().err
    assert told.startswith("Traceback") and "Dynamo" not in told
    assert 'train.py", line 12, in forward' in told
    assert told.endswith("shapes cannot be multiplied (1x5 and 4x4)\n")


def test_an_op_without_a_counterpart(cli, script):
    name = script(
        """
        import torch
        class Eigen(torch.nn.Module):
            def forward(self, x):
                return torch.linalg.eigvalsh(x)
        print(Eigen()(torch.eye(2)))
        """
    )
    outcome = cli("run", "--compiled", name)
    assert outcome.code == 2 and "train.py:5:9: error: aten._linalg_eigh.default" in outcome.err
    assert "hint: --fallback torch" in outcome.err
    torch._dynamo.reset()
    outcome = cli("run", "--compiled", "--fallback", "torch", name)
    assert outcome.out == "tensor([1., 1.])\n"


def test_modules_on_meta(cli, script):
    name = script(NET + "empty = Net().to('meta')\n"
                  "empty(torch.empty(2, 4, device='meta')).sum().backward()\n"
                  "print(empty.out.weight.grad.device, net(torch.ones(2, 4)).shape)\n")  # fmt: skip
    for words in (["run", "--compiled"], ["hunt", "--compiled"]):
        torch._dynamo.reset()
        outcome = cli(*words, name)
        assert outcome.code == 0 and "meta torch.Size([2, 2])\n" in outcome.out
        assert "meta" not in outcome.err


def test_second_derivatives(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = script(NET + "x = torch.ones(1, 4, requires_grad=True)\n"
                  "gradient, = torch.autograd.grad(net(x).sum(), x, create_graph=True)\n"
                  "(gradient.sum() + x.pow(2).sum()).backward()\n")  # fmt: skip
    assert main(["run", "--compiled", name]) == 1
    told = capsys.readouterr().err
    assert "double backward" in told and "--module PATTERN only others are compiled" in told
    torch._dynamo.reset()
    assert main(["run", "--compiled", "--module", "decoder.*", name]) == 0


def test_what_pytorch_cannot_compile(cli, script):
    name = script("""
        import torch
        @torch.library.custom_op("script_errors::own", mutates_args=())
        def own(x: torch.Tensor) -> torch.Tensor:
            return x + 1
        own.register_fake(torch.empty_like)
        class Net(torch.nn.Linear):
            def forward(self, x):
                return own(super().forward(x))
        print(Net(2, 2)(torch.ones(2)).shape)
    """)
    outcome = cli("run", "--compiled", name)
    assert outcome.code == 2
    assert "train.py:10:1: error: PyTorch cannot compile what is called here" in outcome.err
    assert "register_autograd" in outcome.err and "hint: with --module PATTERN" in outcome.err


def test_a_recursion_without_end(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = script("import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
                  "        return self.forward(x)\nNet()(torch.ones(2))\n")  # fmt: skip
    assert main(["run", "--compiled", name]) == 1
    told = capsys.readouterr().err
    assert "RecursionError: maximum recursion depth exceeded" in told and "Dynamo" not in told
