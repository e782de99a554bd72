"""Ranks on GPUs, as far as that is seen without any: who takes which, and who is gone."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from opstep.distributed.gpus import device_of
from opstep.distributed.place import Place
from opstep.distributed.starting import Ended, start
from opstep.runtime.device.cuda.driver import driver
from opstep.runtime.device.cuda.vendor import libraries, nccl
from opstep.runtime.ir.errors import DeviceError, InputError

ROOT = Path(__file__).resolve().parents[2]
A, B = bytes(16), bytes(range(16))


@pytest.fixture
def gpus(monkeypatch):
    def there(count: int) -> None:
        made = SimpleNamespace(cuDeviceGetCount=lambda: count)
        monkeypatch.setattr(driver, "driver", lambda: made)

    return there


def place(rank: int, ranks: int, local_ranks: int) -> Place:
    return Place(rank, ranks, rank % local_ranks, local_ranks, "file://meeting")


def test_a_rank_takes_the_gpu_of_its_number_on_its_machine(gpus):
    gpus(4)
    assert [device_of("cuda", place(r, 8, 4)) for r in (0, 1, 5)] == ["cuda", "cuda:1", "cuda:1"]
    assert device_of("cuda:0", place(3, 8, 4)) == "cuda:3"
    assert device_of("cpu", place(3, 8, 4)) == "cpu"
    with pytest.raises(InputError, match="takes the GPU of its number on its machine"):
        device_of("cuda:1", place(0, 2, 2))


def test_fewer_gpus_than_ranks(gpus):
    gpus(2)
    with pytest.raises(DeviceError, match="there are 2 GPUs here for 4 ranks"):
        device_of("cuda", place(0, 4, 4))
    gpus(1)  # a launcher may let each rank see its own: NCCL's door finds out
    assert device_of("cuda", place(1, 4, 4)) == "cuda"


def test_what_nccl_would_refuse():
    nccl.check_alike([0, 3], [22_809, 22_809], [A, B])
    with pytest.raises(DeviceError, match="ranks 0 and 3 are on one GPU"):
        nccl.check_alike([0, 3], [22_809, 22_809], [A, A])
    with pytest.raises(DeviceError, match=r"rank 0 has NCCL 2\.28\.9 and rank 3 has 2\.26\.2"):
        nccl.check_alike([0, 3], [22_809, 22_602], [A, B])
    with pytest.raises(DeviceError, match=r"NCCL 2\.18\.5 is too old: 2\.21\.0 is needed"):
        nccl.check_alike([0, 3], [21_805, 21_805], [A, B])


def test_there_is_no_nccl(monkeypatch):
    monkeypatch.setattr(libraries, "_found", lambda files: None)
    libraries.library.cache_clear()
    try:
        with pytest.raises(DeviceError, match="NCCL is not there") as caught:
            libraries.library("nccl")
    finally:
        libraries.library.cache_clear()
    assert "PyTorch for CUDA brings it" in str(caught.value.diagnostics[0].hint)


SCRIPT = """
import os, signal, sys, threading
from opstep.distributed.gloo import joined
from opstep.distributed.place import place_in

place, lost = place_in(os.environ), threading.Event()
with joined(place, 600.0, on_gpus=True) as transport:
    def told(why):
        print(why, file=sys.stderr, flush=True)
        lost.set()
    transport.when_lost(told)
    transport.world.barrier()
    if sys.argv[1] == "dies" and place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "late" and place.rank == 0:
        transport.wait_for([0, 1])
    if sys.argv[1] != "ends":
        lost.wait()
        os._exit(3)
"""


def run(tmp_path, monkeypatch, what: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("600.0", "1.5") if what == "late" else SCRIPT)
    start([sys.executable, str(script), what], 3)


def test_a_rank_that_dies_is_known_to_those_who_wait_on_a_gpu(tmp_path, monkeypatch):
    with pytest.raises(Ended) as caught:
        run(tmp_path, monkeypatch, "dies")
    assert (caught.value.rank, caught.value.code) == (1, -signal.SIGKILL)
    for rank in (0, 2):
        assert f"rank {rank} waits for rank 1, which is gone" in caught.value.told[rank]


@pytest.mark.slow
def test_a_rank_that_a_gpu_waits_for_too_long(tmp_path, monkeypatch):
    with pytest.raises(Ended) as caught:
        run(tmp_path, monkeypatch, "late")
    assert "after 1.5 s nothing came from rank 1" in caught.value.told[0]


@pytest.mark.slow
def test_ranks_that_end_in_their_order_are_not_missed(tmp_path, monkeypatch, capfd):
    run(tmp_path, monkeypatch, "ends")
    assert "gone" not in capfd.readouterr().err
