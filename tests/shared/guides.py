"""Guides that are run as they stand: what blocks of a page in docs/ do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from opstep.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
FOUND = 5  # exit code of a hunt that found something


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block, in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_commands(block: str) -> int:
    """Runs ``opstep …``, line by line; how many there were."""
    lines = block.splitlines()
    for line in lines:
        words = shlex.split(line)[1:]
        assert main(words) == (FOUND if words[0] == "hunt" else 0), line
    return len(lines)
