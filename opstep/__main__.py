"""``python -m opstep``: the same as ``opstep``."""

from opstep.cli.main import entry

entry()
