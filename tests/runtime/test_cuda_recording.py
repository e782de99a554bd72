"""What a GPU reports becomes the times of ops: reports in any order, late, or missing."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cuda import tape
from opstep.runtime.device.cuda.cupti import readable
from opstep.runtime.device.cuda.meters import EventMeter, moment
from opstep.runtime.device.cuda.records import (
    ASIDE,
    NO_ROW,
    Matcher,
    Nodes,
    Part,
    Ran,
    Rows,
    between,
    issued,
    merged,
    settled,
    waits,
)
from opstep.runtime.device.cuda.takes import Slots, Take, Takes
from opstep.runtime.recording import (
    COPY,
    FILL,
    Activation,
    GraphLaunch,
    HostRecord,
    Kernel,
    Launch,
    Layout,
    StreamRecord,
    Wait,
)
from opstep.runtime.statistics import WORDS
from opstep.trace.arguments import launched

KERNEL = Kernel("k", (4, 2, 1), (256, 1, 1), 40, 1024, 0)


def ran(correlation, start, end, node=0, kernel=None):
    return Ran(node, correlation, start, end, kernel)


def layout_of(*rows, **more):
    return Layout(SimpleNamespace(), [list(r) for r in rows], [[] for _ in rows], **more)


# --- reports and launches -------------------------------------------------------------------------


def test_reports_find_their_launch_in_any_order():
    reports = [("named", c, c // 10) for c in (10, 11, 20, 21, 30)]
    reports += [("ran", ran(c, c * 100, c * 100 + 50)) for c in (10, 11, 20, 21, 30)]
    for seed in range(20):
        random.Random(seed).shuffle(reports)
        matcher = Matcher()
        for token in (1, 2, 3):
            matcher.expect(token)
        for what, *told in reports:
            getattr(matcher, what)(*told)
        found = [sorted(r.correlation for r in matcher.take(token)) for token in (1, 2, 3)]
        assert found == [[10, 11], [20, 21], [30]]
        assert matcher.unclaimed == 0


def test_what_nobody_launched_is_forgotten():
    matcher = Matcher()
    matcher.expect(1)
    matcher.named(5, 99)  # of somebody else who uses the same library
    matcher.ran(ran(5, 10, 20))
    matcher.ran(ran(6, 30, 40))
    matcher.ran(ran(7, 50, 60))
    assert matcher.count(1) == 0 and matcher.unclaimed == 3
    matcher.forget(40)
    assert matcher.unclaimed == 2
    matcher.named(7, 1)
    assert [r.start for r in matcher.take(1)] == [50]


def test_late_reports_of_a_launch_that_was_taken():
    matcher = Matcher()
    matcher.expect(1)
    matcher.named(5, 1)
    assert matcher.take(1) == []
    matcher.ran(ran(5, 10, 20))
    matcher.forget(21)
    assert matcher.unclaimed == 0


def test_kernels_of_a_launch_are_its_rows_in_the_order_of_calls():
    part = Part(1, (0, 0, NO_ROW, 1))
    found = [ran(c, 10 * c, 10 * c + 5) for c in (8, 7, 9, 10)]
    assert [(s, row, r.correlation) for s, row, r in part.matched(found)] == [
        (1, 0, 7),
        (1, 0, 8),
        (1, NO_ROW, 9),
        (1, 1, 10),
    ]


def test_of_too_few_kernels_it_is_not_known_which_they_are():
    assert Part(0, (0, 1, 2)).matched([ran(1, 1, 2), ran(2, 3, 4)]) == []


def test_a_librarys_kernels_all_belong_to_its_row():
    found = Part(0, (4,), exact=False).matched([ran(2, 30, 40), ran(1, 10, 20)])
    assert [(row, r.start) for _, row, r in found] == [(4, 10), (4, 30)]


# --- captured graphs ------------------------------------------------------------------------------


def test_nodes_are_known_by_the_order_of_their_numbers():
    places = [(0, 0), (1, 0), (0, NO_ROW), (0, 1)]
    nodes = Nodes(places)
    ids = [1 << 33 | k for k in (0, 3, 4, 9)]  # gaps: events and joins are nodes, too
    found = [ran(50, k, k + 1, node) for k, node in enumerate(ids)]
    random.Random(1).shuffle(found)
    assert [(s, row) for s, row, _ in nodes.matched(found)] == places
    # the second launch: one report is missing, the others are known
    again = [ran(51, 10 + k, 11 + k, node) for k, node in enumerate(ids) if k != 1]
    assert [(s, row) for s, row, _ in nodes.matched(again)] == [places[k] for k in (0, 2, 3)]


def test_a_first_launch_that_is_incomplete_tells_nothing():
    nodes = Nodes([(0, 0), (0, 1)])
    assert nodes.matched([ran(1, 5, 6, 70)]) == []
    both = [ran(2, 9, 10, 71), ran(2, 7, 8, 70)]
    assert [(row, r.start) for _, row, r in nodes.matched(both)] == [(0, 7), (1, 9)]


def test_launches_of_a_stretch_become_one():
    launches = [Launch(0, 0, 2), Launch(1, 0, 1), Launch(0, 2, 3), Launch(1, 1, 4), Launch(0, 3, 4)]
    found, places = merged(launches, [[1, 2, 3]])
    graph = GraphLaunch((Launch(0, 2, 3), Launch(1, 0, 4)))
    assert found == [Launch(0, 0, 2), graph, Launch(0, 3, 4)]
    assert places == [0, 1, 1, 1, 2]
    assert merged(launches, [[], []]) == (launches, [0, 1, 2, 3, 4])


# --- times ----------------------------------------------------------------------------------------


def test_a_row_lasts_from_its_first_kernel_to_its_last():
    rows = Rows(layout_of([7, 8], [9]))
    rows.add([(0, 0, ran(1, 100, 120, kernel=KERNEL)), (0, 0, ran(2, 130, 150, kernel=KERNEL))])
    rows.add([(1, 0, ran(3, 90, 95)), (0, NO_ROW, ran(4, 1, 999))])
    assert rows.times[0].tolist() == [[100, 150], [0, 0]]
    assert rows.times[1].tolist() == [[90, 95]]
    assert rows.kernels == {(0, 0): [KERNEL, KERNEL]}
    assert rows.missing == 1


def test_rows_are_issued_by_their_launches():
    layout = layout_of([1, 2, 3], [4, 5])
    layout.launches = [Launch(0, 0, 1), GraphLaunch((Launch(0, 1, 3), Launch(1, 0, 2)))]
    began = issued(layout, np.array([[10, 12], [20, 25]]))
    assert [b.tolist() for b in began] == [[10, 20, 20], [20, 20]]


def test_times_that_fit_stay_as_they_are():
    times = np.array([[100, 200], [200, 250], [300, 301]])
    assert settled(times, np.array([90, 90, 300])).tolist() == times.tolist()


def test_times_that_cannot_be_are_put_right():
    # before its launch; not known; within the one before; without a length
    times = np.array([[80, 200], [0, 0], [150, 180], [400, 400]])
    found = settled(times, np.array([100, 100, 100, 100]))
    assert found.tolist() == [[100, 200], [200, 201], [201, 202], [400, 401]]


@pytest.mark.parametrize("seed", range(30))
def test_settled_times_follow_each_other(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    times = rng.integers(0, 500, (n, 2))
    began = np.sort(rng.integers(0, 400, n))
    found = settled(times, began)
    assert (found[:, 0] >= began).all()
    assert (found[:, 1] > found[:, 0]).all()
    assert (found[1:, 0] >= found[:-1, 1]).all()
    assert (found[:, 1] >= times[:, 1]).all()


def test_waits_begin_when_there_is_nothing_else_to_do():
    layout = layout_of(
        [0, 1], [2, 3], waits=[Wait(1, 1, 0, 0), Wait(1, 2, 0, 1), Wait(0, 0, 1, -1)]
    )
    times = [np.array([[100, 200], [210, 500]]), np.array([[90, 150], [205, 300]])]
    began = [np.array([80, 80]), np.array([80, 80])]
    # row 1 waits for row 0 of the other; the end of the stream for its row 1
    assert waits(layout, 1, times, began).tolist() == [[150, 200], [300, 500]]
    # an event before any op: no time
    assert waits(layout, 0, times, began).tolist() == [[80, 80]]


def test_a_wait_is_never_before_its_launch_and_ends_before_its_row():
    layout = layout_of([0], [1, 2], waits=[Wait(1, 1, 0, 0), Wait(1, 1, 0, 0)])
    times = [np.array([[100, 260]]), np.array([[90, 150], [250, 300]])]
    found = waits(layout, 1, times, [np.array([80]), np.array([80, 240])])
    assert found.tolist() == [[240, 250], [250, 250]]
    late = waits(layout, 1, times, [np.array([80]), np.array([80, 250])])
    assert late.tolist() == [[250, 250], [250, 250]]


def test_copies_lie_between_ops():
    times = np.array([[100, 200], [300, 400]])
    moves = [(410, 500, 64, FILL), (90, 105, 8, COPY), (195, 250, 16, COPY), (240, 310, 16, FILL)]
    assert between(moves, times).tolist() == [
        [90, 100, 8, COPY],
        [200, 250, 16, COPY],
        [250, 300, 16, FILL],
        [410, 500, 64, FILL],
    ]
    assert between([(210, 220, 4, COPY)], np.zeros((0, 2), np.int64)).tolist() == [[210, 220, 4, 0]]
    # within an op, as nothing on its stream can be
    assert between([(120, 130, 4, COPY)], times).tolist() == []


# --- records --------------------------------------------------------------------------------------


class Reported:
    """A meter whose reports are given."""

    captures, note = True, ""

    def __init__(self, found):
        self.found = found
        self.users = []
        self.gathered = []

    def ready(self, takes):
        return 0

    def gather(self, takes):
        self.gathered += takes

    def read(self, take):
        self.gathered = [t for t in self.gathered if t is not take]
        rows = Rows(take.activation.layout)
        rows.add(self.found)
        return rows

    def begin(self, user):
        self.users.append(user)

    def end(self, user):
        self.users.remove(user)


class Recorder:
    def __init__(self):
        self.taken = []

    def take(self, record):
        self.taken.append(record)


def test_records_of_an_activation():
    layout = layout_of([5, 6], [7], waits=[Wait(1, 0, 0, 0)])
    layout.stats[0] = [(5, 0), (6, 1)]
    layout.launches = [GraphLaunch((Launch(0, 0, 2), Launch(1, 0, 1)))]
    take = Take(Activation(3, 0, layout))
    take.launches[:] = [[1000, 1010]]
    take.with_stats = True
    slots = Slots(lambda words: np.arange(words, dtype=np.int64))
    take.stats[0] = slots.get(2 * WORDS * 8)
    meter = Reported(
        [
            (0, 0, ran(1, 1100, 1200, kernel=KERNEL)),
            (0, 1, ran(1, 1210, 1300)),
            (1, 0, ran(1, 1205, 1400)),
        ]
    )
    takes, recorder = Takes(meter, slots), Recorder()
    takes.begin(recorder)
    takes.add(recorder, take)
    takes.step_done(Recorder())  # another run's
    assert recorder.taken == []
    takes.step_done(recorder)
    host, first, second = recorder.taken
    assert isinstance(host, HostRecord) and host.launches.tolist() == [[1000, 1010]]
    assert isinstance(first, StreamRecord) and first.times.tolist() == [[1100, 1200], [1210, 1300]]
    assert first.stats.shape == (2, WORDS) and first.stats[1, 0] == WORDS
    assert second.waits.tolist() == [[1000, 1200]] and second.stats.shape == (0, WORDS)
    assert layout.kernels == {(0, 0): (KERNEL,)}
    assert slots.get(2 * WORDS * 8) is take.stats[0]  # used again
    takes.step_done(recorder)
    assert len(recorder.taken) == 3
    takes.end(recorder)
    assert meter.users == []


def test_what_may_run_aside_is_a_piece_of_its_own():
    ours = [object.__new__(tape.BoundGrid) for _ in range(6)]
    rows = [0, NO_ROW, ASIDE, 1, NO_ROW, ASIDE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape, "work_of", list)
        made = tape.pieces(0, list(zip(rows, ours, strict=True)))
    assert [(p.part.rows, p.aside) for p in made] == [
        ((0, NO_ROW), False),
        ((ASIDE,), True),
        ((1, NO_ROW), False),
        ((ASIDE,), True),
    ]


def test_pieces_are_cut_where_a_library_runs():
    ours = [object.__new__(tape.BoundGrid) for _ in range(3)]
    theirs = [lambda stream: None, lambda stream: None]
    given = [(0, ours[0]), (0, ours[1]), (1, theirs[0]), (2, theirs[1]), (NO_ROW, ours[2])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape, "work_of", list)
        made = tape.pieces(2, given)
    assert [p.part for p in made] == [
        Part(2, (0, 0)),
        Part(2, (1,), exact=False),
        Part(2, (2,), exact=False),
        Part(2, (NO_ROW,)),
    ]


# --- events ---------------------------------------------------------------------------------------


class Events:
    """A driver of events, whose clock is `now`, in ns."""

    def __init__(self):
        self.now = 5_000_000_000
        self.made = 0
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def cuStreamCreate(self, flags):  # noqa: N802
        return 77

    def cuEventCreate(self, flags):  # noqa: N802
        self.made += 1
        return [0]

    def cuEventRecord(self, event, stream):  # noqa: N802
        event[0] = self.now

    def cuStreamSynchronize(self, stream):  # noqa: N802
        pass

    def cuEventElapsedTime(self, first, last):  # noqa: N802
        return np.float32((last[0] - first[0]) / 1e6)


def test_times_of_events(monkeypatch):
    driver = Events()
    monkeypatch.setattr(
        "opstep.runtime.device.cuda.meters.monotonic_ns", lambda: driver.now - 10**9
    )
    meter = EventMeter(SimpleNamespace(driver=driver, enter=lambda: driver), "a note")

    def work(stream):
        driver.now += 300_000

    layout = layout_of([4, 5])
    take = Take(Activation(0, 0, layout))
    for row in (0, NO_ROW, 1):
        piece = SimpleNamespace(part=Part(0, (row,), exact=False), work=work)
        meter.issue(take, piece, 1)
    meter.gather([take])
    rows = meter.read(take)
    began = 4_000_000_000
    expected = [[began, began + 300_000], [began + 600_000, began + 900_000]]
    assert np.abs(rows.times[0] - expected).max() < 500
    before = driver.made
    meter.issue(take, SimpleNamespace(part=Part(0, (0,), exact=False), work=work), 1)
    assert driver.made == before  # events are used again


def test_moments_are_told_backwards():
    assert moment(10_000_000, 2.5) == 7_500_000


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN6opstep7kernels3gpu4pool6repeatB3v45B92cw51cXTLSUwE10float32_2a", None),
        ("_Z23implicit_convolve_sgemmIffLi1024ELi5EEviiiPKT_", "implicit_convolve_sgemm"),
        ("_ZN7cutlass7Kernel2I66cutlass_80_simtEEvNT_6ParamsE", "cutlass.Kernel2"),
        ("sm90_xmma_gemm_f32f32", "sm90_xmma_gemm_f32f32"),
        ("", ""),
    ],
)
def test_names_of_kernels_can_be_read(mangled, name):
    assert readable(mangled) == (name or (mangled and "opstep.kernels.gpu.pool.repeat"))


# --- words ----------------------------------------------------------------------------------------


def test_kernels_among_the_arguments():
    assert launched(()) == {}
    assert launched((KERNEL,))["kernels"]["1"] == {
        "name": "k",
        "grid": "4 x 2",
        "block": "256",
        "registers": 40,
        "static_shared": 1024,
        "dynamic_shared": 0,
    }


def test_the_timeline_of_a_graph_that_was_launched_at_once(tmp_path, monkeypatch):
    """A run on the CPU whose records are told as a GPU's are."""
    from opstep.trace import recording as module
    from opstep.trace.viewer.engine import Engine

    def as_graph(take):
        def told(self, record):
            activation = record.activation
            layout = activation.layout
            launches, _ = merged(layout.launches, [list(range(len(layout.launches)))])
            kernels = {
                (s, r): (KERNEL,) for s, rows in enumerate(layout.rows) for r in range(len(rows))
            }
            changed = Layout(
                layout.plan, layout.rows, layout.stats, launches, layout.waits, layout.syncs,
                layout.calls, kernels,
            )  # fmt: skip
            record = record._replace(activation=activation._replace(layout=changed))
            if isinstance(record, HostRecord):
                spans = record.launches
                record = record._replace(
                    launches=np.array([[spans[:, 0].min(), spans[:, 1].max()]])
                )
            take(self, record)

        return told

    monkeypatch.setattr(module._Recorder, "take", as_graph(module._Recorder.take))
    program = opstep.load("examples/branches.opg")
    inputs = {"left": np.ones((4, 32), "f4"), "right": np.ones((4, 48), "f4"), "bias": 0.5}
    trace = tmp_path / "run.pftrace"
    with opstep.Recording(trace=trace) as recording:
        program.run("main", inputs, streams=2, recording=recording)
    with Engine(trace) as engine:
        count = engine.query("select count() from slice where category = 'op'").rows[0][0]
        launches = engine.query(
            "select name, extract_arg(arg_set_id, 'debug.ops') from slice where category = 'launch'"
        ).rows
        assert len(launches) == 1 and launches[0][1] == count
        assert launches[0][0].startswith("launch graph ")
        flows = engine.query(
            "select count() from flow join slice as l on l.id = flow.slice_out "
            "where l.category = 'launch'"
        ).rows[0][0]
        assert flows == count
        grids = engine.query(
            "select distinct extract_arg(arg_set_id, 'debug.kernels.1.grid') from slice "
            "where category = 'op'"
        ).rows
        assert [list(row) for row in grids] == [["4 x 2"]]


class LateRecorder(Recorder):
    def __init__(self):
        super().__init__()
        self.tell = None

    def late(self, tell):
        self.tell = tell

    def caught_up(self, step):
        self.taken.append(step)


def test_records_of_short_steps_are_made_during_later_ones(monkeypatch):
    from opstep.runtime.device.cuda import takes as module

    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(module, "monotonic_ns", lambda: next(clock))
    layout = layout_of([5])
    layout.launches = [Launch(0, 0, 1)]
    meter = Reported([(0, 0, ran(1, 1100, 1200))])
    takes, recorder = Takes(meter, Slots(lambda words: np.zeros(words, np.int64))), LateRecorder()

    def step(number):
        takes.add(recorder, Take(Activation(number, number, layout)))
        takes.meanwhile(recorder)
        takes.step_done(recorder)

    def told():
        return [r if isinstance(r, int) else r.activation.step for r in recorder.taken]

    step(0)
    step(1)
    assert told() == [] and meter.gathered == []
    monkeypatch.setattr(meter, "ready", lambda given: min(len(given), 1))
    step(2)  # the first was reported
    assert told() == []
    step(3)
    assert told() == [0, 0, 0]
    monkeypatch.setattr(meter, "ready", lambda given: 0)
    monkeypatch.setattr(module, "monotonic_ns", lambda: 2 * module.PERIOD)
    step(4)  # all have to be asked for, and so has one that was ready meanwhile
    step(5)
    assert told()[3:] == [1, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    recorder.tell()
    assert told()[13:] == [5, 5, 5]


def test_ends_of_steps_come_behind_their_records(tmp_path, monkeypatch):
    """A recorder whose device is late."""
    from opstep.trace import recording as module

    program = opstep.load("examples/branches.opg")
    inputs = {"left": np.ones((4, 32), "f4"), "right": np.ones((4, 48), "f4"), "bias": 0.5}
    held, order = [], []
    take, end_step, put = module._Recorder.take, module._Recorder.end_step, module._Recorder._put

    def tell(recorder):
        records, held[:] = held[:], []
        for record in records:
            take(recorder, record)
        if records:
            recorder.caught_up(records[-1].activation.step)

    def late_end(self, outputs, failed=False):
        self.late(lambda: tell(self))
        end_step(self, outputs, failed)
        if self._steps % 3 == 2:
            tell(self)

    def noted(self, method, *arguments, nbytes=0):
        step = arguments[0].activation.step if method == "take" else arguments[0].step
        order.append((step, method == "end_step"))
        put(self, method, *arguments, nbytes=nbytes)

    monkeypatch.setattr(module._Recorder, "take", lambda self, record: held.append(record))
    monkeypatch.setattr(module._Recorder, "end_step", late_end)
    monkeypatch.setattr(module._Recorder, "_put", noted)
    with opstep.Recording(trace=tmp_path / "run.pftrace") as recording:
        program.run("main", inputs, steps=4, recording=recording)
        program.run("main", inputs, steps=3, recording=recording)
    assert order == sorted(order)
    assert [step for step, ends in order if ends] == list(range(7))
