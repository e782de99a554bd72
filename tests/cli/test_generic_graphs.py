"""Commands on generic graphs: what says the types, and how instances are called."""

from __future__ import annotations

import numpy as np
import pytest

TEXT = """\
graph main<T: float>(x: T[N], k: T[]) -> T[N] {
  y = logs(x)
  z = mul(y, k)
  return z
}

graph logs<T: float>(x: T[N]) -> T[N] {
  y = log(x)
  return y
}
"""


@pytest.fixture
def generic(write) -> str:
    return write("generic.opg", TEXT)


def test_types_are_said_or_default(cli, generic):
    for said, t in [((), "f32"), (("-s", "T=bf16"), "bf16"), (("-s", "T=f64"), "f64")]:
        outcome = cli("run", generic, "-i", "ones", "-s", "N=3", *said)
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith(f"main<{t}>: ") and f"{t}[3]" in outcome.out


def test_files_say_types(cli, generic):
    np.save("half.npy", np.ones(3, "f2"))
    outcome = cli("run", generic, "-i", "x=half.npy", "-i", "k=2")
    assert "main<f16>" in outcome.out and "f16[3]" in outcome.out
    outcome = cli("run", generic, "-i", "x=half.npy", "-i", "k=2", "-s", "T=f64")
    assert outcome.code == 2
    assert "T is bound to two types: f64, and f16 by x, which is T[N]" in outcome.err


@pytest.mark.parametrize(
    ("symbol", "why"),
    [
        ("T=i8", "--symbol T=i8: T is one of f64 f32 f16 bf16"),
        ("T=3", "--symbol T=3: T is an element type"),
        ("N=f16", "--symbol N=f16: N is a size"),
        ("T=f61", "--symbol T=f61: not the name of a dimension and its size"),
        ("U=f16", "--symbol U=f16: graph main has no dimension or type U"),
    ],
)
def test_symbols_that_do_not_fit(cli, generic, symbol, why):
    outcome = cli("run", generic, "-i", "ones", "-s", symbol)
    assert outcome.code == 2
    assert why in outcome.err


def test_plan_names_instances_and_reads_them_back(cli, generic, write):
    outcome = cli("plan", generic, "-s", "N=3", "-s", "T=f16")
    assert "f1  logs<f16>  f0  line 2" in outcome.out
    assert cli("plan", "--saved", write("saved.plan", outcome.out)).code == 0


def test_hunt_and_diff(cli, generic):
    outcome = cli("hunt", generic, "-i", "x=0", "-i", "k=2", "-s", "N=3", "-s", "T=f16")
    assert "born in log y at logs<f16>" in outcome.out
    given = ("-i", "ones", "-s", "N=3", "-s", "T=bf16")
    assert cli("diff", generic, *given).code == 0
    assert cli("diff", generic, "--b", "f64", *given).code == 0


def test_fmt_and_check(cli, generic, write):
    assert cli("fmt", "--check", generic).code == 0
    assert cli("check", generic).code == 0
    messy = write("messy.opg", TEXT.replace("<T: float>(", " < T:float > ("))
    assert cli("fmt", messy).code == 0
    with open(messy, encoding="utf-8") as file:
        assert file.read() == TEXT


def test_a_recorded_run_is_rerun_in_its_type(cli, generic):
    given = ("-i", "ones", "-s", "N=3", "-s", "T=f16")
    assert cli("run", generic, *given, "--workspace", "runs.db").code == 0
    outcome = cli("ws", "runs.db", "rerun", "last")
    assert outcome.code == 0 and "same bits" in outcome.out
