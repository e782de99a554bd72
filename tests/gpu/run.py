"""Everything that is tested on a GPU, as one command: `make test-gpu`.

The tests first, which fill the cache of kernels; then compute-sanitizer's four tools at once over
a sweep of the ops' kernels.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from opstep.runtime.device.cuda.driver.driver import driver  # noqa: E402 - found by the line above
from opstep.runtime.ir.errors import DeviceError  # noqa: E402

# What waits for each op: a GPU that many processes share changes hands at each wait.
FEW_AT_ONCE = "tests/gpu/test_interrupts_on_gpu.py"
TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")


def tested(workers: str) -> bool:
    """Whether the tests pass."""
    command = [sys.executable, "-m", "pytest", "-q"]
    together = ["-n", workers, "--dist", "worksteal", "tests/gpu", "--ignore", FEW_AT_ONCE]
    apart = ["-n", "4", FEW_AT_ONCE]
    runs = [subprocess.run([*command, *which], cwd=ROOT) for which in (together, apart)]
    return not any(run.returncode for run in runs)


def sanitized(folder: Path) -> bool:
    """Whether no tool finds anything; what each said is printed."""
    if not shutil.which("compute-sanitizer"):
        print("compute-sanitizer is not there: it comes with the CUDA toolkit", file=sys.stderr)
        return False
    runs = {}
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        command += [sys.executable, str(ROOT / "tests" / "gpu" / "sweep.py")]
        with (folder / tool).open("w") as out:
            runs[tool] = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
    codes = {tool: run.wait() for tool, run in runs.items()}
    for tool, code in codes.items():
        said = (folder / tool).read_text(errors="replace").splitlines()
        print(f"{tool}: {'FAILED' if code else 'clean'}")
        print(*said[-60 if code else -3 :], sep="\n")
    return not any(codes.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Tests on a GPU.")
    parser.add_argument("--workers", default=str(min(14, os.cpu_count() or 1)))
    parser.add_argument("--only", choices=("tests", "sanitizer"))
    options = parser.parse_args()
    try:
        driver()
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 3
    start, passed = time.monotonic(), True
    if options.only != "sanitizer":
        passed = tested(options.workers)
        print(f"tests: {'passed' if passed else 'FAILED'} after {time.monotonic() - start:.0f} s")
    if options.only != "tests":
        with tempfile.TemporaryDirectory() as folder:
            passed = sanitized(Path(folder)) and passed
    print(f"{'passed' if passed else 'FAILED'} after {time.monotonic() - start:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
