"""What docs/onnx.md shows works when it is pasted, from top to bottom, in one folder."""

from __future__ import annotations

from pathlib import Path

from shared.guides import blocks, enter, run_commands


def test_the_journey(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    session: dict = {}
    said, ran = "", 0
    for language, block in blocks("onnx.md"):
        if language == "python":
            exec(compile(block, "onnx.md", "exec"), session)
            said = capsys.readouterr().out
        elif language == "sh":
            ran += run_commands(block)
            said = capsys.readouterr().out
        elif language == "opg":
            assert Path("classifier.opg").read_text() == block
        elif not block.startswith("error: net.onnx"):
            assert all(line in said for line in block.splitlines()), block
    assert ran >= 4
