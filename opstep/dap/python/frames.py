"""A stop in an op of PyTorch: its report, autograd's engine as a frame, what the op was given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opstep.dap.python.ops import VALUES

if TYPE_CHECKING:
    from opstep.dap.python.proxy import Proxy

Message = dict[str, Any]

ENGINE = 1 << 30  # id of the frame that stands for autograd's engine; debugpy counts from 1
OPERANDS = "__import__('opstep.frontends.torch.debugging.watching', None, None, ['x']).operands()"


class OpFrames:
    """`found`: the op at which the program stands, empty where it stands at a line."""

    def __init__(self, proxy: Proxy):
        self._proxy = proxy
        self.found: Message = {}

    @property
    def is_nan(self) -> bool:
        """Whether the op made a NaN or an infinity."""
        return "report" in self.found

    def exception_info(self, body: Message, arguments: Message) -> None:
        """With the report in place of the exception that stopped the program."""
        found = self.found
        if self.is_nan and arguments.get("threadId") == self._proxy.thread:
            details = {"message": found["report"], "typeName": found["kind"]}
            body.update(exceptionId=found["kind"], description=found["report"])
            body.update(breakMode="always", details=details)

    def stack(self, message: Message, arguments: Message) -> None:
        """The engine of a backward has no frame of Python's; it is shown as one, at the line of the
        forward whose derivative it computes.
        """
        is_here = arguments.get("threadId") == self._proxy.thread
        if not (is_here and self.found.get("phase") == "backward" and self.found["frames"]):
            self._proxy.pass_on(message, arguments)
            return
        start, levels = arguments.get("startFrame") or 0, arguments.get("levels") or 0
        shown = {"startFrame": max(start - 1, 0), "levels": max(levels - (start == 0), 0)}

        def insert(body: Message, arguments: Message) -> None:
            self._proxy.after_stackTrace(body, arguments)
            frames = [] if levels == 1 and start == 0 else body.get("stackFrames", [])
            body["stackFrames"] = [self._engine()] * (start == 0) + frames
            if "totalFrames" in body:
                body["totalFrames"] += 1

        self._proxy.pass_on(message, arguments | shown, insert)

    def _engine(self) -> Message:
        where = self.found["frames"][0]
        path = where["path"]
        return {
            "id": ENGINE, "name": f"backward of `{self.found['line']}`", "line": where["line"],
            "column": 1, "source": {"path": path, "name": os.path.basename(path)},
        }  # fmt: skip

    def scopes(self, message: Message, arguments: Message) -> None:
        """The operands of the op come first. The engine has nothing else."""
        proxy, is_engine = self._proxy, arguments.get("frameId") == ENGINE
        if "op" not in self.found or not (is_engine or arguments.get("frameId") == proxy.top):
            proxy.pass_on(message, arguments)
            return

        def insert(response: Message) -> None:
            given = response.get("body") or {}
            scope = {"name": name, "expensive": False}
            scope["variablesReference"] = given.get("variablesReference", 0)
            proxy.views.operands = scope["variablesReference"]
            if is_engine:
                proxy.respond(message, {"scopes": [scope]})
                return

            def add(body: Message, arguments: Message) -> None:
                proxy.after_scopes(body, arguments)
                body["scopes"].insert(0, scope)

            proxy.pass_on(message, arguments, add)

        op = self.found["op"]
        name = f"Operands of {op}" if self.is_nan else f"Operands and result of {op}"
        proxy.evaluate_in(proxy.top, OPERANDS if self.is_nan else VALUES, insert)
