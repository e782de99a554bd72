"""Faults that give no NaN: each planted one is found at its line, and healthy scripts are silent.

A line with a fault ends with ``# expect: KIND``. Scripts run in this process, as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opstep.cli.main import main
from opstep.frontends.scripts.script import Script
from opstep.frontends.torch.eager.lint import KINDS, LintFinding, linting
from opstep.frontends.torch.eager.session import Session

_FOLDER = Path(__file__).parent / "lint"
FAULTY = sorted((_FOLDER / "faulty").glob("*.py"))
HEALTHY = sorted((_FOLDER / "healthy").glob("*.py"))
_EXPECTED = re.compile(r"# expect: (\S+)$")


class _Judge:
    def cause_of(self, error: Exception) -> None:
        return None

    def advice(self, error: Exception) -> None:
        return None


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _linted(path: Path, excepted: Any = ()) -> list[LintFinding]:
    nans: list[Any] = []
    with linting(excepted) as run, Session(nans.append, listeners=[run]):
        code = Script.find(str(path)).run(run)
    run.end()
    assert code == (path.stem == "label_out_of_range")
    assert not run.broken
    assert not nans
    return run.found


def _expected(path: Path) -> list[tuple[int, str]]:
    lines = enumerate(path.read_text().splitlines(), 1)
    return [(k, found[1]) for k, line in lines if (found := _EXPECTED.search(line))]


@pytest.mark.parametrize("path", FAULTY, ids=lambda p: p.stem)
def test_a_planted_fault_is_found_at_its_line(path: Path) -> None:
    found = _linted(path)
    assert [(f.line, f.kind) for f in found] == _expected(path)
    for f in found:
        assert Path(f.file) == path
        assert f.source == path.read_text().splitlines()[f.line - 1].strip()
        assert f.message


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: p.stem)
def test_a_healthy_script_is_silent(path: Path) -> None:
    assert _linted(path) == []


def test_each_kind_is_planted() -> None:
    assert {kind for path in FAULTY for _, kind in _expected(path)} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_can_be_left_out(kind: str) -> None:
    path = next(p for p in FAULTY if kind in {k for _, k in _expected(p)})
    assert _linted(path, [kind]) == []


@pytest.mark.parametrize("path", [*FAULTY, *HEALTHY], ids=lambda p: p.stem)
def test_output_is_the_same_bits(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where something ran again: its prints, and what it drew, are not the script's."""
    code = Script.find(str(path)).run(_Judge())
    plain = capfd.readouterr().out
    with linting() as run, Session(lambda _: None, listeners=[run]):
        assert Script.find(str(path)).run(run) == code
    run.end()
    assert capfd.readouterr().out == plain


def test_hooks_are_given_back() -> None:
    owners = (
        (nn.Module, "__call__"), (nn.Module, "eval"), (torch.optim.Optimizer, "__init__"),
        (torch.autograd.Function, "apply"), (torch.amp.GradScaler, "scale"),
    )  # fmt: skip
    before = [getattr(o, n) for o, n in owners]
    _linted(FAULTY[0])
    assert [getattr(o, n) for o, n in owners] == before


def test_a_message_has_the_numbers() -> None:
    def message(name: str) -> str:
        return _linted(_FOLDER / "faulty" / f"{name}.py")[0].message

    assert message("broadcast_own_square").startswith("sub of [32, 1] and [32] gives [32, 32]")
    assert "1024 times too large" in message("clipped_while_scaled")
    assert message("dead_by_bias").startswith("32 of 32 units of second are 0")
    assert message("missing_factor").startswith("backward gives 0.5 times the slope")
    assert "1 of 5 labels are none of the 5 classes 0 to 4, first 5" in message(
        "label_out_of_range"
    )
    assert "they reach from -1 to 1" in message("signs_as_targets")
    assert message("rate_of_zero").startswith("the learning rate is 0 in all 40 steps; the loss is")


def _hunt(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["hunt", "--lint", *arguments])
    return code, *capfd.readouterr()


def test_the_command_reports_a_fault(capfd: pytest.CaptureFixture[str]) -> None:
    path = _FOLDER / "faulty" / "dead_by_bias.py"
    code, _, shown = _hunt(capfd, str(path))
    assert code == 5
    assert f"dead_by_bias.py:{_expected(path)[0][0]}: h = F.relu(self.second(h))" in shown
    assert "\ndead: 32 of 32 units of second are 0" in shown
    code, _, shown = _hunt(capfd, "--lint-except", "dead", str(path))
    assert code == 0
    assert "no fault that --lint knows" in shown


def test_the_command_gives_json(capfd: pytest.CaptureFixture[str]) -> None:
    path = _FOLDER / "faulty" / "label_out_of_range.py"
    code, shown, _ = _hunt(capfd, "--json", str(path))
    assert code == 5
    (one,) = json.loads(shown)["lint"]
    assert (one["line"], one["kind"]) == _expected(path)[0]
    assert one["file"] == str(path)


def test_the_command_refuses_what_it_has_not(capfd: pytest.CaptureFixture[str]) -> None:
    path = str(FAULTY[0])
    code, _, shown = _hunt(capfd, "--lint-except", "ded", path)
    assert code == 2 and "did you mean dead?" in shown
    code, _, shown = _hunt(capfd, "--compiled", path)
    assert code == 2 and "leave --compiled out" in shown
