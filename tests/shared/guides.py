"""Guides that are run as they stand: what blocks of a page in docs/ do."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from opstep.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
FOUND = 5  # exit code of a hunt that found something


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block, in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def enter(folder: Path, monkeypatch) -> None:
    """A guide is read in a folder of its own, whose `net.py` is not that of another guide."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "net", raising=False)


def run_commands(block: str) -> int:
    """Runs ``opstep …``, line by line; how many there were."""
    lines = block.splitlines()
    for line in lines:
        words = shlex.split(line)[1:]
        assert main(words) == (FOUND if words[0] == "hunt" else 0), line
    return len(lines)
