"""Gradients through branches, loops, calls of oneself and updates, against differences in f64."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from gradient_programs import Writer

import opstep
from opstep.runtime.ir.printer import print_module, print_statement

STEP = 1e-6
PROGRAMS = sorted((Path(__file__).parent / "control").glob("*.opg"))


def difference(text: str, inputs: dict, direction: dict) -> float:
    """The derivative of the loss along a direction, by a central difference."""
    values = []
    for sign in (1, -1):
        program = opstep.loads(text)
        moved = dict(inputs)
        for name, v in direction.items():
            at = np.asarray(inputs[name] if name in inputs else program.params[name])
            if name in inputs:
                moved[name] = at + sign * STEP * v
            else:
                program.params[name] = at + sign * STEP * v
        values.append(program.run("loss", moved).outputs[0])
    return float(values[0] - values[1]) / (2 * STEP)


def check(text: str, inputs: dict, wrt: list[str], **options) -> opstep.Program:
    """The derivatives of `loss` along a random direction, and that results and updates are those
    of `loss` itself; of the program read back from its text.
    """
    plain = opstep.loads(text, "plain.opg")
    written = print_module(plain.with_grad("loss", wrt).module)
    program = opstep.loads(written, "gradient.opg")
    assert print_module(program.module) == written
    found = program.run("loss_grad", inputs, **options).outputs
    expected = plain.run("loss", inputs)
    assert found[0].tobytes() == expected.outputs[0].tobytes()
    for name in plain.params:
        assert plain.params[name].tobytes() == program.params[name].tobytes(), name
    rng = np.random.default_rng(3)
    gradients = dict(zip(wrt, found[-len(wrt) :], strict=True))
    direction = {n: rng.standard_normal(g.shape) for n, g in gradients.items()}
    along = sum(float((gradients[n] * v).sum()) for n, v in direction.items())
    scale = max(1.0, *(np.abs(g).max() for g in gradients.values()))
    assert along == pytest.approx(difference(text, inputs, direction), abs=2e-7 * scale, rel=2e-6)
    return program


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    inputs = {n: rng.uniform(-1, 1, 3) for n in "xy"}
    options = {"mode": "debug"} if seed % 4 == 0 else {"streams": 1 + seed % 3}
    check(Writer(seed).text(), inputs, ["x", "y", "w", "v", "s", "t"], **options)


@pytest.mark.parametrize("mode", ["async", "debug"])
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_programs(path, mode):
    """Each says what its loss and its derivatives are, and what it leaves in its states."""
    text = path.read_text(encoding="utf-8")
    lines = re.findall(r"^# (input|set|expect|expect after) (\w+): (.*)$", text, re.MULTILINE)
    said = {(what, name): json.loads(value) for what, name, value in lines}
    named = {what: {n: v for (w, n), v in said.items() if w == what} for what, _ in said}
    wrt = [name for name in named["expect"] if name != "loss"]
    program = opstep.loads(text).with_grad("loss", wrt)
    program.params.update({n: np.asarray(v, float) for n, v in named.get("set", {}).items()})
    found = program.run("loss_grad", named["input"], mode=mode)
    for value, name in zip(found.outputs, ["loss", *wrt], strict=True):
        np.testing.assert_allclose(value, named["expect"][name], rtol=1e-12, err_msg=name)
    for name, value in named.get("expect after", {}).items():
        assert program.params[name] == value
    assert found.unwritten == []


@pytest.mark.parametrize("sign", [1, -1])
def test_sizes_and_numbers(sign):
    """Graphs with symbols of their own; a failed assert in a branch leaves all as it was."""
    rng = np.random.default_rng(0)
    text = (Path(__file__).parent / "sizes.opg").read_text(encoding="utf-8")
    inputs = {"x": rng.uniform(-1, 1, 4), "y": sign * rng.uniform(0, 1, (4, 2))}
    program = check(text, inputs, ["x", "y", "w", "total"])
    before = program.params["total"]
    with pytest.raises(opstep.OpstepError, match=r"assert failed: too large(.|\n)*from plain.opg"):
        program.run("loss_grad", inputs | {"x": np.full(4, 1e9)})
    assert program.params["total"] == before


@pytest.mark.parametrize("seed", range(12))
def test_second_order(seed):
    """The product of the Hessian and a vector, against a difference of gradients."""
    rng = np.random.default_rng(seed)
    x, y, u, v = rng.uniform(-1, 1, (4, 3))
    text = Writer(seed).text()
    first = opstep.loads(text).with_grad("loss", ["x", "w"])
    slope = """
graph slope(x: f64[3], y: f64[3], by_x: f64[3], by_w: f64[3]) -> f64[] {
  l, d_x, d_w = loss_grad(x, y)
  a = mul(d_x, by_x)
  b = mul(d_w, by_w)
  c = add(a, b)
  total = sum(c)
  return total
}
"""
    second = opstep.loads(print_module(first.module) + slope).with_grad("slope", ["x", "w"])
    given = {"x": x, "y": y, "by_x": u, "by_w": v}
    found = second.run("slope_grad", given).outputs[-2:]

    def gradient(sign: float) -> list[np.ndarray]:
        program = opstep.loads(text).with_grad("loss", ["x", "w"])
        program.params["w"] = program.params["w"] + sign * 1e-5 * v
        return program.run("loss_grad", {"x": x + sign * 1e-5 * u, "y": y}).outputs[-2:]

    for product, up, down in zip(found, gradient(1), gradient(-1), strict=True):
        expected = (up - down) / 2e-5
        np.testing.assert_allclose(product, expected, atol=1e-7 * (1 + np.abs(expected).max()))


def test_the_stack_has_a_frame_for_each_turn(tmp_path):
    """Each with its values, at lines that name the lines that they were written for."""
    path = tmp_path / "plain.opg"
    path.write_text((PROGRAMS[0].parent / "many_turns.opg").read_text())
    written = tmp_path / "gradient.opg"
    written.write_text(print_module(opstep.load(path).with_grad("loss", ["x"]).module))
    program = opstep.load(written)
    program.params["w"] = 2.0
    debugger = opstep.Debugger(program, "loss_grad", {"x": 1.0, "n": 3}, stop_on_entry=True)
    debugger.view = "auto"
    stop, deepest, texts = debugger.start(), [], []
    while stop.reason != "end":
        stack = debugger.stack()
        turns = [frame for frame in stack if frame.name == "turn_turn"]
        if len(turns) > len(deepest):
            deepest = [print_statement(frame.statement) for frame in turns]
        texts.append(print_statement(stack[0].statement))
        stop = debugger.go("in")
    assert len(deepest) == 3 and all("then=turn_turn" in text for text in deepest[1:])
    line = next(k for k, t in enumerate(path.read_text().splitlines(), 1) if "mul(x, w)" in t)
    back = [text for text in texts if text.startswith("d_x = mul(d_y, w)")]
    at = f'plain.opg":{line} in "backward"'
    assert len(back) == 3 and all(text.endswith(at) for text in back)
