"""Neovim, set up as docs/editors.md says, and used without a screen."""

import re
import subprocess

import pytest
from snippets import BROKEN, HERE, MODEL, block, check_journey, needs, plugin, run

# What the page says is for 0.8 and newer; this much is what 0.7 lacks.
OLDER = """
vim.g.do_filetype_lua = 1
if not vim.lsp.start then
  vim.lsp.start = function(config)
    vim.lsp.buf_attach_client(0, vim.lsp.start_client(config))
  end
end
local autocmd = vim.api.nvim_create_autocmd
vim.api.nvim_create_autocmd = function(event, options)
  return pcall(autocmd, event, options)
end
"""


@pytest.fixture
def neovim():
    return needs("nvim")


def version(neovim):
    shown = subprocess.run([neovim, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", shown)
    assert found, shown
    return int(found[1]), int(found[2])


def opened(neovim, tmp_path, text, configuration, script):
    (tmp_path / "init.lua").write_text(configuration)
    model = tmp_path / "model.opg"
    model.write_text(text)
    arguments = [neovim, "--headless", "-n", "-u", str(tmp_path / "init.lua"), str(model)]
    found = run([*arguments, "-c", f"luafile {HERE / script}"], tmp_path, tmp_path / "out.json")
    assert "error" not in found, found
    return found


def test_the_language_server(neovim, tmp_path):
    old = version(neovim) < (0, 8)
    configuration = (OLDER if old else "") + block("lua", 0)
    found = opened(neovim, tmp_path, BROKEN, configuration, "neovim_server.lua")
    assert found["diagnostics"][0].startswith("3: there is no op or graph sofmax")
    assert "softmax(x: F, *, axis: int = -1)" in found["hover"]
    assert found["definition"] == 9
    assert "scores" in found["completion"]
    assert {"Run", "Debug", "Hunt NaN", "Plan"} <= {
        k for k, known in found["lenses"].items() if known
    }
    assert found["text"] == MODEL.rstrip("\n")
    assert "needs a size for K, N" in " ".join(found["terminal"].split())  # it says so
    if version(neovim) >= (0, 10):
        assert ": f32[N, K]" in found["hints"]


def test_the_debugger(neovim, tmp_path):
    if version(neovim) < (0, 10):
        pytest.skip("nvim-dap wants Neovim 0.10")
    folder = plugin("NVIM_DAP", "nvim-dap")
    configuration = f"vim.opt.rtp:prepend('{folder}')\n" + block("lua", 0) + block("lua", 1)
    found = opened(neovim, tmp_path, MODEL, configuration, "neovim_debugger.lua")
    check_journey(found)
