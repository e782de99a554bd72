"""The tests with the lowest versions of packages that pyproject.toml allows, and with the newest
that there are for this Python: `make test-versions`. Each has an environment of its own under
build/versions/.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build" / "versions"
SHOWN = ("numba", "numpy", "torch", "jax", "onnx", "debugpy", "numba-cuda")


# Instead of the one pair in pyproject.toml. Of torchvision tests need its Python alone.
PAIRS = {"lowest": "", "newest": "torch>2.13\ntorchvision\n"}
RESOLUTION = {"lowest": "lowest-direct", "newest": "highest"}


def environment(which: str) -> Path:
    """A Python in which the versions are installed."""
    folder = BUILT / which
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "uv"], check=True)
    pairs = folder / "pairs.txt"
    pairs.write_text(PAIRS[which])
    subprocess.run(
        [
            folder / "bin" / "uv", "pip", "install", "--quiet", "--python", python, "--upgrade",
            "--resolution", RESOLUTION[which], "--override", pairs,
            "--config-settings", "editable_mode=compat", "--editable", f"{ROOT}[test]",
        ],
        check=True,
    )  # fmt: skip
    return python


def versions(python: Path) -> str:
    code = f"from importlib.metadata import version\nfor n in {SHOWN}: print(n, version(n))"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return ", ".join(said.stdout.splitlines())


def main(given: list[str]) -> int:
    """`lowest` or `newest`, or both, and what pytest is to be given."""
    options = [g for g in given if g not in RESOLUTION]
    failed = 0
    for which in (g for g in given if g in RESOLUTION):
        python = environment(which)
        print(f"{which}: {versions(python)}", flush=True)
        cache = dict(os.environ, OPSTEP_CACHE=str(BUILT / which / "cache"))
        found = subprocess.run([python, "-m", "pytest", *options], cwd=ROOT, env=cache)
        failed |= found.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
