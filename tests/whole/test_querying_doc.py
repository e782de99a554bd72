"""What docs/querying.md shows works when it is pasted, from top to bottom, in one folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from opstep.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "querying.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_journey(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "opstep").symlink_to(ROOT / "opstep")
    monkeypatch.chdir(tmp_path)
    Path("digits.opg").write_text(next(block for _, block in BLOCKS if "graph main" in block))
    ran = 0
    for (language, block), (_, said) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if language == "python":
            capsys.readouterr()
            exec(compile(block, "querying.md", "exec"), {})
            assert capsys.readouterr().out == said
        elif not language:
            for line in block.splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
                ran += 1
    assert ran > 15
    capsys.readouterr()
    assert main(["ws", "runs.db", "compare", "1", "2"]) == 2, "pruned"
    assert {p.name for p in tmp_path.iterdir()} >= {"absmax.png", "w.npy", "stats.csv", "stats.npz"}


def test_what_compare_says(tmp_path, monkeypatch, capsys):
    (tmp_path / "opstep").symlink_to(ROOT / "opstep")
    monkeypatch.chdir(tmp_path)
    Path("digits.opg").write_text(next(block for _, block in BLOCKS if "graph main" in block))
    runs = next(block for _, block in BLOCKS if block.startswith("opstep run"))
    for line in runs.splitlines():
        assert main(shlex.split(line)[1:]) == 0
    capsys.readouterr()
    assert main(["ws", "runs.db", "compare", "1", "2"]) == 1
    said = capsys.readouterr().out
    shown = next(block for _, block in BLOCKS if "they differ" in block)
    for line in shown.splitlines()[1:5]:
        assert line in said
    main(["ws", "runs.db"])
    assert "digits.opg:9: inf: log gives logs: 8,949 of 12,970 elements" in capsys.readouterr().out
