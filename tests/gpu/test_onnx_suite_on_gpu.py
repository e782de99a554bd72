"""ONNX's own tests of backends on a GPU, each case by kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
sys.path.append(str(Path(__file__).resolve().parents[1] / "frontends" / "onnx"))

from test_onnx_suite import GROUPS, compare, taken


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_standard_tests(group):
    compare(taken(group), "CUDA")
