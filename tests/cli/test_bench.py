"""``opstep bench``, and the options that choose kernels."""

from __future__ import annotations

import re

import pytest

from opstep.runtime.device.cuda.vendor import libraries
from opstep.trace import bench


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Ceilings of small tensors."""
    monkeypatch.setattr(bench, "SIZES", bench.Sizes(1 << 14, 32))


def test_a_table(cli, scale):
    outcome = cli("bench", scale, "--graph", "main", "-s", "N=64", "--steps", 3)
    assert outcome.code == 0
    heading, ceilings, columns, *rows = outcome.out.splitlines()
    assert heading.startswith("main: ")
    assert "(cpu)" in heading
    assert ceilings.startswith("ceilings: copy ")
    assert "matrix product f32" in ceilings
    assert columns.split()[:4] == ["line", "op", "result", "time"]
    assert {row.split()[1] for row in rows} >= {"linear", "add"}


def test_a_narrow_terminal_has_a_line_for_each_op(cli, write, terminal):
    wide = "graph main(x: f32[2, 3, 64, 64]) -> f32[2, 3, 64, 64] {\n  y = relu(x)\n  return y\n}\n"
    terminal()
    outcome = cli("bench", write("wide.opg", wide), "--steps", 3)
    *_, columns, row = outcome.out.splitlines()
    assert columns.split()[-3:] == ["FLOP/s", "of", "product"]
    assert re.match(r"\s*2  relu .* \d[\d.]* [mµ]s .* \d+ %$", row.rstrip()) and len(row) <= 80


def test_in_the_order_of_the_program(cli, scale):
    outcome = cli("bench", scale, "-s", "N=64", "--steps", 3, "--sort", "line")
    ops = [row.split()[1] for row in outcome.out.splitlines()[3:]]
    assert ops[:2] == ["linear", "add"]


def test_json(cli, scale):
    found = cli("bench", scale, "-s", "N=64", "--steps", 3, "--json").json
    assert (found["graph"], found["device"], found["steps"]) == ("main", "cpu", 3)
    linear = next(op for op in found["ops"] if op["op"] == "linear")
    assert linear["flops"] == 2 * 64 * 2 * 3
    assert linear["rate"] == pytest.approx(linear["flops"] / linear["seconds"])
    assert linear["of_bandwidth"] == pytest.approx(
        linear["bandwidth"] / found["ceilings"]["bandwidth"]
    )
    assert found["step_seconds"] > 0


def test_a_picture(cli, scale, tmp_path):
    outcome = cli("bench", scale, "-s", "N=64", "--steps", 3, "--roofline", "roof.svg")
    assert outcome.code == 0
    assert "wrote roof.svg" in outcome.err
    assert "linear" in (tmp_path / "roof.svg").read_text()


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--roofline", "roof.txt"], "write to a .png, .svg or .pdf file"),
        (["--roofline", "no/roof.png"], "--roofline no/roof.png"),
        (["--device", "null"], "nothing that could be timed"),
        (["--kernels", "vendor"], "--kernels is for GPUs"),
        (["--autotune"], "--autotune is for GPUs"),
        (["--graph", "none"], "there is no graph none"),
    ],
)
def test_bad_input(cli, scale, arguments, told):
    outcome = cli("bench", scale, "-s", "N=4", *arguments)
    assert outcome.code == 2
    assert told in outcome.err


def test_run_takes_the_options_for_gpus_alone(cli, scale):
    outcome = cli("run", scale, "-i", "random", "-s", "N=4", "--kernels", "numba")
    assert outcome.code == 2
    assert "--kernels is for GPUs" in outcome.err
    assert "add --device cuda" in outcome.err


def test_the_words_for_missing_libraries_are_a_command():
    assert libraries.INSTALL == "pip install 'opstep[vendor]'"
