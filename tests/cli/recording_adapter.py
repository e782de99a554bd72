"""A debug adapter that goes back and catches NaN: debugpy's, with answers of its own to what only a
recorder can do. It stands where it stood, and its reports are made up.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from opstep.editors.wire import Wire

FILTERS = [{"filter": "nan-origin", "label": "NaN"}, {"filter": "inf-origin", "label": "Infinity"}]
REPORT = "nan: y, the result of log\n2 of 3 elements"


class RecordingAdapter:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "debugpy.adapter"]
        process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.client = Wire(sys.stdin.buffer, sys.stdout.buffer)
        self.adapter = Wire(process.stdout, process.stdin)
        self.caught: list[str] = []
        self.is_back = False

    def serve(self) -> None:
        threading.Thread(target=self.forward, daemon=True).start()
        while (message := self.client.read()) is not None:
            if message["type"] != "request" or not self.answers(message):
                self.adapter.write(message)

    def forward(self) -> None:
        while (message := self.adapter.read()) is not None:
            if message.get("command") == "initialize":
                message["body"]["supportsStepBack"] = True
                message["body"]["exceptionBreakpointFilters"] += FILTERS
            self.client.write(message)

    def answers(self, asked: dict[str, Any]) -> bool:
        command, arguments = asked["command"], asked["arguments"]
        if command == "setExceptionBreakpoints":
            self.caught = arguments["filters"]
            arguments["filters"] = [f for f in self.caught if f not in ("nan-origin", "inf-origin")]
        stop = {"stepBack": "step", "reverseContinue": "exception"}.get(command)
        if stop is None and not (command == "exceptionInfo" and self.is_back):
            return False
        self.is_back = True
        caught = ", ".join(sorted(self.caught))
        info = {
            "exceptionId": "NaN", "description": f"caught: {caught}", "breakMode": "always",
            "details": {"message": REPORT},
        }  # fmt: skip
        head = {"seq": 0, "type": "response", "request_seq": asked["seq"], "command": command}
        self.client.write({**head, "success": True, "body": {} if stop else info})
        if stop:
            body = {"reason": stop, "threadId": arguments["threadId"]}
            self.client.write({"seq": 0, "type": "event", "event": "stopped", "body": body})
        return True


if __name__ == "__main__":
    RecordingAdapter().serve()
