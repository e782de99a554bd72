"""A kernel that stands still in a plain client of debugpy."""

from __future__ import annotations

from dap.client import Client


def attached(configuration: dict) -> Client:
    """A plain client of debugpy, where the kernel's first line was reached."""
    client = Client.connect(configuration["connect"]["port"])
    client.initialize()
    client.send("attach", configuration)
    client.expect("initialized")
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    return client


class Kernel:
    """A kernel that stands still in a client of debugpy."""

    def __init__(self, configuration: dict):
        self.client = attached(configuration)
        stops = [e["body"] for e in self.client.events if e["event"] == "stopped"]
        self.thread = stops[-1]["threadId"]

    def stack(self) -> list[dict]:
        return self.client.stack(self.thread)

    def locals(self) -> dict[str, str]:
        scopes = self.client.request("scopes", frameId=self.stack()[0]["id"])["scopes"]
        number = scopes[0]["variablesReference"]
        found = self.client.request("variables", variablesReference=number)["variables"]
        return {v["name"]: v["value"] for v in found}

    def value(self, expression: str) -> str:
        frame = self.stack()[0]["id"]
        return self.client.request("evaluate", expression=expression, frameId=frame)["result"]

    def go(self, command: str, reason: str) -> None:
        self.client.request(command, threadId=self.thread)
        self.client.expect_stop(reason)

    def breakpoint_at(self, path: str, line: int) -> bool:
        told = self.client.request(
            "setBreakpoints", source={"path": path}, breakpoints=[{"line": line}]
        )
        return told["breakpoints"][0]["verified"]

    def finish(self) -> str:
        """What it printed, once it has ended."""
        self.client.request("continue", threadId=self.thread)
        self.client.expect("terminated")
        text = self.client.output("stdout") + self.client.output("stderr")
        self.client.vanish()
        return text
