"""The environment in which a script's process has opstep beside debugpy's pydevd."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXTENSION = Path(__file__).parents[2] / "debuggee" / "extension"  # that pydevd finds on its path
CONFIGURATION = "OPSTEP_DEBUGGEE"  # a variable, with JSON


def environment(before: str | None, folders: Sequence[str], more: Mapping[str, Any]) -> dict:
    """Variables to add. `before`: PYTHONPATH as it would be, which the script sees; `folders`:
    those of the person's own files; `more`: launch arguments of ours.
    """
    configuration = {"pythonPath": before, "folders": folders, **more}
    paths = [str(EXTENSION), *([before] if before else [])]
    return {"PYTHONPATH": os.pathsep.join(paths), CONFIGURATION: json.dumps(configuration)}
