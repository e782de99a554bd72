"""Tests of the runtime."""


def pytest_addoption(parser):
    parser.addoption(
        "--interrupts", type=int, default=16, help="how often Ctrl-C is pressed in runs"
    )
