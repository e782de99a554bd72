"""What docs/pytorch.md shows works when it is pasted, from top to bottom, in one folder."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from shared.guides import blocks, enter, run_commands

from opstep.frontends.torch import findings

pytest.importorskip("torch")


def test_the_journey(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    findings.clear()  # of tests before
    session: dict = {}
    said, ran = "", 0
    for language, block in blocks("pytorch.md"):
        if saved := re.match(r"# (\w+\.py)\n", block):
            Path(saved[1]).write_text(block)
        elif language == "python":
            exec(compile(block, "pytorch.md", "exec"), session)
            said = capsys.readouterr().out
        elif language == "sh":
            ran += run_commands(block)
            said = "".join(capsys.readouterr())
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
    assert ran == 13
    sys.modules.pop("whitening")
