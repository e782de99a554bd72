"""What the workers of a run make once, together."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from typing import Any

import pytest


def once(request: pytest.FixtureRequest, name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, as JSON has it: made by the worker that asks first, which the others that
    ask wait for.
    """
    folder = request.getfixturevalue("tmp_path_factory").getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    path = folder / f"{name}.json"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(make()))
        return json.loads(path.read_text())
