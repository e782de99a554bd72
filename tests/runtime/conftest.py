"""Tests of the runtime."""


def pytest_addoption(parser):
    parser.addoption(
        "--interrupts", type=int, default=16, help="how often Ctrl-C is pressed in runs"
    )
    parser.addoption("--every-op", action="store_true", help="compile all for other processors")
