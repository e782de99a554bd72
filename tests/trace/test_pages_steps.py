"""Pages of a workspace about a run of many steps: which of them are shown."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

import opstep
from opstep.trace.workspace import datasette as viewer

TRAINED = """\
param w: f32[4] = zeros()
param fixed: f32[4] = ones()
graph main(x: f32[4]) -> f32[], f32[] {
  zz = sum(x)
  size = max(x)
  more = add(w, fixed)
  w <- more
  return zz, size
}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Pages of a run of 300 steps in which one step explodes and others give zeros."""
    path = tmp_path_factory.mktemp("trained") / "runs.db"
    program = opstep.loads(TRAINED)
    with opstep.Recording(workspace=path) as recording:
        for step in range(300):
            x = np.full(4, 2.0**20 if step == 3 else float(step % 2), np.float32)
            program.run("main", {"x": x}, recording=recording)
    application = viewer.application(path)
    return lambda address: asyncio.run(application.client.request("GET", address)).text


def test_updated_params_are_shown_as_the_step_left_them(trained):
    page = trained("/-/program/1?step=9")
    shown = [re.findall(rf'<tr id="L{k}">(.*?)</tr>', page, re.DOTALL)[0] for k in (1, 2)]
    assert "10 ± 0" in shown[0] and "before the first step" not in shown[0]
    assert "1 ± 0" in shown[1] and "before the first step" in shown[1]


def test_no_step_is_missing_from_a_heat_map(trained):
    page = trained("/-/op/1/0")  # zz = sum(x)
    assert "2^20" in page, "step 3 alone has a sum near it"


def test_the_curve_is_that_of_the_first_result(trained):
    assert '<span title="zz">' in trained("/")
