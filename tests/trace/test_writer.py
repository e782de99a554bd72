"""The writer's thread: order, bounds, flushes."""

from __future__ import annotations

import threading

import pytest

from opstep.trace import writer as writer_module
from opstep.trace.writer import TOGETHER, Writer


def writer_of(flush, **options) -> Writer:
    """Whose items are called."""
    return Writer(lambda items: [item() for item in items], flush, **options)


def test_work_is_done_in_order_and_flushed():
    done: list = []
    writer = writer_of(lambda: done.append("flush"))
    for k in range(100):
        writer.put([lambda k=k: done.append(k)])
    writer.barrier()
    assert [d for d in done if d != "flush"] == list(range(100))
    assert done[-1] == "flush"
    writer.close()


def test_a_barrier_waits_for_the_flush_behind_slow_work():
    gate, flushed, seen = threading.Event(), threading.Event(), []
    writer = writer_of(flushed.set)
    writer.put([gate.wait])

    def wait():
        writer.barrier()
        seen.append(flushed.is_set())

    caller = threading.Thread(target=wait)
    caller.start()
    assert not flushed.is_set() and not seen
    gate.set()
    caller.join()
    assert seen == [True]
    writer.close()


def test_a_full_queue_makes_its_callers_wait():
    gate = threading.Event()
    writer = writer_of(lambda: None, limit=1000)
    writer.put([gate.wait], nbytes=600)
    entered, one = [], threading.Event()

    def bring():
        for k in range(20):
            writer.put([lambda: None], nbytes=300)
            entered.append(k)
            one.set()

    caller = threading.Thread(target=bring)
    caller.start()
    assert one.wait(20)
    caller.join(0.1)
    assert caller.is_alive()
    assert len(entered) == 1  # 600 + 300 bytes; another 300 do not fit
    gate.set()
    caller.join()
    writer.close()
    assert writer.most <= 1000


def test_what_is_larger_than_the_queue_is_let_in_alone():
    done = []
    writer = writer_of(lambda: None, limit=1000)
    for k in range(3):
        writer.put([lambda k=k: done.append(k)], nbytes=5000)
    writer.close()
    assert done == [0, 1, 2]
    assert writer.most == 5000


def test_flushes_come_while_there_is_always_more(monkeypatch):
    monkeypatch.setattr(writer_module, "PATIENCE_S", 0.0)
    flushes: list[int] = []
    done: list[int] = []
    writer = writer_of(lambda: flushes.append(len(done)))
    for _ in range(30):
        writer.put([lambda: done.append(1)], TOGETHER)
    writer.close()
    assert len(done) == 30
    assert any(0 < seen < 30 for seen in flushes)
    assert flushes[-1] == 30


def test_closing_does_what_is_queued():
    done: list[int] = []
    writer = writer_of(lambda: None)
    for k in range(50):
        writer.put([lambda k=k: done.append(k)])
    writer.close()
    assert len(done) == 50


def test_ctrl_c_while_something_is_queued(monkeypatch):
    """Neither a barrier nor the end waits for ever for what was cut off."""
    done = []
    writer = writer_of(lambda: None)

    def cut_off():
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(writer._changed, "notify_all", cut_off)
    with pytest.raises(KeyboardInterrupt):
        writer.put([lambda: None])
    writer.barrier()
    writer.put([lambda: done.append(2)])
    writer.close()
    assert done == [2]
