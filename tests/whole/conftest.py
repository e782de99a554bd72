"""Tests of the whole package."""


def pytest_addoption(parser):
    parser.addoption(
        "--hostile", type=int, default=240, help="how many files that are not what they claim"
    )
