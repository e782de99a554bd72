"""Tests that compile CUDA kernels, and need no GPU."""


def pytest_addoption(parser):
    parser.addoption("--every-kernel", action="store_true", help="compile all, not some of a kind")
