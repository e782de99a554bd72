"""Register tiles as machines with other vectors would have them: right, and for outer tiles bit for
bit.

Each set of registers needs a process of its own: kernels are compiled once a process.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, json, sys
from pathlib import Path
import numpy as np
import opstep.kernels
from opstep.runtime.device import cpu, tiles
from opstep.runtime.device.cache import Compiler
from opstep.runtime.ir.op import OPS, complete

folder, nbytes, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Compiler.folder = Path(folder)
if nbytes:
    tiles._registers = lambda: (nbytes, count)
rng = np.random.default_rng(0)
found = {}

def hold(what, op, shapes, dtype="f4", **attrs):
    arrays = [(rng.standard_normal(s) * 8).astype(dtype) for s in shapes]
    attrs = complete(OPS[op], attrs)
    (y,) = cpu.execute(OPS[op], arrays, attrs, lanes=1)
    wide = [a.astype("f8" if a.dtype.kind == "f" else a.dtype) for a in arrays]
    want = OPS[op].oracle(*wide, **attrs)
    error = float(np.abs(y - want).max() / np.abs(want).max())
    found[what] = [error, hashlib.sha256(y.tobytes()).hexdigest()]

for filters in (1, 2, 3, 7, 19):  # tiles of one, two, four and eight rows, with rows left over
    hold(f"conv {filters}", "conv2d", [(2, 3, 9, 11), (filters, 3, 3, 3), (filters,)], padding=(1,
    1))
for width in (16, 33, 70, 150):  # of so many columns, from one vector to all
    hold(f"conv {width} wide", "conv2d", [(1, 2, 4, width), (8, 2, 1, 1)])
    hold(f"one conv {width} wide", "conv2d", [(1, 2, 3, width), (1, 2, 1, 1)])
hold("transpose", "conv_transpose2d", [(1, 5, 6, 7), (5, 3, 3, 3), (3,)], stride=(2, 2))
hold("matmul", "matmul", [(37, 300), (300, 53)])
hold("matmul f8", "matmul", [(21, 40), (40, 53)], "f8")
hold("matmul i1", "matmul", [(21, 40), (40, 53)], "i1")
hold("matmul left", "matmul", [(300, 37), (300, 53)], transpose_a=True)
hold("linear", "linear", [(5, 70), (90, 70), (90,)])
hold("inner row", "linear", [(1, 77), (29, 77), (29,)])
hold("inner filters", "conv2d_weight_grad", [(2, 5, 6, 7), (2, 7, 8, 9)], kernel=(3, 3))
print(json.dumps(found))
"""


def results(folder, nbytes: int = 0, count: int = 0) -> dict:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(nbytes), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> dict:
    return results(tmp_path_factory.mktemp("kernels"))


@pytest.mark.slow
@pytest.mark.parametrize("nbytes, count", [(32, 16), (16, 32)])
def test_other_registers(ours, tmp_path, nbytes, count):
    found = results(tmp_path, nbytes, count)
    for what, (error, digest) in found.items():
        assert error <= (1e-12 if "f8" in what else 2e-6), what
        if not what.startswith("inner"):
            assert digest == ours[what][1], f"{what}: other bits"
