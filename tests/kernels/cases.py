"""The test graphs of the ops: how they are read, and the inputs they get.

A graph of ``tests/kernels/<room>/<op>.opg`` is written with f32 for the type under test. Comments
above it steer:

    # input x: positive    normal (the default), positive, unit (0 to 1), distinct (no two equal),
                           nonzero, bool, index(n) (integers below n), between(low, high), special
                           (with NaN, infinities, zeros of both signs and tiny numbers)
    # dtypes: f64 f32 i32  f64 f32 f16 bf16 if it is not said
    # grad: x w            what gradients are tested by; every float input, where the op has a
                           gradient, if it is not said; or none
    # tol: 1e-4            of f32, relative to the largest element
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.api.program import Program
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.parser import load, parse
from opstep.runtime.ir.printer import print_graph
from opstep.runtime.ir.types import DType, TensorType, f32

FOLDER = Path(__file__).parent
# Of dtypes that kernels treat alike a graph is run with one. f16 and bf16 are converted and go
# through the kernels of f32: graphs of an op take them by turns. Integers have kernels of their
# own: ops take them by turns. Rooms do where ops share the largest kernels there are; those only
# multiply and add integers, whose low bits are the same with a sign and without.
ALIKE = (("f64",), ("f32",), ("f16", "bf16"), ("i64", "i32"), ("i16", "i8"), ("u8",), ("bool",))
SHARING = ("conv", "matmul")
ALIKE_IN_SHARING = (*ALIKE[:4], ("u8", "i8", "i16"), ("bool",))
CONVERTING = ("cast",)  # has a kernel for each pair of dtypes
DEFAULT_DTYPES = ("f64", "f32", "f16", "bf16")
# relative to the largest element of the result
TOLERANCE = {"f64": 1e-11, "f32": 4e-6, "f16": 2e-3, "bf16": 1.6e-2}
_LINE = re.compile(r"(input (\w+)|dtypes|grad|tol):\s*(.+)")


@dataclass(frozen=True)
class Case:
    """One graph of one file. `kinds` is the kind of each input that has one."""

    file: str
    graph: Graph
    kinds: dict[str, str]
    dtypes: tuple[str, ...]
    wrt: tuple[str, ...]
    tol: float | None

    @property
    def id(self) -> str:
        return f"{self.file}-{self.graph.name.text}"

    def text(self, dtype: str) -> str:
        """The graph with `dtype` in place of f32."""
        return re.sub(r"\bf32\b", dtype, print_graph(self.graph))

    def tolerance(self, dtype: DType) -> float:
        base = TOLERANCE[dtype.name]
        if self.tol is None:
            return base
        return self.tol * 1e-5 if dtype.name == "f64" else max(self.tol, base)


def graph_files() -> list[Path]:
    """The files of test graphs, by their ops' names."""
    found = [p for p in FOLDER.glob("*/*.opg") if p.parent.name != "errors"]
    return sorted(found, key=lambda p: p.stem)


@cache
def cases() -> tuple[Case, ...]:
    """All test graphs."""
    return tuple(
        _case(path.stem, graph) for path in graph_files() for graph in load(path).graphs.values()
    )


def by_dtype(every: bool = False) -> list[tuple[str, str]]:
    """(case, dtype) of each test graph with one dtype of those that are alike, or with every."""
    found = []
    turns = {path.stem: _turn(path) for path in graph_files()}
    sharing = {path.stem for path in graph_files() if path.parent.name in SHARING}
    places: dict[str, int] = {}
    for case in cases():
        place = places[case.file] = places.get(case.file, -1) + 1
        for alike in ALIKE_IN_SHARING if case.file in sharing else ALIKE:
            mine = [d for d in alike if d in case.dtypes]
            if mine and not every and case.file not in CONVERTING:
                turn = place if alike[0] == "f16" else turns[case.file]
                mine = [mine[turn % len(mine)]]
            found += [(case.id, dtype) for dtype in mine]
    return found


def _turn(path: Path) -> int:
    room = path.parent.name
    return SHARING.index(room) if room in SHARING else zlib.crc32(path.stem.encode())


def _case(file: str, graph: Graph) -> Case:
    kinds: dict[str, str] = {}
    said: dict[str, str] = {}
    for line in graph.comments.above:
        if match := _LINE.match(line):
            if match[2]:
                kinds[match[2]] = match[3]
            else:
                said[match[1]] = match[3]
    floats = [b.name.text for b in graph.inputs if b.type and b.type.dtype is f32]
    has_loss = any(t.dtype is f32 for t in graph.results)
    dtypes = tuple(said.get("dtypes", " ".join(DEFAULT_DTYPES)).split())
    op = OPS.get(file)
    differentiable = has_loss and "f64" in dtypes and (op is None or op.grad is not None)
    wrt = said.get("grad", " ".join(floats) if differentiable else "none").split()
    return Case(
        file,
        graph,
        kinds,
        dtypes,
        () if wrt == ["none"] else tuple(wrt),
        float(said["tol"]) if "tol" in said else None,
    )


@cache
def by_id() -> dict[str, Case]:
    return {case.id: case for case in cases()}


@cache
def program(case_id: str, dtype: str) -> Program:
    case = by_id()[case_id]
    return Program(parse(case.text(dtype), f"{case.file}.opg"))


def generator(case: Case) -> np.random.Generator:
    """The same numbers for a graph whatever other tests there are."""
    return np.random.default_rng(zlib.crc32(case.id.encode()))


def inputs(case: Case, dtype: str) -> dict[str, np.ndarray]:
    """Random inputs, in the types that the graph has under `dtype`."""
    rng = generator(case)
    found = {}
    for binding in program(case.id, dtype).graphs[case.graph.name.text].inputs:
        name, t = binding.name.text, binding.type
        assert t is not None
        kind = case.kinds.get(name, "bool" if t.dtype.kind == "b" else "normal")
        found[name] = _make(rng, kind, t)
    return found


def _make(rng: np.random.Generator, kind: str, t: TensorType) -> np.ndarray:
    kind, _, arguments = kind.partition("(")
    limits = [float(a) for a in arguments.rstrip(")").split(",") if a.strip()]
    make = _FLOATS if t.dtype.is_float else _INTEGERS
    array = np.asarray(make[kind](rng, t.shape, *limits))
    if t.dtype.kind == "u":
        array = np.asarray(np.abs(array))
    with np.errstate(over="ignore"):
        return array.astype(t.dtype.numpy)


def _normal(rng, shape):
    return rng.standard_normal(shape)


def _distinct(rng, shape):
    """All different, in bf16 too as long as there are fewer than 256."""
    n = int(np.prod(shape))
    step = 1 if n > 256 else 0.03125
    return (rng.permutation(n).reshape(shape) - n // 2) * step


def _special(rng, shape):
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1e-6, 1e4, -1e4]
    array = rng.standard_normal(shape)
    picked = rng.random(shape) < 0.5
    return np.where(picked, rng.choice(odd, shape), array)


def _whole(low, high):
    return lambda rng, shape: rng.integers(low, high, shape)


_FLOATS = {
    "normal": _normal,
    "positive": lambda rng, shape: rng.uniform(0.2, 3.0, shape),
    "unit": lambda rng, shape: rng.uniform(0.02, 0.98, shape),
    "distinct": _distinct,
    "nonzero": lambda rng, shape: rng.uniform(0.3, 2.0, shape) * rng.choice([-1, 1], shape),
    "between": lambda rng, shape, low, high: rng.uniform(low, high, shape),
    "index": lambda rng, shape, n: rng.integers(0, int(n), shape),
    "bool": lambda rng, shape: rng.integers(0, 2, shape),
    "special": _special,
}
_INTEGERS = {
    "normal": _whole(-5, 6),
    "positive": _whole(1, 10),
    "unit": _whole(0, 2),
    "distinct": lambda rng, shape: rng.permutation(int(np.prod(shape))).reshape(shape),
    "nonzero": lambda rng, shape: rng.integers(1, 6, shape) * rng.choice([-1, 1], shape),
    "between": lambda rng, shape, low, high: rng.integers(int(low), int(high), shape),
    "index": lambda rng, shape, n: rng.integers(0, int(n), shape),
    "bool": _whole(0, 2),
    "special": lambda rng, shape: rng.choice([-128, -127, -1, 0, 1, 2, 126, 127], shape),
}
