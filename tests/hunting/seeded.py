"""Programs with a bug in them, and what a hunt must say: comments of the program itself.

# input x: [1.0, nan]                a value of an input, as JSON with nan and inf; its type is
                                     that which the program asks for
# set w: [[1.0]]                     a value of a named tensor
# steps: 5   # grad: x               what is run; the gradient by x instead of the graph
# broken: identity tail              a kernel that does not write the last element ("odd": any
                                     element of odd index)
y = log(x)  # expect: origin nan: log of a negative number [1]
# expect: origin inf: div: division by 0        of a graph that stands in no text
# expect: given nan: input x [1]
# expect step: 2
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import opstep
import opstep.kernels  # registers the ops
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.op import OPS

HERE = Path(__file__).parent


@dataclass
class Expected:
    kind: str  # origin, masked, uninitialised, given
    bad: str
    rule: str  # of a given value: what it is
    place: tuple[int, ...] | None
    line: int  # 0: none
    op: str = ""
    graph: str = ""


@dataclass
class Seeded:
    program: opstep.Program
    graph: str
    inputs: dict
    steps: int = 1
    step: int = 0
    broken: tuple[str, str] | None = None
    first: Expected | None = None
    also: list[Expected] = field(default_factory=list)


def bugs() -> list[Path]:
    return sorted((HERE / "bugs").glob("*.opg"))


def clean() -> list[Path]:
    return sorted((HERE / "clean").glob("*.opg"))


def seeded(path: Path) -> Seeded:
    """A program of a file, and what is expected of it."""
    text = path.read_text(encoding="utf-8")
    program = opstep.load(path)
    graph = program.graphs["main"]
    types = {b.name.text: b.type.dtype.numpy for b in graph.inputs}
    types |= {n: d.type.dtype.numpy for n, d in program.module.tensors.items()}
    found = Seeded(program, "main", {})
    for number, line in enumerate(text.splitlines(), 1):
        for key, value in re.findall(
            r"# (input \w+|set [\w.]+|steps|grad|broken|expect.*?): (.*)", line
        ):
            word, _, name = key.partition(" ")
            if word == "input":
                found.inputs[name] = np.array(_elements(value), types[name])
            elif word == "set":
                program.params[name] = np.array(_elements(value), types[name])
            elif word == "steps":
                found.steps = int(value)
            elif word == "broken":
                op, how = value.split()
                found.broken = (op, how)
            elif word == "grad":
                found.graph = "main_grad"
                found.program = program.with_grad("main", [value])
            elif key == "expect step":
                found.step = int(value)
            else:
                inline = not line.lstrip().startswith("#")
                expected = _expected(value, number if inline else 0)
                if name == "also":
                    found.also.append(expected)
                else:
                    found.first = expected
    return found


def _elements(text: str):
    """JSON, with nan and inf."""
    return json.loads(re.sub(r"\bnan\b", "NaN", re.sub(r"\binf\b", "Infinity", text)))


def _expected(text: str, line: int) -> Expected:
    """``origin nan: log of 0 [1, 2] in lower [i=1]``"""
    head, _, rest = text.partition(": ")
    kind, _, bad = head.partition(" ")
    rest, _, graph = rest.partition(" in ") if re.search(r"\] in ", rest) else (rest, "", "")
    match = re.search(r" ?\[([\d, ]*)\]$", rest)
    place = None
    if match:
        place = tuple(int(p) for p in match[1].split(",") if p.strip())
        rest = rest[: match.start()]
    op = ""
    if not line and kind == "origin":
        op, _, rest = rest.partition(": ")
    return Expected(kind, bad, rest, place, line, op, graph)


# --- kernels that do not write all ----------------------------------------------------------------


def all_but_last(x, y, size, lo, hi):
    for i in range(lo, hi):
        if i != size - 1:
            y[i] = x[i]


def even_ones(x, y, size, lo, hi):
    for i in range(lo, hi):
        if i % 2 == 0:
            y[i] = x[i]


def break_kernel(monkeypatch, op: str, how: str) -> None:
    """Until the test ends the op leaves elements of its result as they were."""
    kernel = all_but_last if how == "tail" else even_ones

    break_with(monkeypatch, op, lambda x, y: Launch(kernel, x, y, x.size, units=x.size))


def break_with(monkeypatch, op: str, cpu) -> None:
    """Until the test ends the op is run by this, which takes halves as f32."""
    monkeypatch.setattr(OPS[op], "traits", OPS[op].traits._replace(as_stored=False))
    monkeypatch.setattr(OPS[op], "cpu", staticmethod(cpu))
    monkeypatch.setattr(OPS[op], "cuda", None)
