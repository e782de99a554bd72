"""ONNX's own tests of backends on a GPU, each case by kernels."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("onnx")
sys.path.append(str(Path(__file__).resolve().parents[1] / "frontends" / "onnx"))

from test_onnx_suite import GROUPS, compare, taken

HALVES = "fp16"
ROUNDING = 2e-3  # of those: tensor cores and NumPy round sums at other places


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_standard_tests(group):
    cases = [
        replace(case, rtol=max(case.rtol, ROUNDING)) if HALVES in case.name else case
        for case in taken(group)
    ]
    compare(cases, "CUDA")
