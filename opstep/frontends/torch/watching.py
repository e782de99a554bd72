"""What is done around runs of compiled models: hunts, recordings, debuggers."""

from __future__ import annotations

import warnings
from typing import Any

from opstep.api.settings import RunSettings


class Watch:
    """Of all graphs that one call of `torch.compile` makes."""

    def __init__(self, settings: RunSettings, recording: Any = None):
        self.settings = settings
        self.recording = recording
        self.alarm = None
