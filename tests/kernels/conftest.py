"""Tests of single ops."""


def pytest_addoption(parser):
    parser.addoption("--every-kernel", action="store_true", help="compile all, not some of a kind")
    parser.addoption("--every-dtype", action="store_true", help="test graphs with all their dtypes")
    parser.addoption("--rounds", type=int, default=1, help="draws of operands for each test graph")
