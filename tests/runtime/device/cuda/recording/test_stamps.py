"""Stamps between ops: where they stand, and what times they become."""

import numpy as np
from gpu_reports import HostClock

from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.recording import stamps
from opstep.runtime.device.cuda.recording.gathering import step_of
from opstep.runtime.device.cuda.recording.stamps import FLAGS, NO_ROW, STAMP, Marks, stamp
from opstep.runtime.device.cuda.simulator import simulator


def prepared():
    (launch,), _ = Lowering(*step_of(stamp, [], [STAMP])).prepared()
    assert isinstance(launch, Prepared)
    return launch


def test_the_kernel_reads_the_clock():
    found = []
    for _ in range(3):
        word = np.zeros(1, np.int64)
        simulator.run(prepared(), [word.view(np.uint8)], np.zeros(8, np.uint8))
        found.append(int(word[0]))
    assert 0 < found[0] < found[1] < found[2]
    ptx, _ = compiler.to_ptx(prepared().kernel, "sm_90")
    assert ptx.count("%globaltimer") == 1


class Named:
    """A device whose stamps are the words that they write."""

    def stamp(self, address):
        return [(address - 1000) // 8]


def test_neighbours_share_a_stamp():
    marks = Marks(Named(), 1000)
    first = [(0, "a"), (0, "b"), (1, "c"), (NO_ROW, "s"), (2, "d"), (FLAGS, "f")]
    assert marks.around(first) == [0, "a", "b", 1, "c", 2, "s", 3, "d", 4, "f"]
    assert marks.around([(3, "e")]) == [5, "e", 6]  # the host may launch it much later
    assert marks.rows == [(0, 1), (1, 2), (3, 4), (5, 6)]
    assert marks.around_fill("fill", 64) == [7, "fill", 8]
    assert marks.fills == [(7, 8, 64, stamps.FILL)]
    assert marks.count == 9
    assert marks.around([(NO_ROW, "s")]) == ["s"]


def test_what_it_takes_to_go_from_kernel_to_kernel_is_no_ops_time():
    read = np.array([1000, 9000, 10000])
    ends = np.array([[0, 1], [1, 2]])
    assert HostClock(gap=700).spans(read, ends).tolist() == [[1700, 9000], [9500, 10000]]
    ahead = HostClock()
    ahead._offset = 400
    assert ahead.spans(read, ends).tolist() == [[600, 8600], [8600, 9600]]


def not_compared():
    clock = object.__new__(stamps.Clock)
    clock._offset = clock._compared = clock._closest = clock._believed = clock._gap = 0
    clock._rate = 0.0
    clock._lock = stamps.threading.Lock()
    return clock


def test_clocks_that_drift_apart_evenly_agree_all_the_time(monkeypatch):
    now = [10**12]
    monkeypatch.setattr(stamps, "monotonic_ns", lambda: now[0])
    clock = not_compared()

    def there(time):  # what the GPU's clock says then
        return 7 * 10**15 + time + (time - 10**12) // 100_000

    monkeypatch.setattr(clock, "_reading", lambda: (10_000, there(now[0]) - now[0]))
    for _ in range(3):
        clock.compare()
        now[0] += stamps.CLOCKS_HOLD
    times = np.array([[now[0] - 10**8, now[0]]])
    told = clock.spans(np.array([there(int(t)) for t in times[0]]), np.array([[0, 1]]))
    assert np.abs(told - times).max() <= 2  # 10 us without


def test_a_clock_that_jumps_is_not_taken_for_one_that_drifts(monkeypatch):
    now = [10**12]
    monkeypatch.setattr(stamps, "monotonic_ns", lambda: now[0])
    clock, ahead = not_compared(), [0]
    monkeypatch.setattr(clock, "_reading", lambda: (10_000, ahead[0]))
    clock.compare()
    now[0] += stamps.CLOCKS_HOLD
    ahead[0] = 3600 * 10**9
    clock.compare()
    (told,) = clock.spans(np.array([now[0] + ahead[0], now[0] + ahead[0]]), np.array([[0, 1]]))
    assert np.abs(told - now[0]).max() < 1000


def test_clocks_are_compared_by_the_closest_reading(monkeypatch):
    now = [10**12]
    monkeypatch.setattr(stamps, "monotonic_ns", lambda: now[0])
    clock = not_compared()
    asked = []

    def compare(*readings):
        given = iter(readings)
        monkeypatch.setattr(clock, "_reading", lambda: asked.append(1) or next(given))
        clock.compare()
        return clock._offset

    assert compare((40_000, 1), (10_000, 2), *[(30_000, 3)] * 5) == 2
    asked.clear()
    assert compare() == 2 and not asked  # just done
    now[0] += stamps.CLOCKS_HOLD
    assert compare(*[(60_000, 9)] * 7) == 2  # the GPU was busy
    now[0] += stamps.CLOCKS_HOLD
    assert compare(*[(15_000, 5)] * 7) == 5
    now[0] += 60 * stamps.CLOCKS_HOLD  # busy for so long that a bad reading is better than none
    assert compare(*[(60_000, 9)] * 7) == 9


def test_a_busy_gpu_is_not_asked_again_and_again(monkeypatch):
    now = [10**12]
    monkeypatch.setattr(stamps, "monotonic_ns", lambda: now[0])
    clock = not_compared()
    asked = []

    def slow():
        asked.append(1)
        now[0] += stamps.LONGEST
        return stamps.LONGEST, 7

    monkeypatch.setattr(clock, "_reading", slow)
    clock.compare()
    assert clock._offset == 7 and len(asked) == 2
