"""What docs/onnx.md shows works when it is pasted, from top to bottom, in one folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from opstep.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FOUND = 5  # exit code of a hunt that found something


def test_the_journey(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    session: dict = {}
    said, ran = "", 0
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "onnx.md", "exec"), session)
            said = capsys.readouterr().out
        elif language == "sh":
            for line in block.splitlines():
                words = shlex.split(line)[1:]
                assert main(words) == (FOUND if words[0] == "hunt" else 0), line
                ran += 1
            said = capsys.readouterr().out
        elif language == "opg":
            assert Path("classifier.opg").read_text() == block
        elif not block.startswith("error: net.onnx"):
            assert all(line in said for line in block.splitlines()), block
    assert ran >= 4
