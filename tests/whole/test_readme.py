"""What the README shows works when it is pasted."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import opstep
from opstep.cli.main import main

FOUND = 5  # exit code of a hunt that found something
PATIENCE_S = 120.0  # for a server to answer

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(TEXT)


def command_lines(blocks=BLOCKS) -> list[str]:
    """Every ``opstep …`` line of the README's blocks, continued lines joined. The long training
    is a twentieth of it.
    """
    found = []
    for _, block in blocks:
        joined = block.replace("\\\n", " ").replace("--epochs 200", "--epochs 10")
        found += [line for line in joined.splitlines() if line.startswith("opstep ")]
    return found


@pytest.mark.slow
def test_command_lines_work(tmp_path, monkeypatch):
    """In order and in one folder, as they are pasted. Those that serve until Ctrl-C get one when
    they have said where.
    """
    for name in ("examples", "opstep"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []

    def interrupt_who_answers(address: str) -> None:
        with suppress(HTTPError):  # is an answer, too
            urlopen(address, timeout=PATIENCE_S).close()
        signal.raise_signal(signal.SIGINT)

    def browse(address: str, *_: object, **__: object) -> bool:
        opened.append(address)
        threading.Thread(target=interrupt_who_answers, args=[address]).start()
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr("sys.stdin", io.StringIO("run\n"))  # what is typed to the debugger
    lines = command_lines()
    assert lines
    for line in lines:
        words = []
        for word in shlex.split(line)[1:]:
            words += sorted(map(str, Path().glob(word))) or [word] if "*" in word else [word]
        assert main(words) == (FOUND if words[0] == "hunt" else 0), line
    assert [a.partition("//")[2].partition(":")[0] for a in opened] == ["127.0.0.1"] * 2


def test_python_works(monkeypatch):
    monkeypatch.chdir(ROOT)
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "README.md", "exec"), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python.md", "training.md"])
def test_a_guide_prints_what_it_says(name, tmp_path, monkeypatch, capsys):
    """Its Python blocks are one session; a text block is what the one above it printed. The lines
    of its shell blocks work.
    """
    for folder in ("opstep", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("run\n"))  # what is typed to the debugger
    session: dict = {}
    guide = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = BLOCK.findall(guide)
    assert {language for language, _ in blocks} <= {"python", "text", "sh"}
    for line in command_lines([b for b in blocks if b[0] == "sh"]):
        assert main(shlex.split(line)[1:]) == 0, line
    capsys.readouterr()
    for (language, block), (follows, said) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "python":
            exec(compile(block, name, "exec"), session)
            printed = capsys.readouterr().out.rstrip()
            assert printed == (said.rstrip() if follows == "text" else "")


@pytest.mark.parametrize("name", ["hunting.md", "diff.md"])
def test_a_guide_begins_with_a_report_that_anybody_gets(name, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    guide = (ROOT / "docs" / name).read_text(encoding="utf-8")
    shown = next(block for _, block in BLOCK.findall(guide) if block.startswith("$ "))
    lines = shown.splitlines()
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    script = "\n".join(
        re.sub("^opstep", f"{shlex.quote(sys.executable)} -m opstep", t) for t in typed
    )
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=given, capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == lines[len(typed) :], ran.stderr


def test_the_program_is_a_program():
    programs = [block for _, block in BLOCKS if "graph main" in block]
    assert programs
    for text in programs:
        opstep.loads(text, "README.md")


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", TEXT))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make (\w+)`?", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
