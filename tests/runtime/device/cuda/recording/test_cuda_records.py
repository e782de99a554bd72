"""Times of a GPU become those of rows, waits and moves: in an order that can have been."""

import numpy as np
import pytest
from gpu_reports import layout_of

from opstep.runtime.device.cuda.recording.kernels import readable
from opstep.runtime.device.cuda.recording.records import between, issued, merged, settled, waits
from opstep.runtime.recording import GraphLaunch, Launch, Wait


def test_launches_of_a_stretch_become_one():
    launches = [Launch(0, 0, 2), Launch(1, 0, 1), Launch(0, 2, 3), Launch(1, 1, 4), Launch(0, 3, 4)]
    found, places = merged(launches, [[1, 2, 3]])
    graph = GraphLaunch((Launch(0, 2, 3), Launch(1, 0, 4)))
    assert found == [Launch(0, 0, 2), graph, Launch(0, 3, 4)]
    assert places == [0, 1, 1, 1, 2]
    assert merged(launches, [[], []]) == (launches, [0, 1, 2, 3, 4])


# --- times ----------------------------------------------------------------------------------------


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


def test_moves_lie_between_ops():
    times = np.array([[100, 200], [300, 400]])
    moves = np.array([[90, 105], [195, 250], [240, 310], [410, 500]])
    assert between(moves, times).tolist() == [[90, 100], [200, 250], [250, 300], [410, 500]]
    assert between(moves[:1], np.zeros((0, 2), np.int64)).tolist() == [[90, 105]]
    # within an op, as nothing on its stream can be
    ((begin, end),) = between(np.array([[120, 130]]), times).tolist()
    assert begin == end


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN6opstep7kernels4conv10cuda_edges10mend_edgesB3v45B92cw51cXTLSUwE10float32_2a", None),
        ("_Z23implicit_convolve_sgemmIffLi1024ELi5EEviiiPKT_", "implicit_convolve_sgemm"),
        ("_ZN7cutlass7Kernel2I66cutlass_80_simtEEvNT_6ParamsE", "cutlass.Kernel2"),
        ("sm90_xmma_gemm_f32f32", "sm90_xmma_gemm_f32f32"),
        ("", ""),
    ],
)
def test_names_of_kernels_can_be_read(mangled, name):
    edges = "opstep.kernels.conv.cuda_edges.mend_edges"
    assert readable(mangled) == (name or (mangled and edges))
