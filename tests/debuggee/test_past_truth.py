"""The past is true: of random scripts, each variable of each frame at each line is what a plain
trace function saw in another process, or it is marked; few are.

A bigger run: `--scripts 100` in each case; or `python tests/debuggee/truth.py`, see there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from truth import compared

HERE = Path(__file__).parent
CASES = [(kind, k) for kind in ("plain", "tensors") for k in range(6)]
MOST_MARKED = 0.05


def written(mode: str, out: Path, first: int, count: int, kind: str) -> list:
    environment = dict(os.environ, PYTHONPATH=str(HERE.parents[1]), PYTHONHASHSEED="0")
    words = [sys.executable, "truth.py", mode, str(out), str(first), str(count), kind]
    done = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("kind, case", CASES)
def test_the_past_is_what_was(tmp_path, pytestconfig, kind, case):
    if kind == "tensors":
        pytest.importorskip("torch")
    count = pytestconfig.getoption("--scripts")
    first = case * count
    live, past = (written(mode, tmp_path / mode, first, count, kind) for mode in ("live", "past"))
    total: Counter[str] = Counter()
    for (events, error), (kept, error_then) in zip(live, past, strict=True):
        counts, wrong = compared(events, kept)
        total += counts
        assert (wrong[:3], error) == ([], error_then)
    assert total["variables"] > 1000
    assert total["marked"] <= MOST_MARKED * total["variables"]
