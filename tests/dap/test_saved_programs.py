"""Programs whose weights and example inputs are beside them, and exported models of PyTorch."""

from __future__ import annotations

import numpy as np

import opstep

TEXT = """\
param w: f32[3]

graph main(x: f32[N, 3]) -> f32[N, 3] {
  m = mul(x, w)  # break: first
  y = add(m, 1.0)  # break: second
  return y
}
"""


def evaluated(client, name):
    frame = client.stack()[0]["id"]
    return client.request("evaluate", expression=name, frameId=frame, context="repl")["result"]


def test_a_saved_program_runs_on_its_example(client, tmp_path):
    program = opstep.loads(TEXT)
    program.params["w"] = [1.0, 2.0, 3.0]
    program.example = {"x": np.ones((2, 3), np.float32)}
    program.save(tmp_path / "net.opg")
    client.start(tmp_path / "net.opg", inputs="example", breakpoints=["second"])
    client.expect_stop("breakpoint")
    assert "1.0, 2.0, 3.0" in evaluated(client, "m")


def test_an_exported_model_is_stepped_in_its_text(client, tmp_path):
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            return y + 1

    exported = torch.export.export(Net(), (torch.ones(2),))
    torch.export.save(exported, tmp_path / "net.pt2")
    client.launch(tmp_path / "net.pt2", inputs="example", stopOnEntry=True)
    client.request("setExceptionBreakpoints", filters=[])
    client.request("configurationDone")
    client.expect_stop("entry")
    assert client.stack()[0]["source"]["path"] == __file__
    client.request("opstep/sourceView", view="graph")
    source = client.stack()[0]["source"]
    text = client.request("source", sourceReference=source["sourceReference"])["content"]
    assert "y = mul(x, 2.0)" in text or "y = mul(x, 2)" in text
