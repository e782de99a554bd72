"""What is said while a script waits: for imports, translations and kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scripts import NET

pytest.importorskip("torch")

AT_ONCE = "import opstep.frontends.scripts.waiting as waiting\nwaiting.PATIENCE_S = 0.0\n"


@pytest.fixture
def net(script):
    return script(NET + "print(net(torch.ones(2, 4)).shape)\n")


@pytest.mark.slow
def test_what_lasts_is_told_once_on_standard_error(net, tmp_path, monkeypatch):
    words = ["run", "--compiled", net]
    text = f"{AT_ONCE}import sys; from opstep.cli.main import main; sys.exit(main({words}))"
    monkeypatch.setenv("OPSTEP_CACHE", str(tmp_path / "kernels"))
    for progress in ("1", ""):
        monkeypatch.setenv("OPSTEP_PROGRESS", progress)
        ended = subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert (ended.returncode, ended.stdout) == (0, "torch.Size([2, 2])\n")
        said = [line.partition(" kernel ")[0] for line in ended.stderr.splitlines()]
        phases = ["importing PyTorch …", "translating Net …", "compiling"]
        assert said == [f"{net}: {phase}" for phase in phases if progress]
