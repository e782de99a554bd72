"""What tests in every folder share. That this file is here puts the folder on their path."""

import gc
import importlib
import signal

import pytest

# Shells start what runs in the background with Ctrl-C ignored, which programs inherit: tests that
# press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--every-op", action="store_true", help="take all ops where some stand for all"
    )
    parser.addoption("--kills", type=int, default=2, help="how often a rank is killed at random")


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


@pytest.fixture(params=["cpu.device", "cuda.simulator.simulator"], ids=["cpu", "simulator"])
def execute(request):
    """``execute(op, arrays, attrs)`` of each device that runs single ops and needs no GPU."""
    return importlib.import_module(f"opstep.runtime.device.{request.param}").execute
