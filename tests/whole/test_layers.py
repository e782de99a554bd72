"""Imports go one way. This test reads every import statement and holds the layers.

`runtime` < `kernels` < `optim` < `api` < `hunting`, `differing`, `editors` < `trace` < `dap`,
`lsp`, `training`, `distributed` < `frontends` < `debuggee` < `cli`, and no module imports `opstep`
itself, which is for users; inside `runtime`: `ir` < `transforms` < `plan` < `device` < `calls` <
`interpreter` < `expressions` < `debugger` < `nan`. Imports inside functions and for type checkers
count as well: a late import would only hide a cycle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "opstep"

# What is on one line may not import each other, nor anything below it.
API = "opstep itself"  # what users import
LAYERS = [
    ["version"],
    ["runtime"],
    ["kernels"],
    ["optim"],
    ["api"],
    ["hunting", "differing", "editors"],
    ["trace"],
    ["dap", "lsp", "training", "distributed"],
    ["frontends"],
    ["debuggee"],
    ["cli", "onnx_backend"],
    [API],
]
RUNTIME_LAYERS = [
    ["ir"],
    ["arrays", "interrupts", "transforms", "ulps"],
    ["plan"],
    ["recording", "statistics"],
    ["device"],
    ["calls", "driving"],
    ["interpreter", "uninitialised"],
    ["expressions"],
    ["debugger"],
    ["nan"],
]
KERNEL_LAYERS = [
    ["rules", "math", "stdlib"],
    ["pointwise"],
    ["move", "reduce", "matmul"],
    ["schedules"],
    ["rows", "conv", "pick", "random", "collective"],
    ["pool", "statistics"],
]
ROOMS = {"runtime": RUNTIME_LAYERS, "kernels": KERNEL_LAYERS}
DEVICE_LAYERS = [["cpu", "null"], ["cuda"], ["disassembly"]]  # all else is what devices share

# Modules of one layer that import each other: the first of them makes or holds the others, which
# name its type. Nothing else may.
CIRCLES = [
    "opstep.api: program, budget, files, gradients, inputs, job, sources, tensors, training",
    "opstep.dap: session, debuggee",
    "opstep.dap.python: disassembly, frames, graphs, lines, ops, proxy, travel, views",
    "opstep.frontends.onnx: export_functions, export_writer, export_control",
    "opstep.lsp: file, item",
    "opstep.lsp: server, protocol",
    "opstep.runtime.device: binding, protocols, listening, searching, tape, flagging, store",
    "opstep.runtime.device.cpu: device, tape",
    "opstep.runtime.device.cuda: device, choice.trial, recording.tape, spinning",
    "opstep.runtime.device.cuda.simulator: simulator, simulated, simulated_scores, simulated_tiles",
    "opstep.runtime.plan: plan, listing, text",  # a plan prints itself
    "opstep.trace.workspace: workspace, rerun",
]

# Slow to import, so only where they are needed: inside functions.
SLOW = {"numba", "llvmlite", "rich", "torch", "ml_dtypes", "safetensors", "pandas", "datasette"}
SLOW |= {
    "jax",
    "onnx",
    "onnxruntime",
    "perfetto",
    "google",
    "sqlite_utils",
    "viztracer",
    "matplotlib",
}
SLOW |= {
    "pygls",
    "lsprotocol",
    "cattrs",
    "cuda",
    "nvmath",
    "cupy",
    "debugpy",
    "pydevd",
    "greenlet",
    "pyarrow",
    "PIL",
}
# The only ones that import these, also at the top.
IMPORTERS = {
    "opstep.frontends.jax": {"jax"},
    "opstep.frontends.onnx": {"onnx", "onnxruntime"},
    "opstep.frontends.torch": {"torch"},
}
# Modules that are themselves imported late, by the first compilation of a kernel: they may import
# numba at the top, and each other.
COMPILERS = {f"opstep.runtime.device.{name}" for name in ("compiling", "shared_intrinsics")}
COMPILERS |= {
    f"opstep.runtime.device.cpu.{name}"
    for name in (
        "emitting",
        "intrinsics",
        "packed",
        "runs",
        "terms",
        "tiles",
        "vectors",
        "windows",
        "winograd",
    )
}
COMPILERS |= {
    f"opstep.runtime.device.cuda.compiling.{name}"
    for name in ("elements", "intrinsics", "score_tiles", "tiles", "ufuncs")
}
# what simulates them, likewise
COMPILERS.add("opstep.runtime.device.cuda.simulator.simulated_block")

# What may import these at the top, as nothing else imports it at the top: the language server.
EDITORS = {"pygls", "lsprotocol", "cattrs"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """opstep/cli/run.py -> opstep.cli.run; a package's __init__ is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Statements(NamedTuple):
    """Imports of a module."""

    all: list[ast.Import | ast.ImportFrom]
    early: list[ast.Import | ast.ImportFrom]  # made when it is imported itself


@cache
def statements(path: Path) -> Statements:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Import, ast.ImportFrom)
    every = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return Statements(every, [n for n in at_module_level(tree) if isinstance(n, kinds)])


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of everything under opstep that the file imports."""
    package = dotted(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = []
    for node in statements(path).all:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            found += [(node.lineno, ".".join([*base, alias.name])) for alias in node.names]
    return [(line, name) for line, name in found if name.split(".")[0] == "opstep"]


def rank(layers: list[list[str]], name: str) -> int | None:
    return next((k for k, names in enumerate(layers) if name in names), None)


def violations(path: Path) -> list[str]:
    """What the file imports and may not."""
    own = dotted(path).split(".")
    if own in (["opstep"], ["opstep", "__main__"], ["opstep", "precision"]):
        return []  # what users import, and the way to start the command line
    found = []
    mine = package_of(own)
    for line, name in imports(path):
        parts = name.split(".")
        where = f"{path.relative_to(ROOT)}:{line}"
        theirs = package_of(parts)
        if mine != theirs and rank(LAYERS, theirs) >= rank(LAYERS, mine):
            found.append(f"{where}: {mine} may not import {theirs}")
        elif mine == theirs and mine in ROOMS and len(own) > 2:
            found += violation_within(where, mine, own[2], parts)
    return found


def package_of(parts: list[str]) -> str:
    """The layer that a dotted name belongs to."""
    return parts[1] if len(parts) > 1 and rank(LAYERS, parts[1]) is not None else API


def violation_within(where: str, layer: str, own: str, parts: list[str]) -> list[str]:
    if len(parts) < 3:
        return [f"{where}: import the module, not the package"]
    layers = ROOMS[layer]
    mine, other = rank(layers, own), rank(layers, parts[2])
    unplaced = [n for n, r in ((own, mine), (parts[2], other)) if r is None]
    if unplaced:
        return [f"{where}: {layer}/{unplaced[0]} has no place in ROOMS"]
    if own != parts[2] and other >= mine:
        return [f"{where}: {layer}/{own} may not import {layer}/{parts[2]}"]
    return []


def test_imports_go_one_way():
    assert [v for path in modules() for v in violations(path)] == []


def test_devices_import_what_they_share():
    wrong = []
    for path in modules():
        for line, name in imports(path):
            mine, theirs = (parts.split(".")[3:4] for parts in (dotted(path), name))
            here = all(n.startswith("opstep.runtime.device.") for n in (dotted(path), name))
            if not here or mine == theirs or rank(DEVICE_LAYERS, theirs[0]) is None:
                continue
            own = rank(DEVICE_LAYERS, mine[0])
            if own is None or own <= rank(DEVICE_LAYERS, theirs[0]):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {mine[0]} imports {name}")
    assert wrong == []


def reached(imported: dict[str, set[str]], start: str) -> set[str]:
    """All modules that a module imports, itself or through others."""
    found, left = set(), [start]
    while left:
        new = imported[left.pop()] - found
        found |= new
        left += new
    return found


def circles() -> set[frozenset[str]]:
    """Groups of modules of which each imports all others, itself or through others."""
    every = {dotted(path) for path in modules()}
    imported: dict[str, set[str]] = {}
    for path in modules():
        names = {n if n in every else n.rpartition(".")[0] for _, n in imports(path)}
        imported[dotted(path)] = names & every - {dotted(path)}
    reach = {name: reached(imported, name) for name in every}
    return {frozenset(n for n in reach[m] if m in reach[n]) for m in every if m in reach[m]}


def test_circles_are_those_that_are_known():
    known = set()
    for line in CIRCLES:
        package, _, names = line.partition(": ")
        known.add(frozenset(f"{package}.{name}" for name in names.split(", ")))
    assert circles() == known


def test_every_package_has_a_place():
    packages = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert packages <= {name for names in LAYERS for name in names}


def at_module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported; not what only a type checker reads."""
    stack: list[ast.stmt] = list(tree.body)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                stack += getattr(node, block, [])


def test_slow_packages_are_imported_late():
    slow = []
    for path in modules():
        name = dotted(path)
        unwanted = SLOW - EDITORS if name.startswith("opstep.lsp") else SLOW
        for importer, libraries in IMPORTERS.items():
            if name.startswith(importer):
                unwanted = unwanted - libraries
        for node in [] if name in COMPILERS else statements(path).early:
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            else:
                names = [] if node.level else [node.module or ""]
            found = [n for n in names if n.split(".")[0] in unwanted]
            slow += [f"{path.relative_to(ROOT)}:{node.lineno}: {n}" for n in found]
    told = "import these inside the functions that use them (start-up time is a bar), or, in a"
    assert slow == [], f"{told} module that only compiling imports, name it in COMPILERS"


@pytest.mark.parametrize("importer", IMPORTERS)
def test_only_its_importer_imports_a_library(importer):
    found = []
    for path in modules():
        for node in statements(path).all:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            uses = any(name.split(".")[0] in IMPORTERS[importer] for name in names)
            if uses and not dotted(path).startswith(importer):
                found.append(dotted(path))
    assert found == []


def test_compilers_are_imported_late():
    early = []
    for path in modules():
        for node in [] if dotted(path) in COMPILERS else statements(path).early:
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{a.name}" for a in node.names} | {node.module}
                early += [dotted(path) for name in names if name in COMPILERS]
    assert early == []


def test_the_language_server_is_imported_late():
    """pygls takes a quarter of a second."""
    early = []
    for path in modules():
        for node in [] if dotted(path).startswith("opstep.lsp") else statements(path).early:
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{a.name}" for a in node.names}
                early += [dotted(path) for name in names if name.startswith("opstep.lsp")]
    assert early == []


def test_the_checker_sees_a_violation(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    bad = tmp_path / "opstep" / "runtime" / "plan" / "x.py"
    bad.parent.mkdir(parents=True)
    bad.write_text(
        "from opstep.kernels import conv\n"
        "from ..device import cpu\n"
        "import opstep\n"
        "def f():\n    from opstep.cli import main\n"
        "from opstep.runtime.ir import op\n"
    )
    assert sorted(v.split(":", 1)[1] for v in violations(bad)) == [
        "1: runtime may not import kernels",
        "2: runtime/plan may not import runtime/device",
        "3: runtime may not import opstep itself",
        "5: runtime may not import cli",
    ]
