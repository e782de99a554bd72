"""Commands that look at things: ``ops``, ``plan``, ``doctor``, ``demo``."""

from __future__ import annotations

from pathlib import Path

import pytest

from opstep.runtime.ir.op import OPS

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_ops_lists_every_op_by_family(cli):
    outcome = cli("ops")
    assert outcome.code == 0
    listed = {line.split()[0] for line in outcome.out.splitlines() if line.strip()}
    assert {"relu", "conv2d", "while"} <= listed
    assert set(cli_names(cli)) <= listed


def test_graphs_of_the_library_are_listed_with_the_ops(cli):
    names = [record["name"] for record in cli("ops", "--family", "library", "--json").json]
    assert "attention" in names
    outcome = cli("ops", "attention")
    assert "graph attention<T: float>(" in outcome.out
    assert "softmax" in outcome.out


def cli_names(cli) -> list[str]:
    return [record["name"] for record in cli("ops", "--json").json]


def test_ops_of_one_family(cli):
    family = OPS["conv2d"].family
    names = [record["name"] for record in cli("ops", "--family", family, "--json").json]
    assert "conv2d" in names and "relu" not in names


def test_one_op(cli):
    outcome = cli("ops", "softmax")
    assert outcome.code == 0
    assert OPS["softmax"].signature in outcome.out
    assert "gradient" in outcome.out
    record = cli("ops", "softmax", "--json").json
    assert record["attributes"] == [
        {"name": "axis", "type": "int", "required": False, "default": -1}
    ]


def test_one_op_with_what_holds_for_its_family(cli):
    assert "An index below 0 counts from the end." in cli("ops", "gather").out
    assert "Gives one y or several." in cli("ops", "while").out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["sofmax"], "did you mean softmax"),
        (["zzz"], "opstep ops lists"),
        (["--family", "no"], "there is no family no"),
    ],
)
def test_unknown_ops(cli, arguments, message):
    outcome = cli("ops", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_plan(cli, scale):
    outcome = cli("plan", scale, "-s", "N=4", "--streams", "2")
    assert outcome.code == 0
    assert "linear" in outcome.out
    assert "no races" in outcome.out
    record = cli("plan", scale, "-s", "N=4", "--json").json
    assert record["graph"] == "main"
    assert record["hazards"] == []
    (made,) = record["plans"]
    assert made["memory_bytes"]["live_at_most"] <= made["memory_bytes"]["used"]
    assert made["text"].strip()


@pytest.mark.parametrize("name", ["lenet", "while", "branches"])
def test_what_is_used_unshared_is_what_debug_mode_takes(cli, name):
    command = ("plan", EXAMPLES / f"{name}.opg", "-s", "N=8", "--json")
    shared = [made["memory_bytes"] for made in cli(*command).json["plans"]]
    alone = [made["memory_bytes"] for made in cli(*command, "--mode", "debug").json["plans"]]
    for left, right in zip(shared, alone, strict=True):
        assert left["used"] <= left["tensors"] == right["tensors"] == right["used"]
        assert right["used"] == right["live_at_most"] > 0


def test_graphs_that_control_flow_calls_are_planned_too(cli, write):
    write("loop.opg", """\
        graph main(x: f32[N]) -> f32[N] {
          y = while(x, test=large, body=less_of_it)
          return y
        }
        graph large(x: f32[N]) -> bool[] {
          big = greater(x, 1.0)
          some = any(big)
          return some
        }
        graph less_of_it(x: f32[N]) -> f32[N] {
          a = mul(x, 0.5)
          b = tanh(x)
          y = minimum(a, b)
          return y
        }
        """)  # fmt: skip
    outcome = cli("plan", "loop.opg", "-s", "N=100000")
    assert outcome.code == 0
    write("saved.plan", outcome.out)
    assert cli("plan", "--saved", "saved.plan").code == 0
    record = cli("plan", "loop.opg", "-s", "N=100000", "--json").json
    assert [p["graph"] for p in record["plans"]] == ["main", "large", "less_of_it"]


def test_a_plan_that_was_saved_and_changed(cli, write):
    write("two.opg", """\
        graph main(x: f32[N]) -> f32[N] {
          a = softmax(x)
          b = cumsum(x, axis=0)
          c = add(a, b)
          return c
        }
        """)  # fmt: skip
    made = cli("plan", "two.opg", "-s", "N=1000000", "--streams", "2")
    assert "wait" in made.out
    write("saved.plan", made.out)
    good = cli("plan", "--saved", "saved.plan")
    assert (good.code, good.out) == (0, "verdict: no races, in any order\n")
    lines = [line for line in made.out.splitlines() if not line.strip().startswith("wait")]
    write("bad.plan", "\n".join(lines))
    bad = cli("plan", "--saved", "bad.plan")
    assert bad.code == 1
    assert "c = add(a, b)" in bad.err
    assert cli("plan", "--saved", "bad.plan", "--json").json["hazards"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "N"),
        (["-s", "M=4"], "N"),
        (["-g", "no", "-s", "N=4"], "there is no graph no"),
    ],
)
def test_plan_of_what_is_not_there(cli, scale, arguments, message):
    outcome = cli("plan", scale, *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_doctor(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OPSTEP_CACHE", str(tmp_path / "kernels"))
    outcome = cli("doctor")
    for word in ("Python", "numba", "cores", "kernel cache", str(tmp_path / "kernels")):
        assert word in outcome.out
    record = cli("doctor", "--json").json
    assert record["healthy"] is (outcome.code == 0)
    for finding in record["findings"]:
        assert finding["state"] in ("ok", "missing", "optional")
        if finding["state"] == "missing":
            assert finding["advice"]


def test_doctor_tells_what_is_missing(cli, monkeypatch):
    from opstep.cli import doctor

    def absent(name: str) -> str:
        if name == "safetensors":
            raise doctor.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor, "version", absent)
    outcome = cli("doctor")
    assert outcome.code == 3
    assert "pip install safetensors" in outcome.out


def test_demo(cli):
    outcome = cli("demo")
    assert outcome.code == 0
    assert "the same bits" in outcome.out
    assert "opstep run" in outcome.out
    figures = cli("demo", "--json").json
    assert figures["digits"] == 500
    assert figures["accuracy"] >= 0.98
    assert figures["same_bits"] is True


def test_the_demo_says_opstep_as_the_shell_finds_it(monkeypatch, tmp_path):
    from opstep.cli.demo import started_as

    script = tmp_path / ".venv" / "bin" / "opstep"
    script.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert started_as().endswith("/.venv/bin/python -m opstep")
    script.touch(mode=0o755)
    assert started_as() == ".venv/bin/opstep"
    monkeypatch.setenv("PATH", str(script.parent))
    assert started_as() == "opstep"


def test_what_the_demo_says_to_try_next_works(cli):
    import shlex

    from opstep.cli.demo import next_commands

    for line, _ in next_commands():
        words = shlex.split(line)
        assert words[0] == "opstep"
        assert cli(*words[1:]).code == 0, line
