"""House rules that a machine can read: what no file may hold, and how long files are."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = {".py", ".md", ".opg", ".toml", ".yml", ".yaml", ".json", ".ts", ".js", ".sh", ".cfg", ""}

FORBIDDEN = {
    r"(?<![\w.~:/])/(?:work|root|home|Users|workspace)/\w": "a path of one machine",
    r"(?<![\w.])/tmp/\w": "a path of one machine",
    r"\b(?:TODO|FIXME|XXX|HACK)\b": "unfinished work",
    r"\b[Ii]ssue #\d|\bsee #\d+": "a reference that a reader cannot follow",
    r"(?:files\.pythonhosted|pypi|registry\.npmjs|conda\.anaconda)\.org": "a registry's host",
    r"\bbreakpoint\(\)|\bimport pdb\b": "a debugger left behind",
}


def files() -> list[Path]:
    """Every file under version control, or every file where this is not a checkout."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        found = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        folders = ("opstep", "tests", "docs", "examples", "benchmarks")
        found = [p for folder in folders for p in (ROOT / folder).rglob("*")]
    return [p for p in found if p.is_file() and p.suffix in TEXT and p != Path(__file__)]


@pytest.mark.parametrize("pattern, what", FORBIDDEN.items(), ids=FORBIDDEN.values())
def test_no_file_holds(pattern, what):
    found = []
    for path in files():
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), 1
        ):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == [], what


def test_files_are_short():
    """Some 400 lines, so that a reader can hold a file in mind."""
    long = {}
    for path in files():
        if path.suffix == ".py":
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > 500:
                long[str(path.relative_to(ROOT))] = lines
    assert long == {}


def test_names_of_test_files_are_unique():
    """pytest imports them by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_module_says_what_it_is_for():
    silent = []
    for path in files():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "opstep"):
            text = path.read_text(encoding="utf-8").lstrip()
            if text and not text.startswith(('"""', "'''", 'r"""')):
                silent.append(str(path.relative_to(ROOT)))
    assert silent == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/gpu").glob("test_*.py")), ids=lambda p: p.stem
)
def test_what_needs_a_gpu_can_be_imported(path, monkeypatch):
    """Where there is no GPU it is not collected, so nothing else would tell that it is broken."""
    monkeypatch.syspath_prepend(path.parent)
    importlib.import_module(path.stem)
