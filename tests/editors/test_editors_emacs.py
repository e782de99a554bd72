"""Emacs, set up as docs/editors.md says, and used in a batch."""

import subprocess

import pytest
from snippets import BROKEN, HERE, MODEL, block, check_journey, needs, plugin, run


@pytest.fixture
def emacs():
    found = needs("emacs")
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(shown.split()[2].split(".")[0]) < 29:
        pytest.skip("eglot comes with Emacs 29")
    return found


def opened(emacs, tmp_path, text, configuration, script, *load):
    (tmp_path / "init.el").write_text(configuration)
    model = tmp_path / "model.opg"
    model.write_text(text)
    paths = [word for folder in load for word in ("-L", str(folder))]
    arguments = [emacs, "--batch", *paths, "-l", "init.el", "-l", str(HERE / script), str(model)]
    found = run(arguments, tmp_path, tmp_path / "out.json")
    assert "error" not in found, found
    return found


def test_the_language_server(emacs, tmp_path):
    found = opened(emacs, tmp_path, BROKEN, block("elisp", 0), "emacs_server.el")
    assert any(d.startswith("3: ") and "no op or graph sofmax" in d for d in found["diagnostics"])
    assert "softmax(x: F, *, axis: int = -1)" in found["hover"]
    assert found["definition"] == 9
    assert "scores" in found["completion"]
    assert ": f32[N, K]" in found["hints"]
    assert found["text"] == MODEL


def test_the_debugger(emacs, tmp_path):
    folder = plugin("DAPE", "dape")
    configuration = block("elisp", 0) + block("elisp", 1)
    found = opened(emacs, tmp_path, MODEL, configuration, "emacs_debugger.el", folder)
    check_journey(found)
