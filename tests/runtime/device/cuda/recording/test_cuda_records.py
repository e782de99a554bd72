"""Reports of a GPU find their launches, and become times: in any order, late, or missing."""

import random

import numpy as np
import pytest
from gpu_reports import KERNEL, layout_of, ran

from opstep.runtime.device.cuda.recording.cupti import readable
from opstep.runtime.device.cuda.recording.records import (
    NO_ROW,
    Matcher,
    Nodes,
    Part,
    Rows,
    between,
    issued,
    merged,
    settled,
    waits,
)
from opstep.runtime.recording import (
    COPY,
    FILL,
    GraphLaunch,
    Launch,
    Wait,
)

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
        found = [sorted(r.correlation for r in matcher.pop(token)) for token in (1, 2, 3)]
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
    assert [r.start for r in matcher.pop(1)] == [50]


def test_late_reports_of_a_launch_that_was_taken():
    matcher = Matcher()
    matcher.expect(1)
    matcher.named(5, 1)
    assert matcher.pop(1) == []
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


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN6opstep7kernels4pool9cuda_pool6repeatB3v45B92cw51cXTLSUwE10float32_2a", None),
        ("_Z23implicit_convolve_sgemmIffLi1024ELi5EEviiiPKT_", "implicit_convolve_sgemm"),
        ("_ZN7cutlass7Kernel2I66cutlass_80_simtEEvNT_6ParamsE", "cutlass.Kernel2"),
        ("sm90_xmma_gemm_f32f32", "sm90_xmma_gemm_f32f32"),
        ("", ""),
    ],
)
def test_names_of_kernels_can_be_read(mangled, name):
    assert readable(mangled) == (name or (mangled and "opstep.kernels.pool.cuda_pool.repeat"))
