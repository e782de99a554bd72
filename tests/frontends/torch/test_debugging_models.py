"""A model of PyTorch's, imported and debugged at the lines of its Python file."""

from __future__ import annotations

import importlib.util
import threading

import pytest
import torch
from dap.client import Client, markers_of

import opstep
from opstep.api import program as programs

MODEL = """\
import torch
from torch import nn


def gate(x, y):
    s = torch.sigmoid(x)  # break: sigmoid
    return s * y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x):
        y = self.fc(self.norm(x))  # break: fc
        y = gate(y, x)  # break: gate
        return x + y  # break: residual


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for block in self.h:
            x = block(x)  # break: call
        return x.sum(-1)  # break: sum
"""


@pytest.fixture
def net_py(tmp_path):
    path = tmp_path / "net_of_blocks.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


@pytest.fixture
def model(net_py):
    spec = importlib.util.spec_from_file_location("net_of_blocks", net_py)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Net().eval()


@pytest.fixture
def client():
    port = opstep.debug.listen()
    with Client.connect(port) as made:
        yield made
    opstep.debug.stop_listening()
    programs.interposed = None


def test_breakpoints_steps_and_variables(client, model, net_py):
    x = torch.ones(2, 4)
    program = opstep.from_torch(model, (x,))
    client.attach()
    lines = markers_of(net_py)
    assert all(b["verified"] is False for b in client.set_breakpoints(net_py, ["fc"]))
    client.request("configurationDone")
    assert opstep.debug.wait_for_client(20)
    results = []
    thread = threading.Thread(target=lambda: results.append(program.run("main", {"x": x})))
    thread.start()
    for k in range(3):
        client.expect_stop("breakpoint")
        names = [f["name"] for f in client.stack()]
        assert names == [f"Block.forward (h.{k})", "Net.forward"]
        assert [f["line"] for f in client.stack()] == [lines["fc"], lines["call"]]
        if k < 2:
            client.request("continue", threadId=1)
    seen = []
    for command in ("next", "stepIn", "stepOut", "stepBack", "next", "next"):
        client.go(command, "step")
        seen.append(client.where()[1])
    wanted = ["gate", "sigmoid", "residual", "gate", "residual", "sum"]
    assert seen == [lines[name] for name in wanted]
    frame = client.stack()[0]["id"]
    value = client.request("evaluate", expression="x[0, 0]", frameId=frame)["result"]
    with torch.no_grad():
        for block in model.h:
            x = block(x)
    assert float(value) == pytest.approx(x[0, 0].item(), rel=1e-5)
    client.request("continue", threadId=1)
    thread.join(30)
    assert next(iter(results[0].values())).tolist() == pytest.approx(x.sum(-1).tolist(), rel=1e-5)
