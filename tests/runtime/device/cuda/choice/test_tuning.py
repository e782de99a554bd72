"""Which of an op's kernels run: tables of times, the rules where there are none, what is told where
libraries are missing.
"""

from __future__ import annotations

import json
import multiprocessing

import numpy as np
import pytest

import opstep
import opstep.kernels
from opstep.api.devices import Setup
from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.cuda.choice import tuning
from opstep.runtime.device.cuda.choice.choice import Chooser, Kernels, as_judged
from opstep.runtime.device.cuda.choice.trial import _alike
from opstep.runtime.device.cuda.choice.tuning import TuningTable, key_of
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.vendor import libraries
from opstep.runtime.device.launch import Grid, Variants
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.op import OPS

TIMES = {"numba": 12.5, "cublas 0": 3.25}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning" / "gpu.json"


# --- tables ---------------------------------------------------------------------------------------


def test_times_are_kept(path):
    TuningTable(path, "a GPU").put("op(f32[2])", TIMES)
    assert TuningTable(path, "a GPU").get("op(f32[2])") == TIMES
    assert TuningTable(path, "a GPU").get("op(f32[3])") is None


def test_what_was_taken_is_kept_beside_times(path):
    TuningTable(path, "a GPU").choose("op(f32[2])", "numba")
    TuningTable(path, "a GPU").put("op(f32[2])", TIMES)
    table = TuningTable(path, "a GPU")
    assert (table.chosen("op(f32[2])"), table.get("op(f32[2])")) == ("numba", TIMES)


def test_times_of_another_driver_do_not_count(path):
    TuningTable(path, "driver 12").put("op", TIMES)
    assert len(TuningTable(path, "driver 13")) == 0


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000),
        b'{"format": 3}',
        b'{"format": 3, "about": "a GPU"}',
        b'{"format": 3, "about": "a GPU", "times": 3, "taken": {}}',
        b'{"format": 3, "about": "a GPU", "times": {}, "taken": 3}',
    ],
)
def test_a_damaged_table_is_built_anew(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    table = TuningTable(path, "a GPU")
    assert len(table) == 0
    table.put("op", TIMES)
    assert TuningTable(path, "a GPU").get("op") == TIMES


def test_times_that_are_none_do_not_count(path):
    path.parent.mkdir()
    ops = {"sound": TIMES, "negative": {"numba": -1}, "words": {"numba": "fast"}, "list": [1]}
    ops["nothing"] = {"numba": float("nan")}
    taken = {"sound": "numba", "number": 3}
    path.write_text(json.dumps({"format": 3, "about": "a GPU", "times": ops, "taken": taken}))
    table = TuningTable(path, "a GPU")
    assert len(table) == 1
    assert table.get("sound") == TIMES
    assert (table.chosen("sound"), table.chosen("number")) == ("numba", None)


def _put_many(path, process):
    table = TuningTable(path, "a GPU")
    for k in range(20):
        table.put(f"op {process} {k}", TIMES)


def test_processes_share_a_table(path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_put_many, args=(path, k)) for k in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(TuningTable(path, "a GPU")) == 60


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("")
    table = TuningTable(tmp_path / "file" / "gpu.json", "a GPU")
    table.put("op", TIMES)
    assert table.get("op") == TIMES


def test_a_table_has_the_name_of_its_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(Compiler, "folder", tmp_path)
    tuning.table.cache_clear()
    made = tuning.table("NVIDIA H200", "driver 13")
    assert made.path.parent == tmp_path / "tuning"
    assert made.path.name.startswith("nvidia-h200-")
    assert tuning.table("NVIDIA H200", "driver 14").path != made.path
    tuning.table.cache_clear()


# --- the choice -----------------------------------------------------------------------------------


def step_of(op: str, *shapes: tuple[int, ...], **attrs):
    step, stored, results = one_step(OPS[op], [np.zeros(s, np.float32) for s in shapes], attrs)
    return step, (*stored, *results)


PLAIN = {"transpose_a": False, "transpose_b": False}


def write_one(y):
    y[0] = 1.0


def write_two(y):
    y[0] = 2.0


@pytest.fixture
def product(monkeypatch):
    """matmul with two kernels of ours, and three of a library that does not exist."""

    def vendor(a, b, y, **attrs):
        yield "library 0", lambda: None  # which it cannot do after all
        yield "library 1", lambda: Grid(write_one, y, grid=1, block=1)
        yield "library 2", lambda: Grid(write_one, y, grid=2, block=1)

    def cuda(a, b, y, **attrs):
        kernels = {"small": write_one, "large": write_two}
        return Variants({n: Grid(k, y, grid=3, block=1) for n, k in kernels.items()})

    monkeypatch.setattr(OPS["matmul"], "cuda", staticmethod(cuda))
    monkeypatch.setattr(OPS["matmul"], "vendor", staticmethod(vendor))
    return step_of("matmul", (1024, 1024), (1024, 1024), **PLAIN)


class Trials:
    """Times that are given. `asked`: the candidates of each trial, by how they are tried."""

    def __init__(self, times=None, quickest=None):
        self.found, self.fast = times or {}, quickest
        self.asked = {"times": [], "quickest": []}

    def times(self, step, types, candidates):
        self.asked["times"].append([c.name for c in candidates])
        return self.found

    def quickest(self, step, types, candidates):
        self.asked["quickest"].append([c.name for c in candidates])
        return self.fast


def chosen(path, product, which="auto", trials=None, autotune=False):
    """(name of the kernel, its grid) of what runs."""
    table = TuningTable(path, "a GPU")
    chooser = Chooser(Kernels(which, autotune), lambda: table, trials or Trials())
    (launch,), _ = chooser.prepared(*product)
    return launch.kernel.function.__name__, launch.grid[0]


def tuned(path, product, which="auto", times=None):
    return chosen(path, product, which, Trials(times), autotune=True)


@pytest.mark.parametrize(
    "which, expected",
    [("auto", ("write_one", 1)), ("vendor", ("write_one", 1)), ("numba", ("write_one", 3))],
)
def test_where_no_time_is_left_a_rule_decides(path, product, which, expected):
    assert chosen(path, product, which) == expected


@pytest.mark.parametrize("which, expected", [("auto", 3), ("vendor", 1), ("numba", 3)])
def test_no_library_is_asked_for_small_work(path, product, which, expected):
    small = step_of("matmul", (2, 3), (3, 4), **PLAIN)
    assert chosen(path, small, which) == ("write_one", expected)


SLOW_LIBRARY = {"numba large": 1.0, "numba small": 2.0, "library 2": 3.0, "library 1": 4.0}


@pytest.mark.parametrize(
    "which, expected",
    [("auto", ("write_two", 3)), ("vendor", ("write_one", 2)), ("numba", ("write_two", 3))],
)
def test_the_fastest_that_may_run_is_taken(path, product, which, expected):
    assert tuned(path, product, which, SLOW_LIBRARY) == expected
    assert chosen(path, product, which) == expected  # the table knows it from here on


def test_all_ways_are_tried_ours_first_and_once(path, product):
    trials = Trials()
    chosen(path, product, trials=trials, autotune=True)
    names = ["numba small", "numba large", "library 0", "library 1", "library 2"]
    assert trials.asked["times"] == [names]
    tuned(path, product, times={"library 2": 1.0})
    trials = Trials({"library 1": 1.0})
    assert chosen(path, product, trials=trials, autotune=True) == ("write_one", 2)
    assert not trials.asked["times"], "the table knows the op"


def test_times_of_kernels_that_were_changed_do_not_count(path, product, monkeypatch):
    tuned(path, product, times=SLOW_LIBRARY)

    def cuda(a, b, y, **attrs):
        return Grid(write_two, y, grid=4, block=1)

    monkeypatch.setattr(OPS["matmul"], "cuda", staticmethod(cuda))
    assert chosen(path, product) == ("write_one", 1)  # the rule again


def test_at_first_sight_the_likely_ways_are_tried_and_the_fast_one_is_kept(path, product):
    trials = Trials(quickest="library 2")
    assert chosen(path, product, trials=trials) == ("write_one", 2)
    assert trials.asked["quickest"] == [["numba small", "library 0", "library 1", "library 2"]]
    again = Trials(quickest="numba small")
    assert chosen(path, product, trials=again) == ("write_one", 2), "the same bits as before"
    assert not again.asked["quickest"]


def test_what_ran_where_no_time_was_left_is_kept_too(path, product):
    assert chosen(path, product, trials=Trials(quickest=None)) == ("write_one", 1)
    assert chosen(path, product, trials=Trials(quickest="numba small")) == ("write_one", 1)


def test_times_count_more_than_what_was_taken_at_first_sight(path, product):
    chosen(path, product, trials=Trials(quickest="library 2"))
    assert tuned(path, product, times=SLOW_LIBRARY) == ("write_two", 3)
    assert chosen(path, product) == ("write_two", 3)


@pytest.mark.parametrize("which", ["numba", "vendor"])
def test_nothing_is_tried_at_first_sight_where_it_is_said_what_runs(path, product, which):
    trials = Trials(quickest="library 2")
    chosen(path, product, which, trials)
    assert not trials.asked["quickest"]
    assert not path.exists()


def test_an_op_with_one_kernel_is_not_tried(path):
    trials = Trials()
    chooser = Chooser(Kernels("auto", True), lambda: TuningTable(path, ""), trials)
    chooser.prepared(*step_of("relu", (3, 3)))
    assert trials.asked == {"times": [], "quickest": []}
    assert not path.exists()


@pytest.fixture
def convolution(monkeypatch):
    """One of halves that can have its images with channels last, and a library that does it, too:
    by `write_one`.
    """

    def vendor(x, w, b, y, **attrs):
        yield "library", lambda: Grid(write_one, y, grid=1, block=1)

    monkeypatch.setattr(OPS["conv2d"], "vendor", staticmethod(vendor))
    operands = [np.zeros(s, np.float16) for s in ((32, 64, 28, 28), (64, 64, 3, 3))]
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    step, stored, results = one_step(OPS["conv2d"], [*operands, None], attrs)
    with targeting("sm_90"):
        yield step, (*stored, *results)


def is_by_library(chooser: Chooser, convolution) -> bool:
    launches, _ = chooser.prepared(*convolution)
    return launches[-1].kernel.function.__name__ == "write_one"


@pytest.mark.parametrize(
    "ours, last, library",
    [
        (100.0, 60.0, False),  # with channels last it is faster
        (100.0, 90.0, True),
        (130.0, 60.0, True),  # where it had to turn images it would be far slower
        (83.0, 60.0, False),  # by little
        (70.0, 90.0, False),
    ],
)
@pytest.mark.parametrize("sight", ["first", "autotune"])
def test_convolutions_are_judged_as_they_run_in_networks(
    path, convolution, ours, last, library, sight
):
    class Judge(Trials):
        def quickest(self, step, types, candidates):
            self.times(step, types, candidates)
            judged = as_judged(self.found)
            return min(judged, key=lambda name: judged[name])

    trials = Judge({"numba": ours, "numba, channels last": last, "library": 80.0})
    table = TuningTable(path, "a GPU")
    chooser = Chooser(Kernels("auto", sight == "autotune"), lambda: table, trials)
    assert is_by_library(chooser, convolution) is library
    assert trials.asked["times"] == [["numba", "numba, channels last", "library"]]
    again = Chooser(Kernels(), lambda: TuningTable(path, "a GPU"), Trials())
    assert is_by_library(again, convolution) is library


def test_where_no_time_is_left_images_are_not_turned_between_convolutions(path, convolution):
    for _ in range(2):
        chooser = Chooser(Kernels(), lambda: TuningTable(path, "a GPU"), Trials())
        assert not is_by_library(chooser, convolution)


def test_what_ran_behind_a_trial_that_failed_stays(path, convolution):
    """As where memory was short: debug mode has to run what the plan was made for."""
    trials = Trials()
    table = TuningTable(path, "a GPU")
    chooser = Chooser(Kernels("auto", True), lambda: table, trials)
    before = is_by_library(chooser, convolution)
    trials.found = {"numba": 2.0, "library": 1.0}
    assert not before and not is_by_library(chooser, convolution)
    assert len(trials.asked["times"]) == 1


def test_a_key_tells_types_and_attributes_apart():
    keys = {
        key_of(*step_of("matmul", (2, 3), (3, 4), **PLAIN)),
        key_of(*step_of("matmul", (2, 3), (4, 3), transpose_a=False, transpose_b=True)),
        key_of(*step_of("matmul", (5, 3), (3, 4), **PLAIN)),
        key_of(*step_of("linear", (2, 3), (4, 3), transpose_w=False)),
    }
    assert len(keys) == 4


# --- results of candidates are compared -----------------------------------------------------------


def test_results_may_differ_by_rounding_alone():
    ours = np.linspace(-3, 3, 100, dtype=np.float32)
    assert _alike(ours, ours * np.float32(1 + 1e-6))
    assert not _alike(ours, ours * np.float32(1 + 1e-3))
    assert not _alike(ours, np.where(ours > 2.9, np.nan, ours).astype(np.float32))
    assert not _alike(np.arange(3), np.array([0, 1, 3]))
    assert _alike(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))


# --- libraries that are missing -------------------------------------------------------------------


@pytest.fixture
def no_libraries(monkeypatch):
    monkeypatch.setattr(libraries, "_found", lambda files: None)
    libraries.library.cache_clear()
    yield
    libraries.library.cache_clear()


def test_vendor_says_what_is_missing_and_how_to_get_it(no_libraries):
    with pytest.raises(DeviceError) as caught:
        Kernels("vendor").checked()
    (told,) = caught.value.diagnostics
    assert told.message == "kernels='vendor' needs cuBLASLt and cuDNN, which are not there"
    assert told.hint == "pip install 'opstep[vendor]'"
    assert libraries.versions() == {}


@pytest.mark.parametrize("op, shapes, attrs", [
    ("matmul", [(2, 3), (3, 4)], PLAIN),
    ("linear", [(2, 3), (4, 3), (4,)], {"transpose_w": False}),
    ("conv2d", [(1, 2, 5, 5), (3, 2, 3, 3)],
     {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}),
])  # fmt: skip
def test_auto_goes_on_without_libraries(no_libraries, path, op, shapes, attrs):
    chooser = Chooser(Kernels("auto"), lambda: TuningTable(path, ""), Trials())
    launches, _ = chooser.prepared(*step_of(op, *shapes, **attrs))
    assert launches
    assert all(hasattr(launch, "kernel") for launch in launches)


def test_a_choice_that_is_none_is_an_error():
    program = opstep.loads("graph main(x: f32[2]) -> f32[2] {\n  y = relu(x)\n  return y\n}\n")
    with pytest.raises(InputError, match="kernels is 'fast'; it can be auto, numba or vendor"):
        program.run("main", {"x": [1, 2]}, kernels="fast")


def test_a_device_is_shared_where_a_choice_does_not_matter():
    assert Setup(2, "numba", True).on("cpu") == Setup(2)
    assert Setup(2, "numba", True).on("cuda:1") == Setup(None, "numba", True)
    assert Setup(2, "numba").on("null") == Setup()
