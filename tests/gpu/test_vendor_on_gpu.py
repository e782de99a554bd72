"""Products and convolutions of NVIDIA's libraries: every way they offer, against the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import oracle
import pytest
from cases import cases, inputs, program
from values import compare, op_by_op

import opstep
from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.cuda.choice import tuning
from opstep.runtime.device.cuda.choice.choice import Candidate, Kernels, _vendors
from opstep.runtime.device.cuda.vendor.libraries import missing
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS

CASES = {c.id: c for c in cases() if c.file in OPS and OPS[c.file].vendor}
BY_DTYPE = [
    (c.id, d) for c in CASES.values() for d in c.dtypes if d in ("f64", "f32", "f16", "bf16")
]


@pytest.fixture(scope="module", autouse=True)
def libraries():
    if absent := missing():
        pytest.skip(f"{' and '.join(absent)} not there")


def ways(op, operands, attrs) -> Iterator[tuple[str, list[np.ndarray]]]:
    """(name, results) of everything that the libraries offer for an op."""
    from opstep.runtime.device.cuda.device import device

    on = device(0)
    step, stored, results = one_step(op, operands, attrs)
    types = (*stored, *results)
    given = [None if a is None else on.alloc(a.nbytes) for a in operands]
    given += [None] * (len(stored) - len(given))
    for memory, array, t in zip(given, operands, stored, strict=False):
        if memory is not None:
            on.write(memory, 0, t, array)
    on.gpu.enter()
    for candidate in _vendors(step, types):
        targets = [on.alloc(t.nbytes) for t in results]
        made = candidate.make()
        if made is not None:
            yield candidate.name, _run(on, made, given, targets, results)


def _run(on, made, given, targets, results) -> list[np.ndarray]:
    for target, t in zip(targets, results, strict=True):
        on.now(on.fill(target, 0, target.nbytes, t.dtype))
    scratch = on.alloc(made[1])
    addresses = [0 if m is None else m.address for m in (*given, *targets)]
    launches = [on.load(launch) for launch in made[0]]
    on.run_now(on.bind(launches, addresses, scratch.address))
    return [on.read(m, 0, t) for m, t in zip(targets, results, strict=True)]


@pytest.mark.parametrize("case_id, dtype", BY_DTYPE)
def test_every_way(case_id, dtype):
    case = CASES[case_id]
    made, given = program(case_id, dtype), inputs(case, dtype)

    def execute(application, operands):
        op, attrs = application.op, dict(application.attrs)
        plain = opstep_execute(op, operands, attrs)
        if op.vendor:
            for name, found in ways(op, operands, attrs):
                for a, b in zip(plain, found, strict=True):
                    tolerance = 4 * case.tolerance(application.resolved.results[0].dtype)
                    try:
                        compare(b, a.astype(np.float64), tolerance)
                    except AssertionError as error:
                        raise AssertionError(f"{name}: {error}") from None
        return plain

    found = op_by_op(made, case, given, execute)
    expected = oracle.evaluate(made.verified, case.graph.name.text, given)
    for got, want, t in zip(
        found, expected, made.graphs[case.graph.name.text].results, strict=True
    ):
        compare(got, want, case.tolerance(t.dtype) if t.dtype.is_float else 0)


def opstep_execute(op, operands, attrs):
    from opstep.runtime.device.cpu.device import execute

    return execute(op, operands, attrs)


NET = """
param w1: f32[32, 3, 5, 5] = normal(std=0.1)
param b1: f32[32] = normal()
param w2: f32[64, 32, 3, 3] = normal(std=0.1)
param fc: f32[10, 64] = normal()

graph main(x: f32[N, 3, 24, 24]) -> f32[N, 10], f32[N, 64, 24, 24] {
  c1 = conv2d(x, w1, b1, padding=[2, 2])
  c2 = conv2d(c1, w2, padding=[1, 1])
  c3 = conv2d(c1, w2, padding=[2, 2], dilation=[2, 2])
  s = add(c2, c3)
  m = global_avg_pool2d(s)
  f = flatten(m, start=1, end=-1)
  y = linear(f, fc)
  return y, s
}
"""


@pytest.mark.parametrize("how", [{"kernels": "vendor"}, {"kernels": "auto", "autotune": True}])
def test_same_bits_whatever_the_mode_and_the_streams(how):
    given = {"x": np.random.default_rng(0).standard_normal((4, 3, 24, 24), np.float32)}
    made = opstep.loads(NET)
    first = made.run("main", given, device="cuda", **how)
    for more in ({"steps": 3}, {"streams": 1, "steps": 3}, {"mode": "debug"}):
        again = made.run("main", given, device="cuda", **how, **more)
        for a, b in zip(first.outputs, again.outputs, strict=True):
            assert a.tobytes() == b.tobytes()
    plain = made.run("main", given)
    for a, b in zip(first.outputs, plain.outputs, strict=True):
        compare(a, b.astype(np.float64), 2e-5)


UPDATED = """
state total: f32[8, 8] = zeros()

graph main(x: f32[8, 8]) -> f32[8, 8] {
  y = matmul(x, x)
  sum = add(total, y)
  total <- sum
  return sum
}
"""


def test_to_be_tuned_touches_nothing_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(Compiler, "folder", tmp_path)
    tuning.table.cache_clear()
    given = {"x": np.random.default_rng(1).standard_normal((8, 8), np.float32)}
    made = opstep.loads(UPDATED)
    made.run("main", given, device="cuda", steps=2, autotune=True)
    compare(made.params["total"], 2.0 * (given["x"].astype(np.float64) @ given["x"]), 1e-5)
    (file,) = (tmp_path / "tuning").glob("*.json")
    (times,) = json.loads(file.read_text())["times"].values()
    assert "numba" in {name.split(" ")[0] for name in times}
    assert "cublas" in {name.split(" ")[0] for name in times}
    tuning.table.cache_clear()


def linear_by(which, rows):
    """Whether a library runs it."""
    from opstep.runtime.device.cuda.device import CudaDevice
    from opstep.runtime.device.cuda.lowering import PreparedCall

    operands = [np.zeros((rows, 512), np.float32), np.zeros((rows, 512), np.float32)]
    step, stored, results = one_step(OPS["linear"], operands, {"transpose_w": False})
    on = CudaDevice().with_kernels(Kernels(which))
    launches, _ = on.prepare(step, (*stored, *results))
    return any(isinstance(p, PreparedCall) for p in launches)


def test_a_library_is_what_vendor_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(Compiler, "folder", tmp_path)  # there is no table
    tuning.table.cache_clear()
    for rows in (8, 4096):
        assert linear_by("vendor", rows)
        assert not linear_by("numba", rows)
    assert not linear_by("auto", 8)
    assert not (tmp_path / "tuning").exists()
    tuning.table.cache_clear()


def test_auto_keeps_what_it_took_at_first_sight(tmp_path, monkeypatch):
    monkeypatch.setattr(Compiler, "folder", tmp_path)
    tuning.table.cache_clear()
    by_library = linear_by("auto", 4096)
    (file,) = (tmp_path / "tuning").glob("*.json")
    found = json.loads(file.read_text())
    ((key, name),) = found["taken"].items()
    assert name.startswith("cublas" if by_library else "numba")
    for other in ("numba", library_names(4096)[0]):
        file.write_text(json.dumps({**found, "taken": {key: other}}))
        tuning.table.cache_clear()
        assert linear_by("auto", 4096) is (other != "numba"), "not tried again"
    tuning.table.cache_clear()


def library_names(rows):
    from opstep.runtime.device.cuda.choice.choice import _vendors
    from opstep.runtime.device.cuda.device import device

    device(0).enter()
    operands = [np.zeros((rows, 512), np.float32), np.zeros((rows, 512), np.float32)]
    step, stored, results = one_step(OPS["linear"], operands, {"transpose_w": False})
    return [candidate.name for candidate in _vendors(step, (*stored, *results))]


def test_names_of_candidates_are_different():
    arrays = [np.zeros((4, 3, 9, 9), np.float32), np.zeros((5, 3, 3, 3), np.float32)]
    arrays.append(np.zeros(5, np.float32))
    attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    from opstep.runtime.device.cuda.device import device

    device(0).gpu.enter()
    step, stored, results = one_step(OPS["conv2d"], arrays, attrs)
    found: list[Candidate] = list(_vendors(step, (*stored, *results)))
    names = [c.name for c in found]
    assert names
    assert len(set(names)) == len(names)
