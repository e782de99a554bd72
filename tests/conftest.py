"""What tests in every folder share. That this file is here puts the folder on their path."""

import gc
import importlib
import signal
from zlib import crc32

import numpy as np
import pytest

# Shells start what runs in the background with Ctrl-C ignored, which programs inherit: tests that
# press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


MANY = 8  # cases of a test, of which some are left out
ONE_OF = {"some": 6, "most": 2, "all": 1}  # by `--cases`


def registers_of(given: str) -> tuple[int, int]:
    size, number = map(int, given.split(","))
    return size, number


def part_of(given: str) -> tuple[int, int]:
    part, parts = map(int, given.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(given)
    return part, parts


def pytest_addoption(parser):
    parser.addoption(
        "--cases", choices=tuple(ONE_OF), default="all",
        help="of the cases of a test that has many: half; some: a sixth, and no slow tests",
    )  # fmt: skip
    parser.addoption(
        "--part", type=part_of, metavar="K/N",
        help="the half (K/2) or the sixth (K/6) that --cases takes; with all cases, one of N parts "
        "that together are every test once",
    )  # fmt: skip
    parser.addoption(
        "--every-op", action="store_true", help="take all ops where some stand for all"
    )
    parser.addoption(
        "--registers", type=registers_of, metavar="BYTES,NUMBER",
        help="make the CPU's kernels, and plan their memory, as for vector registers like these",
    )  # fmt: skip
    parser.addoption("--trained", type=int, default=6, help="random runs of training that go bad")
    parser.addoption("--scripts", type=int, default=2, help="random scripts a case of truth.py")
    parser.addoption("--kills", type=int, default=2, help="how often a rank is killed at random")


def pytest_configure(config):
    registers = config.getoption("--registers")
    if registers:
        processor = importlib.import_module("opstep.runtime.device.cpu.processor")
        name = f"Processor{registers}"  # kernels are cached by it
        given = type(name, (processor.Processor,), {"registers": registers})(*processor.this())
        processor.this = lambda: given


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Keeps what is collected out of the garbage collector's walks, which tests of memory ask for:
    more than 30,000 tests are there to the end. Compilers make much that is not garbage: without
    being asked, it walks after so many more objects than usual.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000)
        gc.enable()


def pytest_report_header(config):
    cases, part = config.getoption("--cases"), config.getoption("--part")
    return f"cases: {cases}" + (f", part {part[0]} of {part[1]}" if part else "")


def pytest_collection_modifyitems(config, items):
    """The same cases are taken in each run of a part, and other ones of each test."""
    wanted, given = config.getoption("--cases"), config.getoption("--part")
    part, parts = given or (1, ONE_OF[wanted])
    if wanted != "all" and parts != ONE_OF[wanted]:
        raise pytest.UsageError(f"--cases {wanted} takes --part K/{ONE_OF[wanted]}")
    tests = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    taken = set()
    for name, cases in tests.items():
        if wanted == "some" and cases[0].get_closest_marker("slow"):
            continue
        step = parts if wanted == "all" or len(cases) >= MANY else 1
        taken.update(cases[(crc32(name.encode()) + part - 1) % step :: step])
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


def pytest_runtest_setup(item):
    """Numbers from a module's generator do not depend on the tests that ran before."""
    for drawn in vars(getattr(item, "module", None) or object).values():
        if isinstance(drawn, np.random.Generator):
            fresh = np.random.default_rng(crc32(item.name.encode()))
            drawn.bit_generator.state = fresh.bit_generator.state


@pytest.fixture(params=["cpu.device", "cuda.simulator.simulator"], ids=["cpu", "simulator"])
def execute(request):
    """``execute(op, arrays, attrs)`` of each device that runs single ops and needs no GPU."""
    return importlib.import_module(f"opstep.runtime.device.{request.param}").execute


@pytest.fixture(scope="session")
def compiled_parts():
    """What sessions on scripts compile in the background is there, as from the second one on."""
    from opstep.debuggee.past import recorder
    from opstep.runtime.device.extension import Unavailable

    try:
        recorder.core().build()
        if (tensors := recorder.tensors()) is not None:
            from opstep.frontends.torch.eager import native

            native.build()
            tensors.build()
    except Unavailable as error:
        pytest.skip(str(error))
