"""The CPU device through its protocol: streams, events, lanes, conversions, the kernel cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from waiting import PATIENCE_S

from opstep.runtime.device import convert
from opstep.runtime.device.cpu import jit, native
from opstep.runtime.device.cpu.device import CpuDevice, execute, payload
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.device.source import digest
from opstep.runtime.ir.op import OPS, Op, Traits
from opstep.runtime.ir.types import DTYPES, dtype, f32


def double(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i] * 2.0


def mark_lane(y, lo, hi, lane):
    for i in range(lo, hi):
        y[i] = lane + 1


def accumulate(x, scratch, y, cols, lo, hi, lane):
    """Row sums by way of a tile that belongs to the lane."""
    tile = lane * cols
    for r in range(lo, hi):
        for c in range(cols):
            scratch[tile + c] = x[r * cols + c]
        total = 0.0
        for c in range(cols):
            total += scratch[tile + c]
        y[r] = total


def cast_cpu(x, y, *, to):
    return convert.conversion(x, y, lambda size: Scratch(f32, size))


def declare(monkeypatch, signature, **parts):
    """An op for one test only."""
    name = signature.partition("(")[0]
    monkeypatch.delitem(OPS, name, raising=False)
    made = type(name, (Op,), {"signature": signature, "grad": None, **parts})
    del OPS[name]  # for good: what monkeypatch deletes, it brings back
    return made


@pytest.fixture
def marking(monkeypatch):
    """An op whose units say which lane ran them."""
    return declare(
        monkeypatch,
        "lanes(x: F)",
        infer=lambda x: x,
        cpu=lambda x, y: Launch(mark_lane, y, units=y.size, grain=1),
    )


@pytest.fixture
def twice(monkeypatch):
    return declare(
        monkeypatch,
        "twice(x: N)",
        infer=lambda x: x,
        cpu=lambda x, y: Launch(double, x, y, units=x.size, grain=64),
    )


@pytest.fixture
def convert_to(monkeypatch):
    return declare(
        monkeypatch,
        "convert_to(x: T, *, to: dtype)",
        traits=Traits(moves=True),
        infer=lambda x, *, to: x.with_dtype(to),
        cpu=cast_cpu,
    )


@pytest.mark.parametrize("name", [n for n in DTYPES if n != "bool"])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_a_kernel_runs_in_every_dtype(twice, name, size):
    x = np.arange(size).astype(dtype(name).numpy) % 50
    (y,) = execute(twice, [x], {})
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(np.float64), x.astype(np.float64) * 2)


@pytest.mark.parametrize("lanes", [2, 3, 5])
def test_every_unit_runs_once_whatever_the_lanes(marking, lanes):
    for _ in range(200):
        (y,) = execute(marking, [np.zeros(37, np.float32)], {}, lanes)
        assert y.min() >= 1
        assert y.max() <= lanes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others place threads themselves")
@pytest.mark.parametrize("processors", [1, None])
def test_lanes_that_slept_may_use_the_processors_of_their_caller(monkeypatch, marking, processors):
    monkeypatch.setattr(native, "_teams", {})  # a team of this test's, whoever had as many lanes
    others = threading.enumerate()
    everywhere = os.sched_getaffinity(0)
    here = set(sorted(everywhere)[:processors])
    deadline = time.monotonic() + PATIENCE_S
    os.sched_setaffinity(0, here)  # of this thread
    try:
        found = None
        while found != here and time.monotonic() < deadline:
            time.sleep(0.002)  # lanes look for work for less
            (y,) = execute(marking, [np.zeros(37, np.float32)], {}, 7)
            assert y.min() > 0
            (helper,) = (
                t for t in threading.enumerate() if t.name == "opstep lane 6" and t not in others
            )
            assert helper.native_id is not None
            found = os.sched_getaffinity(helper.native_id)
        assert found == here
    finally:
        os.sched_setaffinity(0, everywhere)


def test_lanes_have_scratch_of_their_own(monkeypatch):
    def cpu(x, y):
        rows, cols = x.shape
        scratch = Scratch(x.dtype, cols, per_lane=True)
        return Launch(accumulate, x, scratch, y, cols, units=rows, grain=1)

    op = declare(monkeypatch, "sums(x: F)", infer=lambda x: x.with_shape(x.shape[:1]), cpu=cpu)
    x = np.arange(200 * 31, dtype=np.float64).reshape(200, 31)
    for lanes in (1, 2, 4):
        (y,) = execute(op, [x], {}, lanes)
        np.testing.assert_array_equal(y, x.sum(1))


def test_streams_share_the_lanes_without_mixing_their_work(twice):
    x = np.random.default_rng(0).standard_normal(5000)
    wrong = []

    def work():
        for _ in range(50):
            (y,) = execute(twice, [x], {}, 2)
            if not np.array_equal(y, x * 2):
                wrong.append(y)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert not any(t.is_alive() for t in threads)


def test_streams_keep_their_order_and_events_order_streams():
    device = CpuDevice(1)
    first, second = device.stream(), device.stream()
    event, seen = device.event(), []
    release = threading.Event()
    second.wait(event)
    second.submit(lambda: seen.append("second"))
    second.start()
    first.submit(release.wait)
    first.submit(lambda: seen.append("first"))
    first.record(event)
    first.start()
    assert not event.done()
    release.set()
    second.synchronize()
    first.synchronize()
    assert seen == ["first", "second"]
    assert event.done()


def test_what_fails_on_a_stream_is_raised_where_it_is_waited_for():
    stream = CpuDevice(1).stream()
    seen = []
    stream.submit(lambda: 1 // 0)
    stream.submit(lambda: seen.append("after"))
    stream.start()
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()
    stream.synchronize()
    assert seen == ["after"]


def test_an_event_calls_back_whether_it_is_early_or_late():
    device = CpuDevice(1)
    event, seen = device.event(), []
    event.on_done(lambda: seen.append("early"))
    event.set()
    event.on_done(lambda: seen.append("late"))
    assert seen == ["early", "late"]


@pytest.mark.parametrize("name", DTYPES)
def test_fill_writes_the_payload_everywhere(name):
    device, t = CpuDevice(1), dtype(name)
    memory = device.alloc(10 * t.itemsize)
    memory.bytes[:] = 0
    device.fill(memory, t.itemsize, 8 * t.itemsize, t)()
    bits = memory.bytes.view(f"u{t.itemsize}")
    assert (bits[1:9] == payload(t)).all()
    assert bits[0] == bits[9] == 0
    if t.is_float:
        values = memory.bytes.view(t.numpy)[1:9].astype(np.float64)
        assert np.isnan(values).all()
        assert bits[1] != np.array([np.nan], t.numpy).view(bits.dtype)[0], "not a NaN ops compute"


HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("name", HALVES)
def test_all_halves_widen_exactly(convert_to, name):
    every = np.arange(65536, dtype=np.uint16).view(HALVES[name])
    (wide,) = execute(convert_to, [every], {"to": f32})
    expected = every.astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(wide[~nan], expected[~nan])
    assert np.isnan(wide[nan]).all()


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_halves_round_once_to_nearest_even(convert_to, name, source):
    """Every half, every midpoint of neighbours, and a hair to both sides of each midpoint."""
    half = HALVES[name]
    grid = np.arange(0x7C00 if name == "f16" else 0x7F80, dtype=np.uint16).view(half)
    values = grid.astype(np.float64)
    middles = (values[:-1] + values[1:]) / 2
    x = np.concatenate([values, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
    x = np.concatenate([x, -x]).astype(source)
    (y,) = execute(convert_to, [x], {"to": dtype(name)})
    # nearest by definition: no half is closer, and of two equally close the even one is taken
    index = np.searchsorted(values, np.abs(x.astype(np.float64)))
    above = np.minimum(index, len(values) - 1)
    below = np.maximum(above - 1, 0)
    d_above = np.abs(values[above] - np.abs(x.astype(np.float64)))
    d_below = np.abs(values[below] - np.abs(x.astype(np.float64)))
    take_below = (d_below < d_above) | ((d_below == d_above) & (below % 2 == 0))
    expected = np.where(take_below, below, above).astype(np.uint16)
    np.testing.assert_array_equal(y.view(np.uint16) & 0x7FFF, expected)


@pytest.mark.parametrize("source", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("target", ["i64", "i32", "i16", "i8", "u8"])
def test_floats_become_integers_by_truncation_within_the_limits(convert_to, source, target):
    x = np.array(
        [0, -0.0, 0.9, -0.9, 1.5, -1.5, 100, -100, 300, 1e5, -1e5, np.inf, -np.inf, np.nan]
    )
    with np.errstate(over="ignore"):
        x = x.astype(dtype(source).numpy)
    (y,) = execute(convert_to, [x], {"to": dtype(target)})
    limits = np.iinfo(y.dtype)
    finite = np.nan_to_num(x.astype(np.float64), nan=0, posinf=limits.max, neginf=limits.min)
    expected = [int(min(max(int(v), limits.min), limits.max)) for v in finite]
    assert y.tolist() == expected


@pytest.mark.parametrize("source", DTYPES)
def test_to_bool_is_unequal_to_zero(convert_to, source):
    x = np.array([0, 1, 2, 0, 100]).astype(dtype(source).numpy)
    (y,) = execute(convert_to, [x], {"to": dtype("bool")})
    assert y.tolist() == [False, True, True, False, True]


# --- the kernel cache ---


def test_literals_take_the_dtype_of_the_kernel(monkeypatch):
    def scale(x, y, lo, hi):
        for i in range(lo, hi):
            y[i] = x[i] * 0.1

    op = declare(
        monkeypatch,
        "tenth(x: F)",
        infer=lambda x: x,
        cpu=lambda x, y: Launch(scale, x, y, units=x.size),
    )
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    np.testing.assert_array_equal(execute(op, [x], {})[0], x * np.float32(0.1))
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(execute(op, [wide], {})[0], wide * 0.1)


SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.cpu.device import execute
import opstep.kernels
from opstep.runtime.ir.op import OPS, complete
Compiler.folder = Path(sys.argv[1])
op = OPS["relu"]
(y,) = execute(op, [np.arange(-5, 5, dtype=np.float32)], complete(op, {}))
print(json.dumps([Compiler.compiled, "numba" in sys.modules, y.tolist()]))
"""


FORKING = """
import os, threading, time
import numpy as np
import opstep
from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.api.settings import RunSettings

lines = "graph main(x: f32[512, 512]) -> f32[512, 512] {", "y = matmul(x, x)", "return y", "}"
program = opstep.loads(os.linesep.join(lines))
types = [b.type for b in program.graphs["main"].inputs]
held = Executable(program, "main", types, RunSettings(threads=2))
x = ExternalTensor.of(np.ones((512, 512), np.float32))

def is_right():
    return bool((np.from_dlpack(held([x])[0]) == 512).all())

assert is_right()
time.sleep(0.05)  # until helpers sleep
child = os.fork()
if child == 0:
    os._exit(0 if is_right() else 1)
_, status = os.waitpid(child, 0)
helpers = [t.native_id for t in threading.enumerate() if t.name.startswith("opstep lane")]
allowed = [os.sched_getaffinity(h) == os.sched_getaffinity(0) for h in helpers]
print(status, allowed, is_right())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nobody forks elsewhere")
def test_a_forked_child_leaves_the_lanes_of_its_parent_alone():
    out = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True)
    assert out.stdout == "0 [True] True\n", out.stderr


def run_script(folder):
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout)


def test_a_second_process_finds_the_code_and_needs_no_numba(tmp_path):
    compiled, _, values = run_script(tmp_path)
    assert compiled > 0
    assert values == [0.0] * 5 + [0.0, 1.0, 2.0, 3.0, 4.0]
    assert run_script(tmp_path) == [0, False, values]


def test_a_damaged_cache_file_is_compiled_anew(tmp_path):
    _, _, values = run_script(tmp_path)
    for k, file in enumerate(sorted(tmp_path.iterdir())):
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2] if k % 2 else data[:-1] + bytes([data[-1] ^ 1]))
    compiled, _, again = run_script(tmp_path)
    assert compiled > 0
    assert again == values


@pytest.mark.slow
def test_a_cache_file_whose_header_says_something_else_is_compiled_anew(tmp_path):
    """The check sum is of the code; a header may be whole JSON and yet wrong."""
    _, _, values = run_script(tmp_path)
    faults = [{"symbol": "elsewhere"}, {"symbol": 5}, {"numba": "no"}, [], "text", None]
    while faults:
        spoilt = [(file, faults.pop()) for file in sorted(tmp_path.iterdir())[: len(faults)]]
        assert spoilt
        for file, wrong in spoilt:
            head, _, code = file.read_bytes().partition(b"\n")
            header = {**json.loads(head), **wrong} if isinstance(wrong, dict) else wrong
            file.write_bytes(json.dumps(header).encode() + b"\n" + code)
        compiled, _, again = run_script(tmp_path)
        assert compiled == len(spoilt)
        assert again == values


def test_the_cache_may_be_a_place_that_cannot_be_written(tmp_path):
    place = tmp_path / "a file, not a folder"
    place.write_text("")
    compiled, _, values = run_script(place)
    assert compiled > 0
    assert values[-1] == 4.0


@pytest.mark.slow
def test_processes_that_fill_the_cache_together_agree(tmp_path):
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = [json.loads(r.communicate(timeout=PATIENCE_S)[0]) for r in runs]
    assert all(o[2] == outputs[0][2] for o in outputs)
    assert not [f for f in tmp_path.iterdir() if f.suffix != ".o"], "no temporary files left"


def test_a_key_covers_the_functions_that_a_kernel_calls():
    def helper(x):
        return x + 1.0

    def other(x):
        return x + 2.0

    def kernel(function):
        def outer(x, y, lo, hi):
            for i in range(lo, hi):
                y[i] = function(x[i])

        return outer

    digests = {digest(kernel(f), f32, jit.CPU) for f in (helper, other)}
    assert len(digests) == 2
    assert native.team(2) is native.team(2)


def test_a_stream_that_is_dropped_takes_its_thread_along():
    stream = CpuDevice(1).stream()
    stream.submit(lambda: None)
    stream.start()
    stream.synchronize()
    thread = stream._thread
    del stream
    thread.join(5)
    assert not thread.is_alive()
