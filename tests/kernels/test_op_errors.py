"""What ops refuse. Comments in the programs of `errors/` say what is reported, line by line.

``# error: …`` holds the whole message, ``# hint: …`` its hint; other lines report nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import opstep.kernels  # noqa: F401 - declares the ops
from opstep.runtime.ir.graph import Source
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.verify import verify_with_diagnostics

FILES = sorted((Path(__file__).parent / "errors").glob("*.opg"))
MARK = re.compile(r"# error: (.*?)(?: # hint: (.*))?$")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_ops_refuse(path: Path) -> None:
    text = path.read_text()
    source = Source(text, path.name)
    _, diagnostics = verify_with_diagnostics(parse(text, path.name), OPS)
    found = [(source.locate(d.span.start)[0], d.message, d.hint) for d in diagnostics if d.span]
    wanted = [
        (number, match[1], match[2] or "")
        for number, line in enumerate(text.split("\n"), 1)
        if (match := MARK.search(line))
    ]
    assert found == wanted
