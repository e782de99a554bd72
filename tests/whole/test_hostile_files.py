"""Files that are not what they claim: an error that names them, soon, and without much memory.

`pytest tests/whole/test_hostile_files.py --hostile 10000 --timeout 0` tries that many.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import forked
import hostile
import numpy as np
import pytest

import opstep
from opstep.cli.main import main
from opstep.runtime import arrays
from opstep.runtime.ir.dims import Expr

pytestmark = pytest.mark.slow

NET = """param w: f32[3, 8] = normal(std=0.3)
state seen: i64[] = 0

graph main(x: f32[N, 8], scale: f32[]) -> f32[N, 3], bool[] {
  y = linear(x, w)
  z = while(y, test=large, body=half, limit=50)
  s = mul(z, scale)
  m = max(s)
  c = less(m, 1.0e3)
  assert c, "a large one"
  r = cond(c, s, then=half, else=same)
  n = add(seen, 1)
  seen <- n
  return r, c
}

graph large<T: float>(y: T[N, K]) -> bool[] {
  m = max(y)
  big = greater(m, 4.0)
  return big
}

graph half<T: float>(y: T[N, K]) -> T[N, K] {
  h = mul(y, 0.5)
  return h
}

graph same<T: float>(y: T[N, K]) -> T[N, K] {
  a = reshape(y, shape=[N * K])
  b = reshape(a, shape=[N, K])
  return b
}
"""
TAKES = "graph main(x: f32[4], y: f32[N], h: f16[2, M]) -> f32[4] {\n  return x\n}\n"
INPUTS = {"x": np.ones(4, "f4"), "y": np.ones(9, "f4"), "h": np.ones((2, 3), "f2")}
NULL = ("--device", "null")


class Seed(NamedTuple):
    """A good file, and what is done with it."""

    kind: str
    data: bytes
    lines: Callable[[str], list[list[str]]]


def of_programs(folder: Path) -> list[Seed]:
    def seed(text: str) -> Seed:
        program = opstep.loads(text)
        graph = next(g for name, g in program.graphs.items() if name in ("main", "loss"))
        dims = [d for b in graph.inputs if b.type for d in b.type.shape if isinstance(d, Expr)]
        sizes = [f"--symbol={name}=4" for name in sorted({s for d in dims for s in d.symbols()})]

        def lines(name: str) -> list[list[str]]:
            of = [name, "-g", graph.name.text, *sizes]
            return [["check", name], ["fmt", "--diff", name], ["plan", *of],
                    ["run", *of, "-i", "random", *NULL]]  # fmt: skip

        return Seed(".opg", text.encode(), lines)

    examples = sorted((Path(opstep.__file__).parents[1] / "examples").glob("*.opg"))
    reduced = NET.replace("max(s)", "max(every)").replace(
        "  m =", "  every = all_reduce(s, over=data)\n  m =", 1
    )
    mesh = f"mesh data: 2, model: 2\n\n{reduced}"
    return [seed(text) for text in (NET, mesh, *(f.read_text() for f in examples))]


def of_arrays(folder: Path) -> list[Seed]:
    (folder / "takes.opg").write_text(TAKES)
    np.savez(folder / "a.npz", **INPUTS)
    np.savez_compressed(folder / "b.npz", **INPUTS)
    np.save(folder / "x.npy", INPUTS["x"])
    arrays.write_safetensors(folder / "c.safetensors", INPUTS)

    def keyed(name: str) -> list[list[str]]:
        return [["run", "takes.opg", *(f"-i{k}={name}:{k}" for k in INPUTS), *NULL]]

    def alone(name: str) -> list[list[str]]:
        return [
            ["run", "takes.opg", "-i", f"x={name}", "-i", "ones", "-s", "N=3", "-s", "M=3", *NULL]
        ]

    found = [Seed(f.suffix, f.read_bytes(), keyed) for f in sorted(folder.glob("[abc].*"))]
    return [*found, Seed(".npy", (folder / "x.npy").read_bytes(), alone)]


def of_params(folder: Path) -> list[Seed]:
    (folder / "net.opg").write_text(NET)
    values = {"w": np.ones((3, 8), "f4"), "seen": np.array(0, "i8")}
    arrays.write_safetensors(folder / "p.safetensors", values)

    def lines(name: str) -> list[list[str]]:
        return [["run", "net.opg", "-i", "random", "-s", "N=2", "--params", name, *NULL]]

    return [Seed(".safetensors", (folder / "p.safetensors").read_bytes(), lines)]


def of_exports(folder: Path) -> list[Seed]:
    torch = pytest.importorskip("torch")
    nn, found = torch.nn, []
    rows = torch.export.Dim("rows", min=2, max=64)
    models = [
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(4, 6), None),
        (nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Flatten()),
         torch.ones(4, 3, 8, 8), ({0: rows},)),
    ]  # fmt: skip
    for model, x, shapes in models:
        made = torch.export.export(model.eval(), (x,), dynamic_shapes=shapes)
        torch.export.save(made, folder / "m.pt2")
        found.append(Seed(".pt2", (folder / "m.pt2").read_bytes(), imported))
    return found


def imported(name: str) -> list[list[str]]:
    return [["run", name, "-i", "example", *NULL], ["check", name]]


def of_workspaces(folder: Path) -> list[Seed]:
    (folder / "net.opg").write_text(NET)
    line = ["run", str(folder / "net.opg"), "-i", "random", "-s", "N=2"]
    recorded = ["-w", str(folder / "w.db"), "--trace", str(folder / "t.pftrace")]
    assert main([*line, *recorded]) == 0

    def asked(name: str) -> list[list[str]]:
        return [["ws", name, "list"], ["ws", name, "why"], ["ws", name, "sql", "select * from ops"]]

    def timeline(name: str) -> list[list[str]]:
        return [["trace", name, "summary"]]

    data = {f: (folder / f).read_bytes() for f in ("w.db", "t.pftrace")}
    return [Seed(".db", data["w.db"], asked), Seed(".pftrace", data["t.pftrace"], timeline)]


# Of each dozen of files so many are made of these.
SHARES = {of_programs: 4, of_arrays: 3, of_params: 1, of_exports: 3, of_workspaces: 1}


def attempt(seeds: list[Seed], number: int, folder: Path) -> tuple[Path, forked.Ended]:
    draw = random.Random(f"{number}")
    seed = draw.choice(seeds)
    path = folder / f"hostile{seed.kind}"
    path.write_bytes(hostile.mutated(seed.data, seed.kind, draw))
    return path, forked.run(seed.lines(path.name), folder / "told.txt")


@pytest.mark.parametrize("make", SHARES)
def test_a_file_that_is_not_what_it_claims(make, tmp_path, request, pytestconfig):
    seeds = make(tmp_path)
    for seed in seeds:  # all that good ones import is imported, and they are good
        path = tmp_path / f"good{seed.kind}"
        path.write_bytes(seed.data)
        for line in seed.lines(str(path)):
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path)
                assert main(line) == 0, line
    count = pytestconfig.getoption("--hostile") * SHARES[make] // sum(SHARES.values())
    faults = []
    for number in range(count):
        path, ended = attempt(seeds, number, tmp_path)
        if ended.fault:
            kept = shutil.copy(path, path.with_name(f"fault-{make.__name__}-{number}{path.suffix}"))
            faults.append(f"{kept}: {ended.fault}: {ended.told.strip()[-300:]}")
    assert not faults, "\n".join([f"{len(faults)} of {count}", *faults[:20]])
