"""What tests of the debugger share."""

from __future__ import annotations

import pytest
from debugger.sessions import TEXT


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.opg"
    path.write_text(TEXT)
    return path
