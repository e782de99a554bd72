"""What docs/jax.md shows works when it is pasted, from top to bottom, in one folder."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from shared.guides import blocks, enter, run_commands

pytest.importorskip("jax")


def test_the_journey(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    session: dict = {}
    said, ran, compared = "", 0, 0
    for language, block in blocks("jax.md"):
        if saved := re.match(r"# (\w+\.py)\n", block):
            Path(saved[1]).write_text(block)
        elif language == "python":
            with warnings.catch_warnings(action="ignore"):
                exec(compile(block, "jax.md", "exec"), session)
            said = capsys.readouterr().out
        elif language == "sh":
            ran += run_commands(block)
            said = capsys.readouterr().out
        elif language == "opg":
            assert Path("classifier.opg").read_text() == block
        else:
            for line in block.splitlines():
                assert line in said
                compared += 1
    assert (ran, compared) == (5, 21)
