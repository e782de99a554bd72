"""Training runs that diverge, or do not, as programs: comments say how they are trained, and what a
hunt must say.

# train: adam lr=0.01 steps=20       the optimizer, its options, and how many steps
# data x: uniform                    normal where nothing is said; uniform, ones, zeros, below 10
# data x: 1e30 in row 17             the row's first element; "all 0 in row 3": the whole row
# data x: all 0 in rows 8..15        of the data set, batch after batch
y = log(x)  # expect: forward inf: log of 0
# expect: update nan: div: 0 / 0     where the op stands in no text
# expect: data nan: input x          it came with the batch
# expect step: 2   # expect rows: 17 of the batch   # expect param: w, in whose update it is
# expect told: words of the report
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import opstep

HERE = Path(__file__).parent


@dataclass
class Expected:
    phase: str
    bad: str
    rule: str
    line: int = 0  # 0: none
    op: str = ""
    step: int = 0
    rows: tuple[int, ...] = ()
    param: str = ""
    told: list[str] = field(default_factory=list)


@dataclass
class Run:
    """A loss, how it is trained, and its data: columns by input's name, `batch` rows a step."""

    program: opstep.Program
    optimizer: str
    options: dict[str, Any]
    steps: int
    batch: int
    columns: dict[str, np.ndarray]
    expected: Expected | None

    def step_program(self) -> opstep.Program:
        return self.program.with_optimizer("loss", self.optimizer, **self.options)

    def batches(self):
        for i in range(self.steps):
            at = slice(i * self.batch, (i + 1) * self.batch)
            yield {name: column[at] for name, column in self.columns.items()}


def diverging() -> list[Path]:
    return sorted((HERE / "diverging").glob("*.opg"))


def healthy() -> list[Path]:
    return sorted((HERE / "healthy").glob("*.opg"))


def read(path: Path) -> Run:
    text = path.read_text(encoding="utf-8")
    program = opstep.load(path)
    (train,) = re.findall(r"^# train: (.*)", text, re.M)
    optimizer, *settings = train.split()
    options = {k: _number(v) for k, v in (s.split("=") for s in settings)}
    steps = int(options.pop("steps"))
    inputs = program.graphs["loss"].inputs
    batch = inputs[0].type.shape[0]
    columns = {}
    for seed, binding in enumerate(inputs):
        name, t = binding.name.text, binding.type
        told = re.findall(rf"^# data {name}: (.*)", text, re.M)
        columns[name] = _column(told, (steps * batch, *t.shape[1:]), t.dtype.numpy, seed)
    return Run(program, optimizer, options, steps, batch, columns, _expected(text))


def _number(text: str) -> Any:
    try:
        return float(text) if re.search(r"[.e]", text) else int(text)
    except ValueError:
        return text


def _column(told: list[str], shape: tuple[int, ...], dtype, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    how = next((t for t in told if " in row" not in t), "normal")
    if below := re.fullmatch(r"below (\d+)", how):
        column = random.integers(0, int(below[1]), shape)
    elif how in ("ones", "zeros"):
        column = np.full(shape, how == "ones")
    else:
        column = random.random(shape) if how == "uniform" else random.standard_normal(shape)
    column = column.astype(dtype)
    for one in told:
        if found := re.fullmatch(r"(all )?(\S+) in rows? (\d+)(?:\.\.(\d+))?", one):
            rows = slice(int(found[3]), int(found[4] or found[3]) + 1)
            rest = () if found[1] else (0,) * (len(shape) - 1)
            column[(rows, *rest)] = float(found[2])
    return column


def _expected(text: str) -> Expected | None:
    expected = None
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(r"# expect: (\w+) (\w+): (.*)", line):
            phase, bad, rule = found.groups()
            inline = not line.startswith("#")
            op = ""
            if not inline and phase != "data":
                op, _, rule = rule.partition(": ")
            expected = Expected(phase, bad, rule, number if inline else 0, op)
    for key, value in re.findall(r"^# expect (step|rows|param|told): (.*)", text, re.M):
        assert expected is not None
        if key == "told":
            expected.told.append(value)
        elif key == "param":
            expected.param = value
        elif key == "step":
            expected.step = int(value)
        else:
            expected.rows = tuple(map(int, value.split(",")))
    return expected
