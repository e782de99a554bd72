"""Models as texts for an editor: ``python -m opstep.editors.model``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opstep.api.program import load


def translate(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opstep.editors.model", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_model_is_a_text_without_its_weights(tmp_path: Path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    exported = torch.export.export(net, (torch.ones(2, 4),))
    torch.export.save(exported, tmp_path / "net.pt2")
    target = tmp_path / "made" / "net.opg"
    assert translate(tmp_path / "net.pt2", target).returncode == 0
    assert list(target.parent.iterdir()) == [target]
    text = target.read_text()
    assert "relu(" in text and "f32[3, 4]" in text
    assert list(load(target).graphs) == list(load(tmp_path / "net.pt2").graphs)


def test_what_is_no_model_is_refused_in_words(tmp_path: Path):
    (tmp_path / "net.onnx").write_text("no model")
    done = translate(tmp_path / "net.onnx", tmp_path / "net.opg")
    assert done.returncode == 1
    assert "net.onnx" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "net.opg").exists()
