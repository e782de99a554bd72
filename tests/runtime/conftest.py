"""How much is compiled for other processors."""


def pytest_addoption(parser):
    parser.addoption("--every-op", action="store_true", help="compile all ops, not some")
