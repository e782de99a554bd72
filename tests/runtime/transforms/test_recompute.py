"""Gradients and steps of training within a memory budget: it is met, and no bit changes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gradient_programs import Writer

import opstep
from opstep.api.budget import memory_of
from opstep.runtime.device.cpu.device import CpuMemory
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.printer import print_module

DEEP = """
param w: f32[32, 32] = normal(std=0.3)
param b: f32[32] = zeros()
state step: i64[] = 0

graph block(x: f32[N, 32], seed_step: i64[]) -> f32[N, 32] {
  a = linear(x, w, b)
  t = gelu(a)
  d = dropout(t, seed_step, p=0.25, seed=7)
  y = add(d, x)
  return y
}

graph loss(x: f32[N, 32]) -> f32[], i64[] {
  h0 = tanh(x)
BLOCKS
  l = mean(h8)
  fine = isfinite(l)
  assert fine, "no number"
  next = add(step, 1)
  step <- next
  return l, next
}
"""
DEEP = DEEP.replace("BLOCKS", "\n".join(f"  h{k + 1} = block(h{k}, step)" for k in range(8)))
SIZES = {"N": 512}
RUNS = [{}, {"streams": 1}, {"streams": 3}, {"mode": "debug"}]


def taken(program: opstep.Program, graph: str, symbols=None) -> int:
    types = program.input_types(program.graph(graph), symbols or {})
    return memory_of(program, graph, types).total


def results(program: opstep.Program, graph: str, inputs, **options) -> list[bytes]:
    """The bits of all that two runs give and leave behind."""
    copy = opstep.loads(print_module(program.module))
    found = copy.run(graph, inputs, steps=2, **options)
    return [a.tobytes() for a in (*found.outputs, *copy.params.values())]


def test_less_and_less_memory():
    plain = opstep.loads(DEEP, "deep.opg")
    full = plain.with_grad("loss", ["*", "x"])
    inputs = {"x": np.random.default_rng(0).standard_normal((512, 32), np.float32)}
    before = taken(full, "loss_grad", SIZES)
    expected = results(full, "loss_grad", inputs)
    again, peaks = [], []
    for share in (1.0, 0.8, 0.6, 0.4, 0.33):
        limit = int(before * share)
        program = plain.with_grad("loss", ["*", "x"], memory=limit, symbols=SIZES)
        peaks.append(taken(program, "loss_grad", SIZES))
        assert peaks[-1] <= limit
        again.append(print_module(program.module).count("_again = "))
        for options in RUNS:
            assert results(program, "loss_grad", inputs, **options) == expected
    # which ops pay depends on the memory that kernels work in, and so on the processor
    assert again[0] == 0 < min(again[1:])
    assert again[-1] == max(again)
    assert peaks == sorted(peaks, reverse=True)


def test_what_is_computed_again_names_its_line():
    plain = opstep.loads(DEEP, "deep.opg")
    limit = taken(plain.with_grad("loss", ["*"]), "loss_grad", SIZES) // 2
    text = print_module(plain.with_grad("loss", ["*"], memory=limit, symbols=SIZES).module)
    assert re.search(r"^# Within \d+\.\d KiB where N = 512: computes .* again\.$", text, re.M)
    lines = dict(re.findall(r"^  (\w+) = .* (at \"deep.opg\":[\d, ]+)$", text, re.M))
    repeated = [name for name in lines if name.endswith("_again")]
    assert repeated
    for name in repeated:
        assert lines[name] == lines[name.removesuffix("_again")]
    assert print_module(opstep.loads(text).module) == text


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    inputs = {n: rng.uniform(-1, 1, 3) for n in "xy"}
    wrt = ["x", "y", "w", "v", "s", "t"]
    plain = opstep.loads(Writer(seed).text())
    full = plain.with_grad("loss", wrt)
    expected = results(full, "loss_grad", inputs)
    limit = int(taken(full, "loss_grad") * rng.uniform(0.3, 1.0))
    try:
        program = plain.with_grad("loss", wrt, memory=limit)
    except InputError:  # too little: `test_too_little` is about these
        return
    assert taken(program, "loss_grad") <= limit
    options = {"mode": "debug"} if seed % 4 == 0 else {"streams": 1 + seed % 3}
    assert results(program, "loss_grad", inputs, **options) == expected


def test_a_run_takes_what_was_planned(monkeypatch):
    """No more memory is asked for than the budget."""
    asked = []
    make = CpuMemory.__init__

    def counted(self, nbytes, what=""):
        asked.append(nbytes)
        make(self, nbytes, what)

    plain = opstep.loads(DEEP)
    limit = taken(plain.with_grad("loss", ["*"]), "loss_grad", SIZES) // 2
    program = plain.with_grad("loss", ["*"], memory=limit, symbols=SIZES)
    monkeypatch.setattr(CpuMemory, "__init__", counted)
    program.run("loss_grad", {"x": np.zeros((512, 32), np.float32)})
    assert limit // 2 < sum(asked) <= limit


def test_steps_of_training():
    plain = opstep.loads(DEEP)
    full = plain.with_optimizer("loss", "adamw", lr=1e-2, step="steps")
    limit = taken(full, "loss_step", SIZES) // 2
    program = plain.with_optimizer(
        "loss", "adamw", lr=1e-2, step="steps", memory=limit, symbols=SIZES
    )
    assert taken(program, "loss_step", SIZES) <= limit
    inputs = {"x": np.random.default_rng(1).standard_normal((512, 32), np.float32)}
    assert results(program, "loss_step", inputs) == results(full, "loss_step", inputs)


def test_calls_are_computed_again_as_a_whole():
    """A way back that calls the graphs of the forward pass, as a person writes it."""
    from opstep.api.budget import within

    lines = [f'  h{k + 1} = wide(h{k}) at "way.py":{k}' for k in range(12)]
    lines += [f"  g{k} = back(g{k + 1}, h{k})" for k in reversed(range(12))]
    text = """
graph wide(x: f32[N, 32]) -> f32[N, 32] {
  a = exp(x)
  b = tanh(a)
  return b
}

graph back(g: f32[N, 32], x: f32[N, 32]) -> f32[N, 32] {
  y = mul(g, x)
  return y
}

graph way(h0: f32[N, 32]) -> f32[N, 32] {
"""
    text += "\n".join([*lines, "  return g0", "}"]).replace("g12", "h12") + "\n"
    plain = opstep.loads(text)
    limit = int(taken(plain, "way", SIZES) * 0.6)
    module = within(plain, "way", "way", limit, SIZES)
    program = opstep.loads(print_module(module))
    assert taken(program, "way", SIZES) <= limit
    assert re.search(r"h\d+_again = wide\(h\d+(_again)?\)", print_module(module))
    inputs = {"h0": np.random.default_rng(2).standard_normal((512, 32), np.float32)}
    assert results(program, "way", inputs) == results(plain, "way", inputs)


@pytest.mark.slow
def test_too_little():
    plain = opstep.loads(DEEP, "deep.opg")
    with pytest.raises(InputError) as caught:
        plain.with_grad("loss", ["*"], memory="100KiB", symbols=SIZES)
    text = str(caught.value)
    least = re.search(r"loss_grad takes at least ([\d.]+) KiB where N = 512, not 100.0 KiB", text)
    assert least
    assert re.search(r"KiB are inputs, params and states; .*\(64.0 KiB, deep.opg:\d+\)", text)
    program = plain.with_grad("loss", ["*"], memory=f"{float(least[1]) + 0.1} KiB", symbols=SIZES)
    assert taken(program, "loss_grad", SIZES) <= (float(least[1]) + 0.1) * 1024


@pytest.mark.parametrize("memory", ["much", "", "-1", 0, -5, True, 1.5])
def test_no_size(memory):
    with pytest.raises(opstep.OpstepError, match="memory is"):
        opstep.loads(DEEP).with_grad("loss", ["*"], memory=memory, symbols=SIZES)


def test_sizes_that_are_missing():
    with pytest.raises(opstep.OpstepError, match="needs a size for N"):
        opstep.loads(DEEP).with_grad("loss", ["*"], memory="1MiB")
    with pytest.raises(opstep.OpstepError, match="has no dimension M"):
        opstep.loads(DEEP).with_grad("loss", ["*"], memory="1MiB", symbols={"M": 3})
