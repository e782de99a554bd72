"""When the statistics of several tensors are launched, and where they go."""

from types import SimpleNamespace

import pytest

from opstep.runtime.device.cuda.recording import gathering
from opstep.runtime.device.cuda.recording.gathering import Gathering
from opstep.runtime.device.cuda.recording.merging import ROWS
from opstep.runtime.device.cuda.recording.statistics import ALONE, blocks_for
from opstep.runtime.ir.types import DTYPES, TensorType

ENABLED, OUT, COUNTS = 8, 16, 1 << 20
SMALL, LARGE = TensorType(DTYPES["f32"], (100,)), TensorType(DTYPES["f32"], (2 * ALONE,))
WHOLE = TensorType(DTYPES["i32"], (100,))


class Device:
    """Its launches are (op, attributes, addresses); a stretch of a megabyte for each memory."""

    def __init__(self):
        self.taken = 0

    def alloc(self, nbytes, what):
        self.taken += COUNTS
        return SimpleNamespace(address=self.taken)

    def prepare(self, step, types):
        return [step], 0

    def bind(self, launches, addresses, workspace):
        return [(step.op.name, step.attrs, addresses) for step in launches]


def gathering_of(*types, filled=False, room=0):
    return Gathering(Device(), types, ENABLED, OUT, filled, room)


def taken(launches):
    """The addresses of tensors, launch by launch."""
    return [addresses[: attrs["count"]] for name, attrs, addresses in launches if "count" in attrs]


def test_tensors_wait_until_they_are_four():
    some = gathering_of(*[SMALL] * 6)
    made = [some.add(1000 * k, SMALL, k) for k in range(1, 7)]
    assert [taken(launches) for launches in made] == [
        [],
        [],
        [],
        [[1000, 2000, 3000, 4000]],
        [],
        [],
    ]
    assert taken(some.flush()) == [[5000, 6000]]
    assert some.flush() == []


def test_those_of_other_types_are_launched_apart():
    some = gathering_of(SMALL, WHOLE, SMALL, filled=True)
    for k, t in enumerate((SMALL, WHOLE, SMALL)):
        assert some.add(1000 * k, t, k) == []
    launches = some.flush()
    assert taken(launches) == [[0, 2000], [1000]]
    assert [attrs["filled"] for _, attrs, _ in launches] == [True, False]


@pytest.mark.parametrize(
    ("written", "expected"),
    [((0, 1000), []), ((1400, 1500), []), ((900, 1001), [[1000]]), ((1399, 1500), [[1000]])],
)
def test_none_waits_longer_than_its_memory_is_as_it_was(written, expected):
    some = gathering_of(SMALL)
    some.add(1000, SMALL, 0)
    assert taken(some.before([written])) == expected


def test_blocks_lie_behind_each_other_until_they_are_put_together():
    some, blocks = gathering_of(LARGE, SMALL, SMALL), blocks_for(2 * ALONE)
    some.add(0, LARGE, 2)
    (first,) = some.flush()
    some.add(0, SMALL, 0)
    (second,) = some.flush()
    assert second[2][-3] - first[2][-3] == 4 * ROWS * blocks
    ((name, attrs, addresses),) = some.merge()
    assert (name, addresses) == ("merge_several", [ENABLED, *first[2][-3:], OUT])
    assert attrs["table"] == (0, blocks, 2 * ALONE, 2, 2, blocks, 1, 100, 2, 0)
    assert some.merge() == []
    some.add(0, SMALL, 1)
    assert some.flush()[0][2][-3:] == first[2][-3:]


def test_full_memory_is_put_together_first(monkeypatch):
    monkeypatch.setattr(gathering, "HELD", blocks_for(2 * ALONE) + 1)
    some = gathering_of(LARGE, SMALL, SMALL)
    assert some.add(1000, LARGE, 0) == []
    assert some.add(2000, SMALL, 1) == []
    made = some.add(3000, SMALL, 2)
    assert [name for name, _, _ in made] == ["accumulate_several", "merge_several"]
    assert taken(made) == [[1000, 2000]]
    assert taken(some.flush()) == [[3000]]


def test_what_a_group_takes_lies_beside_what_waits():
    some = gathering_of(SMALL, LARGE, SMALL, SMALL, room=2048)
    some.add(1000, SMALL, 0)
    made, left, places = some.of_group([(LARGE, 1)], [(SMALL, 2), (SMALL, 3)])
    assert not made
    blocks = blocks_for(2 * ALONE)
    assert len(left) == 3
    assert places[1] - places[0] == 512
    packed, waiting = some.flush()
    assert (packed[0], packed[2][0]) == ("accumulate_packed", places[0])
    assert packed[1]["table"] == (0, 1, 100, 4096, 0, blocks, 1, 1, 100, 4096, 128, blocks + 1)
    assert taken([waiting]) == [[1000]]
    ((_, attrs, _),) = some.merge()
    records = [attrs["table"][k + 4] for k in range(0, 20, 5)]
    assert records == [1, 2, 3, 0]


def test_shared_memory_that_is_full_is_looked_at_first():
    some = gathering_of(SMALL, SMALL, SMALL, room=1024)
    made, _, first = some.of_group([], [(SMALL, 0), (SMALL, 1)])
    assert not made
    made, _, second = some.of_group([], [(SMALL, 2)])
    assert [name for name, _, _ in made] == ["accumulate_packed"]
    assert second == first[:1]
    assert len(some.flush()) == 1
