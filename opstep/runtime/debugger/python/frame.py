"""A frame of Python's stack."""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.debugger.python.files import Function
from opstep.runtime.debugger.python.lines import Origin, PythonLine


class PythonFrame(NamedTuple):
    """A function of Python at a line. `level`: of the statement's origin; `module`: the path of the
    module whose code it is, `within` that as seen from the graph's own module.
    """

    at: PythonLine
    line: int
    level: int
    origin: Origin
    module: str
    within: str

    @property
    def function(self) -> Function | None:
        return self.at.function

    @property
    def name(self) -> str:
        """``Block.forward (h.3)``"""
        function, file = self.function, self.at.path.rpartition("/")[2]
        name = function.name if function else f"{file}:{self.line}"
        if function is None and self.at.file.lines:
            name = "<module>"
        return f"{name} ({self.module})" if self.module else name
