"""Help: every command has examples, exit codes and a line in the list; start-up stays light."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import pairwise

import click
import pytest

from opstep.cli.main import COMMANDS, group

ROOT = click.Context(group, info_name="opstep")


def command(name: str):
    found = group.get_command(ROOT, name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_exit_codes(cli, name):
    outcome = cli(name, "--help")
    assert outcome.code == 0
    assert "Examples:" in outcome.out
    assert "Exit codes:" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 110
    assert len(command(name).examples) >= 2


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name):
    assert command(name).short_help == COMMANDS[name]
    assert command(name).help.partition("\n")[0] == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_use_options_that_exist(name):
    known = {flag for p in command(name).get_params(ROOT) for flag in p.opts + p.secondary_opts}
    for line, what in command(name).examples:
        words = shlex.split(line.partition("|")[2] or line)
        assert words[:2] == ["opstep", name]
        assert what
        values = {v for w, v in pairwise(words) if w.endswith("-args")}  # options of scripts
        assert {w for w in words if w.startswith("-") and w not in {"-", *values}} <= known


def test_every_option_has_help():
    for name in COMMANDS:
        for p in command(name).get_params(ROOT):
            assert isinstance(p, click.Argument) or p.help, (name, p.name)


def test_no_command_shows_help(cli):
    outcome = cli()
    assert outcome.code == 2
    assert "Commands:" in outcome.out + outcome.err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["rum"], "no command rum. Did you mean run?"),
        (["run"], "Missing argument 'FILE'"),
        (["run", "x.opg", "--modee", "debug"], "No such option '--modee'"),
        (["run", "x.opg", "--mode", "fast"], "'fast' is not one of 'async', 'debug'"),
        (["run", "x.opg", "--streams", "0"], "0 is not in the range"),
        (["run", "x.opg", "--steps", "many"], "'many' is not a valid integer range"),
        (["check"], "Missing argument 'FILE...'"),
    ],
)
def test_wrong_usage(cli, arguments, message):
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())


def test_version(cli):
    outcome = cli("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("opstep ")


def modules_after(*arguments: str) -> set[str]:
    """Top-level packages that a command line has imported when it is done."""
    code = (
        "import sys, json, io, contextlib\n"
        "from opstep.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    main({list(arguments)!r})\n"
        "print(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_help_imports_next_to_nothing():
    loaded = modules_after("--help")
    assert not loaded & {"numpy", "numba", "rich", "torch", "safetensors", "ml_dtypes", "asyncio"}


def test_check_compiles_nothing(cli, scale, tmp_path):
    loaded = modules_after("check", str(tmp_path / scale))
    assert not loaded & {"numba", "llvmlite", "rich", "torch", "safetensors", "asyncio"}
