"""Tests of single ops."""


def pytest_addoption(parser):
    parser.addoption("--rounds", type=int, default=1, help="draws of operands for each test graph")
