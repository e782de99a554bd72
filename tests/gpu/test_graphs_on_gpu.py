"""Graphs on a GPU: the examples beside the CPU, random programs whatever streams they run on."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from random_graphs import text_of

import opstep
from opstep.api import sources
from opstep.api.program import Program
from opstep.runtime.device.cuda.device import CudaDevice
from opstep.runtime.ir.parser import parse

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GRAPHS = [
    (path.name, name)
    for path in sorted(EXAMPLES.glob("*.opg"))
    for name in opstep.load(path).graphs
]
SIZES = {"N": 3, "B": 2, "L": 5, "K": 32, "M": 64, "C": 4, "O": 8, "H": 16, "W": 16, "T": 7}


@pytest.mark.parametrize("file, graph", GRAPHS)
def test_examples(file, graph):
    results = {}
    for device, mode in (("cpu", "async"), ("cuda", "async"), ("cuda", "debug")):
        program = opstep.load(EXAMPLES / file)
        found = program.graph(graph)
        names = {str(n) for b in found.inputs for n in b.type.shape if not isinstance(n, int)}
        given = sources.gather(program, found, ["random"], {n: SIZES[n] for n in names}, 0)
        results[device, mode] = program.run(graph, given, device=device, mode=mode).outputs
    cpu, fast, debugged = results.values()
    for a, b, c in zip(cpu, fast, debugged, strict=True):
        assert b.tobytes() == c.tobytes()
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
        else:
            largest = np.abs(a[np.isfinite(a)]).max(initial=0)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * largest)


def outcome(text: str, device: str, inputs: dict, **switches) -> list[np.ndarray]:
    """The results, then the params as the run left them."""
    program = Program(parse(text, "random.opg"))
    rng = np.random.default_rng(1)
    for name, tensor in program.module.tensors.items():
        program.params[name] = rng.standard_normal(tensor.type.shape).astype(
            tensor.type.dtype.numpy
        )
    outputs = program.run("main", inputs, device=device, steps=2, **switches).outputs
    return [*outputs, *(np.array(program.params[n]) for n in program.module.tensors)]


def test_updates_run_beside_each_other_in_a_graph_that_is_replayed():
    """Those that read what the last one writes come before it."""
    sizes = range(200_000, 240_000, 1_000)
    params = "".join(f"param w{n}: f32[{n}] = normal()\n" for n in sizes)
    lines = "".join(f"  p{n} = mul(w{n}, s)\n  w{n} <- p{n}\n" for n in sizes)
    text = (
        f"{params}param s: f32[1] = full(value=1.5)\n"
        f"graph main(x: f32[1]) -> f32[1] {{\n{lines}"
        "  t = sub(s, x)\n  s <- t\n  y = mul(x, 2.0)\n  return y\n}\n"
    )
    x, found = {"x": np.array([0.25], np.float32)}, []
    for device in ("cpu", "cuda"):
        program = opstep.loads(text)
        program.run("main", x, device=device, steps=6)
        found.append({n: program.params[n].tobytes() for n in program.module.tensors})
    assert found[0] == found[1]


@pytest.mark.parametrize("hundred", range(10))
@pytest.mark.parametrize("ten", range(10))
def test_random_graphs(hundred, ten, monkeypatch):
    for seed in range(100 * hundred + 10 * ten, 100 * hundred + 10 * ten + 10):
        text, random = text_of(seed), Random(seed)
        main = Program(parse(text, "random.opg")).graphs["main"]
        rng = np.random.default_rng(seed)
        given = {b.name.text: rng.standard_normal(8).astype("f4") for b in main.inputs}
        bits = [a.tobytes() for a in outcome(text, "cuda", given, mode="debug")]
        for _ in range(3):
            streams, alloc = random.randint(1, 8), random.choice(["reuse", "fresh"])
            monkeypatch.setattr(CudaDevice, "replays", random.random() < 0.5)
            found = outcome(text, "cuda", given, streams=streams, alloc=alloc)
            assert [a.tobytes() for a in found] == bits, (seed, streams, alloc)
        wide = text.replace("f32", "f64")
        given = {name: x.astype("f8") for name, x in given.items()}
        for a, b in zip(outcome(wide, "cpu", given), outcome(wide, "cuda", given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
