"""What docs/pytorch.md shows works when it is pasted, from top to bottom, in one folder."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from opstep.cli.main import main
from opstep.frontends.torch import findings

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FOUND = 5  # exit code of a hunt that found something


def test_the_journey(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    findings.clear()  # of tests before
    session: dict = {}
    said, ran = "", 0
    for language, block in BLOCKS:
        if saved := re.match(r"# (\w+\.py)\n", block):
            Path(saved[1]).write_text(block)
        elif language == "python":
            exec(compile(block, "pytorch.md", "exec"), session)
            said = capsys.readouterr().out
        elif language == "sh":
            for line in block.splitlines():
                words = shlex.split(line)[1:]
                assert main(words) == (FOUND if words[0] == "hunt" else 0), line
                ran += 1
            said = capsys.readouterr().out
        elif language == "json":
            assert json.loads(block)["type"] == "opstep"
        elif block.startswith("# net.Classifier"):
            assert block in Path("classifier.opg").read_text()
        elif "= torch." in block:
            assert all(line in Path("whitening.opg").read_text() for line in block.splitlines())
        elif language == "opg":
            pass  # `test_recurrent` compares it
        elif not block.startswith("net.py:9:9"):
            for line in block.splitlines():
                assert line in said
    assert ran == 11
    sys.modules.pop("net")
    sys.modules.pop("whitening")
