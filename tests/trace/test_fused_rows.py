"""Timelines whose rows are several ops, as those of GPUs are: told on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.api import executable, program
from opstep.kernels import stdlib
from opstep.runtime.ir.errors import InputError
from opstep.runtime.plan.plan import Fuse
from opstep.trace.describe import members_of
from opstep.trace.viewer.engine import Engine
from opstep.trace.viewer.slice_positions import find

TEXT = """state n: f32[1048576] = ones()

graph scaled(x: f32[N], by: f32[]) -> f32[N] {
  y = mul(x, by)
  z = tanh(y)
  return z
}

graph main(x: f32[1048576], by: f32[]) -> f32[1048576] {
  e = exp(x)
  k = scaled(e, by)
  m = add(k, n)
  next = neg(m)
  n <- next
  return m
}
"""

BLOCK = """graph main(x: f32[65536, 2, 4], v: f32[4], w: f32[3, 2, 2, 4], b: f32[3, 2, 2],
    o: f32[4, 2, 2], s: f32[4, 4]) -> f32[65536, 2, 4] {
  t = transformer_block(x, v, v, w, b, o, v, v, v, s, v, s, v)
  r = relu(t)
  return r
}
"""


def recorded(folder, text, inputs):
    """A timeline of a run, in which ops run as one."""
    (folder / "net.opg").write_text(text, encoding="utf-8")
    made = opstep.load(folder / "net.opg")
    with pytest.MonkeyPatch.context() as patch:
        for module in (program, executable):
            patch.setattr(module, "fusing_for", lambda recording, device: Fuse.ALL)
        with opstep.Recording(trace=folder / "run.pftrace") as recording:
            assert recording.fuses
            made.run("main", inputs, recording=recording, steps=3)
    return folder / "run.pftrace"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    inputs = {"x": np.ones(1 << 20, "f4"), "by": 2.0}
    with Engine(recorded(tmp_path_factory.mktemp("fused"), TEXT, inputs)) as engine:
        yield engine


def about(trace):
    column = "extract_arg(arg_set_id, 'debug.attrs')"
    rows = trace.query(f"select name, {column} from slice where category = 'op'").rows
    return {name: json.loads(attrs) for name, attrs in rows if attrs and "sites" in attrs}


def test_a_row_tells_of_its_ops(trace):
    first, second = about(trace).items()
    assert [name for name, _ in (first, second)] == [
        "m = exp+mul+tanh and 1 more",
        "n = neg+update",
    ]
    told = {key: first[1][key] + second[1][key] for key in ("ops", "sites", "places")}
    assert told["ops"][:2] == ["e = exp(x)", "y = mul(x, by)"] and told["ops"][-1] == "n <- next"
    assert told["sites"] == [
        "main/e", "main/scaled:k/y", "main/scaled:k/z", "main/m", "main/next", "main/n",
    ]  # fmt: skip
    places = [place.rsplit("/", 1)[-1] for place in told["places"]]
    assert places == [f"net.opg:{line}" for line in (10, 4, 5, 12, 13, 14)]


def test_each_op_has_the_line_of_its_own_file(tmp_path):
    shapes = {
        "x": (65536, 2, 4),
        "v": 4,
        "w": (3, 2, 2, 4),
        "b": (3, 2, 2),
        "o": (4, 2, 2),
        "s": (4, 4),
    }
    inputs = {name: np.ones(shape, "f4") for name, shape in shapes.items()}
    with Engine(recorded(tmp_path, BLOCK, inputs)) as engine:
        (told,) = [t for t in about(engine).values() if "main/r" in t["sites"]]
    assert told["sites"] == ["main/transformer_block:t/y", "main/r"]
    first, second = told["places"]
    file, _, line = first.rpartition(":")
    assert file.rsplit("/", 1)[-1] == "blocks.opg"
    text = (Path(stdlib.__file__).parent / "blocks.opg").read_text(encoding="utf-8").splitlines()
    assert text[int(line) - 1].strip() == "y = add(x1, thought)"
    assert second.endswith("net.opg:4")


@pytest.mark.parametrize(
    "at", ["e", "main/e", "y", "main/scaled:k/y", "tanh", "net.opg:5", "12", "next", "update", "14"]
)
def test_it_is_found_by_each_of_them(trace, at):
    first, second = about(trace)
    assert find(trace, at).name == (second if at in ("next", "update", "14") else first)


def test_it_is_not_found_by_what_none_of_them_is(trace):
    for at in ("main/scaled:k/e", "net.opg:6"):
        with pytest.raises(InputError):
            find(trace, at)


@pytest.mark.parametrize(
    "attrs", [{"ops": None}, {"ops": 3}, {"ops": [1], "sites": ["a"], "places": ["f:1"]},
              {"ops": ["a"], "sites": ["b"], "places": []}, {"places": ["x"]}, {}],
)  # fmt: skip
def test_an_ops_own_attributes_are_not_taken_for_ops(attrs):
    assert members_of(attrs) == []


def test_recordings_whose_tensors_are_asked_about_have_them_in_registers(tmp_path):
    with opstep.Recording(workspace=tmp_path / "a.db", stats="none") as recording:
        assert recording.fuses is Fuse.ELEMENTWISE
    with opstep.Recording(workspace=tmp_path / "a.db", stats_also="signed") as recording:
        assert recording.fuses is Fuse.NOTHING
