"""Graphs called on tensors of others, where they lie."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from api.executables import TEXT, TRAINED, random

import opstep
from opstep.api import program as hooks
from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.api.places import Alias
from opstep.api.settings import RunSettings
from opstep.runtime.device.binding import Binding
from opstep.runtime.ir.types import DTYPES, TensorType

MODES = {
    "async": RunSettings(),
    "debug": RunSettings(mode="debug"),
    "one stream": RunSettings(streams=1),
    "waits": RunSettings(sync="op"),
    "filled": RunSettings(fill="nan"),
    "delayed": RunSettings(chaos=3),
}


def of(*values) -> list[ExternalTensor]:
    return [ExternalTensor.of(v) for v in values]


def held(text: str, inputs, settings: RunSettings = RunSettings(), graph: str | None = None):
    program = opstep.loads(text)
    return Executable(program, graph, [t.type for t in of(*inputs)], settings)


def arrays(tensors) -> list[np.ndarray]:
    return [np.asarray(t) for t in tensors]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_calls_give_what_runs_give(mode, rows):
    """At other addresses each time, with new memory and with memory that is given."""
    x, y = random((rows, 4)), random((rows, 4), 1)
    executable = held(TEXT, [x, y], MODES[mode])
    for k in range(4):
        x, y = random((rows, 4), 2 * k), random((rows, 4), 2 * k + 1)
        before = x.copy(), y.copy()
        expected = executable.program.run("main", {"x": x, "y": y}).outputs
        targets = [np.empty_like(a) for a in expected]
        given = executable(of(x, y), of(*targets) if k % 2 else None)
        for found, target, want in zip(arrays(given), targets, expected, strict=True):
            assert found.tobytes() == want.tobytes()
            assert not k % 2 or target.tobytes() == want.tobytes(), "it was written there"
        assert (x.tobytes(), y.tobytes()) == (before[0].tobytes(), before[1].tobytes())


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_element_types(name, shape):
    dtype = DTYPES[name]
    text = f"graph g(x: {TensorType(dtype, shape)}) -> {TensorType(dtype, shape)} {{\n"
    text += f"  y = {'logical_not' if name == 'bool' else 'square'}(x)\n  return y\n}}\n"
    x = np.ones(shape).astype(dtype.numpy)
    (found,) = arrays(held(text, [x])(of(x)))
    assert found.dtype == dtype.numpy
    assert found.tobytes() == opstep.loads(text).run(inputs={"x": x})["y"].tobytes()


def test_inputs_are_read_where_they_are():
    """What is written to an input between calls is seen; results of a call outlive the next."""
    x, y = random((2, 4)), random((2, 4), 1)
    executable, inputs = held(TEXT, [x, y]), of(x, y)
    first = arrays(executable(inputs))
    kept = [a.copy() for a in first]
    x[...] = 0
    np.testing.assert_array_equal(arrays(executable(inputs))[0], y)
    assert [a.tobytes() for a in first] == [a.tobytes() for a in kept]


ALIASED = """
param w: f32[2, 3] = ones()
graph main(x: f32[2, 3]) -> f32[2, 3], f32[3, 2], f32[2, 3], f32[6], f32[2, 3] {
  flat = reshape(x, shape=[3, 2])
  y = neg(x)
  line = reshape(y, shape=[6])
  return x, flat, y, line, w
}
"""


@pytest.mark.parametrize("mode", MODES)
def test_results_that_are_something_else(mode):
    x = random((2, 3))
    executable = held(ALIASED, [x], MODES[mode])
    assert executable.aliases == [
        Alias("input", 0), Alias("input", 0), None, Alias("result", 2), Alias("own"),
    ]  # fmt: skip
    (tensor,) = of(x)
    given = executable([tensor])
    assert given[0] is tensor
    assert given[1].address == tensor.address
    assert given[3].address == given[2].address
    expected = [x, x.reshape(3, 2), -x, -x.reshape(6), np.ones((2, 3), "f4")]
    targets = [np.empty_like(a) for a in expected]
    for found in (arrays(given), arrays(executable([tensor], of(*targets))), targets):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    executable.program.params["w"] = np.zeros((2, 3), "f4")
    np.testing.assert_array_equal(np.asarray(given[4]), 1, "a named tensor is copied out")


def test_the_same_result_twice():
    text = "graph g(x: f32[3]) -> f32[3], f32[3] {\n  y = neg(x)\n  return y, y\n}\n"
    x = random(3)
    one, two = held(text, [x])(of(x))
    assert one is two
    targets = np.empty((2, 3), "f4")
    held(text, [x])(of(x), of(*targets))
    np.testing.assert_array_equal(targets, [-x, -x])


@pytest.mark.parametrize("mode", MODES)
def test_addresses_that_no_element_may_have(mode):
    """One byte off: inputs are copied, and results copied out, each time."""
    raw = np.zeros((4, 33), np.uint8)
    x, y, c, b = (row[1:].view("f4").reshape(2, 4) for row in raw)
    executable = held(TEXT, [x, y], MODES[mode])
    total = np.empty((), "f4")
    for k in range(3):
        x[...], y[...] = random((2, 4), k), random((2, 4), k + 1)
        executable(of(x, y), of(c, b, total))
        expected = executable.program.run("main", {"x": x, "y": y}).outputs
        assert [a.tobytes() for a in (c, b, total)] == [a.tobytes() for a in expected]


def trained(mode: str) -> Executable:
    return held(TRAINED, [np.ones(3, "f4")], MODES[mode])


@pytest.mark.parametrize("mode", MODES)
def test_params_are_updated_where_others_have_them(mode):
    executable = trained(mode)
    program = executable.program
    x, w = np.array([1, 2, 3], "f4"), np.array([10, 20, 30], "f4")
    executable(of(x))
    np.testing.assert_array_equal(program.params["w"], 1 - x)
    program.params.adopt("w", ExternalTensor.of(w))
    result, _ = executable(of(x))
    np.testing.assert_array_equal(w, [9, 18, 27])
    np.testing.assert_array_equal(np.asarray(result), w)
    w[...] = 5  # an optimiser of theirs
    program.run("main", {"x": x})
    np.testing.assert_array_equal(w, 5 - x)
    np.testing.assert_array_equal(program.params["w"], w)
    other = np.array([7, 7, 7], "f4")
    program.params.adopt("w", ExternalTensor.of(other))
    executable(of(x))
    np.testing.assert_array_equal(w, 5 - x, "it is theirs alone again")
    np.testing.assert_array_equal(other, 7 - x)
    program.params["w"] = x
    np.testing.assert_array_equal(other, x)
    assert program.params["seen"] == 4
    del program.params["w"]
    executable(of(x))
    np.testing.assert_array_equal(program.params["w"], 1 - x)
    np.testing.assert_array_equal(other, x, "it is theirs alone again")


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_assert_updates_nothing(mode):
    executable = trained(mode)
    w = np.array([10, 20, 30], "f4")
    executable.program.params.adopt("w", ExternalTensor.of(w))
    with pytest.raises(opstep.OpstepError, match="x is small"):
        executable(of(np.full(3, 9, "f4")))
    np.testing.assert_array_equal(w, [10, 20, 30])
    executable(of(np.ones(3, "f4")))
    np.testing.assert_array_equal(w, [9, 19, 29])


LOOP = """
graph more(x: f32[3], y: f32[3]) -> bool[] {
  s = sum(x)
  t = less(s, 100.0)
  return t
}
graph twice(x: f32[3], y: f32[3]) -> f32[3], f32[3] {
  z = add(x, x)
  return z, y
}
graph yes(x: f32[3]) -> f32[3] {
  z = neg(x)
  return z
}
graph no(x: f32[3]) -> f32[3] {
  z = mul(x, 2.0)
  return z
}
graph main(x: f32[3], y: f32[3], c: bool[]) -> f32[3], f32[3], f32[3] {
  a, b = while(x, y, test=more, body=twice)
  d = cond(c, x, then=yes, else=no)
  return a, b, d
}
"""


@pytest.mark.parametrize("mode", ["async", "debug", "waits"])
def test_called_graphs_find_what_moved(mode):
    executable = None
    for k in range(4):
        x, y, c = random(3, k) ** 2 + 1, random(3, k + 9), np.array(k % 2 == 0)
        executable = executable or held(LOOP, [x, y, c], MODES[mode], "main")
        expected = executable.program.run("main", {"x": x, "y": y, "c": c}).outputs
        found = arrays(executable(of(x, y, c)))
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_a_recording_and_listeners_see_the_same_step(tmp_path):
    x, y = random((2, 4)), random((2, 4), 1)
    executable = held(TEXT, [x, y])
    plain = [a.tobytes() for a in arrays(executable(of(x, y)))]
    seen = []

    class Listener:
        def before(self, execution):
            seen.append(execution.step.op.name)

        def after(self, execution):
            seen.append([a.tobytes() for a in execution.results()])

    watched = executable(of(x, y), listeners=(Listener(),))
    assert [a.tobytes() for a in arrays(watched)] == plain
    assert [s for s in seen if isinstance(s, str)] == ["add", "mul", "sub", "sum"]
    path = tmp_path / "runs.db"
    with opstep.Recording(workspace=path) as recording:
        found = executable(of(x, y), recording=recording)
    assert [a.tobytes() for a in arrays(found)] == plain
    with opstep.Workspace(path) as workspace:
        assert workspace.runs[0].status == "done"


@pytest.mark.parametrize("mode", ["async", "debug"])
def test_a_recording_follows_tensors_that_move(mode, tmp_path):
    xs = [np.full((2, 4), k, "f4") for k in range(3)]
    executable, found = held(TEXT, [xs[0], xs[0]], MODES[mode]), []
    with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
        for x in xs:
            found.append(executable(of(x, x + 1), recording=recording))  # whose memory is kept
    with opstep.Workspace(tmp_path / "runs.db") as workspace:
        (run,) = workspace.runs
        assert run.steps == 3
        sql = "select max from stats join ops using (run, op) where site = 'main/c' order by step"
        assert [row[0] for row in workspace.sql(sql).rows] == [1.0, 1.0, -1.0]
    assert [np.asarray(c).max() for c, *_ in found] == [1.0, 1.0, -1.0]


def test_hunts_and_debuggers_take_the_tensors():
    x, y = random((2, 4)), random((2, 4), 1)
    x[1, 2] = np.inf
    inputs = dict(zip("xy", of(x, y), strict=True))
    program = opstep.loads(TEXT)
    debugger = opstep.Debugger(program, "main", inputs, stop_on_entry=True)
    assert debugger.evaluate("x[1, 2]") == np.inf
    assert opstep.hunt(program, "main", inputs).findings


def test_an_attached_debugger_takes_the_call(monkeypatch):
    x, y = random((2, 4)), random((2, 4), 1)
    executable = held(TEXT, [x, y])
    taken = []

    def interposed(program, graph, inputs, settings):
        monkeypatch.setattr(hooks, "interposed", None)
        taken.append(graph)
        return program.run(graph, inputs, mode="debug")

    monkeypatch.setattr(hooks, "interposed", interposed)
    target = np.empty((2, 4), "f4")
    given = executable(of(x, y), [ExternalTensor.of(target), None, None])
    assert taken == ["main"]
    for found, expected in zip(arrays(given), arrays(executable(of(x, y))), strict=True):
        assert found.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(target, np.asarray(given[0]))


def test_calls_from_several_threads():
    x, y = random((500, 4)), random((500, 4), 1)
    executable = held(TEXT, [x, y])
    expected = [a.tobytes() for a in arrays(executable(of(x, y)))]
    wrong = []

    def call():
        for _ in range(50):
            if [a.tobytes() for a in arrays(executable(of(x, y)))] != expected:
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_what_does_not_fit_is_refused():
    x, y = random((2, 4)), random((2, 4), 1)
    executable, inputs = held(TEXT, [x, y]), of(x, y)
    c, b, s = (ExternalTensor.of(np.empty(n, "f4")) for n in ((2, 4), (2, 4), ()))
    fixed = np.empty((2, 4), "f4")
    fixed.flags.writeable = False
    far = ExternalTensor(4096, inputs[0].type, "cuda:1")
    whole = np.empty((3, 4), "f4")
    for given, results, message in [
        (inputs[:1], None, "1 inputs are given; the graph has 2"),
        ([*of(random((3, 4))), inputs[1]], None, r"input 0 is f32\[2, 4\], not f32\[3, 4\]"),
        ([inputs[0], far], None, "input 1 is on cuda:1, and the run on cpu"),
        (inputs, [c, b], "2 results are given"),
        (inputs, [c, s, b], "result 1 is"),
        (inputs, [inputs[0], b, s], "overlaps an input"),
        (inputs, of(whole[:2], whole[1:], np.empty((), "f4")), "or another result"),
        (inputs, [*of(fixed), b, s], "readonly"),
        (inputs, [*of(np.empty((4, 2), "f4").T), b, s], "readonly"),
    ]:
        with pytest.raises(opstep.OpstepError, match=message):
            executable(given, results)
    with pytest.raises(opstep.OpstepError, match="streams of other libraries mean nothing to cpu"):
        executable(inputs, [c, b, s], stream=0)
    with pytest.raises(opstep.OpstepError, match="needs memory for all of its results"):
        executable(inputs, [c, None, s], stream=0)
    params = opstep.loads(TRAINED.partition("graph")[0] + TEXT).params
    for tensor, message in [
        (random(4), r"param w is f32\[3\], not f32\[4\]"),
        (random((3, 2))[:, 0], "readonly"),
        (np.zeros(13, np.uint8)[1:].view("f4"), "a multiple of 4 bytes"),
    ]:
        with pytest.raises(opstep.OpstepError, match=message):
            params.adopt("w", ExternalTensor.of(tensor))


def test_the_null_device_does_nothing():
    x, y = random((2, 4)), random((2, 4), 1)
    target = np.ones((2, 4), "f4")
    executable = held(TEXT, [x, y], RunSettings(device="null"))
    for _ in range(2):
        given = executable(of(x, y), [ExternalTensor.of(target), None, None])
        assert [t.type for t in given] == list(executable.result_types)
    np.testing.assert_array_equal(target, 1)


def test_a_debugger_and_a_hunt_update_what_others_have():
    x, w = np.array([1, 2, 3], "f4"), np.array([10, 20, 30], "f4")
    program = opstep.loads(TRAINED)
    program.params.adopt("w", ExternalTensor.of(w))
    debugger = opstep.Debugger(program, "main", {"x": x}, stop_on_entry=True)
    debugger.start()
    assert debugger.evaluate("w[1]") == 20
    debugger.go("continue")
    np.testing.assert_array_equal(w, [9, 18, 27])
    opstep.hunt(program, "main", {"x": x}, steps=2)
    np.testing.assert_array_equal(w, [7, 14, 21])


@pytest.mark.parametrize("text", [TEXT, TRAINED])
def test_a_call_that_is_given_up_leaves_no_trace(text, monkeypatch):
    inputs = [np.ones((2, 4), "f4")] * 2 if text is TEXT else [np.ones(3, "f4")]
    executable = held(text, inputs)

    def interrupted(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    executable(of(*inputs))
    monkeypatch.setattr(Binding, "reset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        executable(of(*inputs))
    found = arrays(executable(of(*inputs)))
    program = opstep.loads(text)
    names = ["x", "y"][: len(inputs)]
    expected = program.run(
        "main", dict(zip(names, inputs, strict=True)), steps=1 + (text is TRAINED)
    )
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected.outputs]
