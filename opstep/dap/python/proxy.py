"""A session on a Python script: messages pass between a client and debugpy's adapter, and what
opstep adds is added on the way.

    client <-> Proxy <-> debugpy.adapter <-> pydevd in the script's process
                 ^------ Channel ------> opstep.debuggee.helper there

A method ``on_COMMAND`` answers a request itself, or changes it and has it forwarded; a method
``after_COMMAND`` changes the response; ``on_event_EVENT`` an event, which it keeps if it returns
True. All others pass as they are.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from opstep.dap.python.channel import Channel, Refused, Unreachable
from opstep.dap.python.ending import Ending
from opstep.dap.python.environment import environment
from opstep.dap.python.frames import ENGINE, OpFrames
from opstep.dap.python.graphs import Graphs
from opstep.dap.python.launching import OURS, adapter_command, folders, is_recorded, recorded
from opstep.dap.python.lines import Lines
from opstep.dap.python.ops import OpStops
from opstep.dap.python.travel import Travel
from opstep.dap.python.views import PREFIX, Views
from opstep.dap.wire import Wire, wire_of
from opstep.editors.wire import LONGEST_SKIPPED, BadMessage, BrokenStream, Gone

Message = dict[str, Any]
Change = Callable[[Message, Message], None]  # of the body of a response, for these arguments

FILTERS = [
    {
        "filter": "nan-origin", "label": "NaN, only where it is born", "default": True,
        "description": "Stop in the PyTorch op that makes a NaN of operands that have none there.",
    },
    {
        "filter": "inf-origin", "label": "Infinity, only where it is born", "default": False,
        "description": "Stop in the PyTorch op that makes an infinity of finite operands.",
    },
]  # fmt: skip
STOPPED_AT = "NotFinite"  # `opstep.frontends.torch.debugging.stops` calls it so
QUIET = {"DEBUGPY_LOG_STDERR": ""}  # else each refusal is a traceback there
FAREWELL_S = 10  # that debugpy's adapter may take once the client is gone
MISSING = (
    "opstep is not in the program's process: tensors are shown as Python shows them, and NaNs and "
    "infinities do not stop it. "
)
_INSTALL = "Install opstep in the Python that runs it ({python})."
_ATTACH = "Start it with opstep debug --listen PORT, or have it call opstep.debug.listen(PORT)."


class Proxy:
    """`client`: the connection to it. `greeted`: the ``initialize`` request, where it was answered
    already, by the server that handles other programs.
    """

    def __init__(self, client: Wire, greeted: Message | None = None):
        self._client = client
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._pending: dict[int, Callable[[Message], None]] = {}  # by number to the adapter
        # Our number of a reverse request -> the adapter's, or what takes the answer.
        self._asked: dict[int, int | Callable[[Message], None]] = {}
        self._channel: Channel | None = None
        self._given: Message = {}  # launch or attach
        self.greeting: Message = {}  # initialize
        self.thread = self.top = 0  # that stopped last, and its frame
        self._frames = OpFrames(self)
        self._script = 0  # a process that ends with the session
        self.is_over = threading.Event()
        self._ending = Ending(lambda: self.event("terminated", {}))
        self._travel = Travel(self)
        self._graphs = Graphs(self)
        self._ops, self._lines = OpStops(self), Lines(self)
        self.views = Views(self, self._travel, lambda: self._frames.is_nan)
        self._adapter_process: subprocess.Popen[bytes] | None = None
        self._start_adapter()
        if greeted is not None:
            self.greeting = greeted.get("arguments") or {}
            self.ask("initialize", self.greeting, self._announce)

    # --- the adapter ---

    def _start_adapter(self) -> None:
        self._adapter_process = process = subprocess.Popen(
            adapter_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=QUIET | os.environ,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        self._connect(Wire(process.stdout, process.stdin))  # pyright: ignore

    def _connect(self, adapter: Wire) -> None:
        adapter.longest = LONGEST_SKIPPED
        self._adapter = adapter
        target, name = self._read_adapter, "opstep adapter"
        threading.Thread(target=target, args=(adapter,), name=name, daemon=True).start()

    def _read_adapter(self, adapter: Wire) -> None:
        with suppress(BrokenStream, Gone):
            while True:
                try:
                    message = adapter.read()
                except BadMessage:
                    continue
                if message is None:
                    break
                self._from_adapter(message)
        if adapter is self._adapter:
            self.is_over.set()

    def close(self, terminate: bool | None = None) -> None:
        """The client is gone: debugpy's adapter ends the script, or leaves it, as ever."""
        with suppress(OSError):
            self._adapter.writer.close()
        if self._channel is not None:
            self._channel.close()
        if self._adapter_process is not None:
            try:
                self._adapter_process.wait(FAREWELL_S)
            except subprocess.TimeoutExpired:
                self._adapter_process.kill()
        if self._script:  # the adapter could not end it: it may be in a __repr__ without an end
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._script, signal.SIGKILL)

    # --- from the client ---

    def forward(self, message: Message) -> None:
        """One message of the client's."""
        if message.get("type") == "response":
            number = self._asked.pop(message.get("request_seq", 0), None)
            if callable(number):
                number(message)
            elif number is not None:
                given = {"message": "refused by the client"} | message  # debugpy wants one
                self._to_adapter(given | {"request_seq": number})
            return
        command, arguments = str(message.get("command")), message.get("arguments") or {}
        handler = getattr(self, f"on_{command}", self.pass_on)
        if arguments.get("frameId") == ENGINE and command != "scopes":
            arguments = arguments | {"frameId": self.top}
        try:
            if command.startswith(PREFIX):
                self.views.handle(message | {"arguments": arguments})
            elif self._travel.takes(command, arguments):
                self._travel.handle(message, arguments)
            else:
                handler(message, arguments)
        except (Refused, Unreachable) as error:
            self.refuse(message, str(error))
        except Exception as error:  # a client's nonsense, or ours: the session goes on
            traceback.print_exc()
            self.refuse(message, f"{command}: {type(error).__name__}: {error}")

    def pass_on(
        self, message: Message, arguments: Message, change: Change | None = None
    ) -> None:  # fmt: skip
        """To the adapter, with these arguments; its response goes to the client, after `change`."""
        change = change or getattr(self, f"after_{message.get('command')}", None)

        def answer(response: Message) -> None:
            if change is not None and response.get("success"):
                change(response.setdefault("body", {}), arguments)
            if not response.get("success"):  # debugpy gives the text alone
                response.setdefault("body", _error(str(response.get("message"))))
            self._to_client(response | {"request_seq": message["seq"]})

        given = {"arguments": arguments} if "arguments" in message else {}
        self._to_adapter(message | given, answer)

    def answer(self, message: Message, response: Message) -> None:
        """To a request of the client's, an adapter's response to another one."""
        self._to_client(response | {"request_seq": message["seq"]})

    def respond(self, message: Message, body: Message | None = None) -> None:
        self._to_client(_answer(message, True) | ({} if body is None else {"body": body}))

    def refuse(self, message: Message, text: str) -> None:
        is_shown = not str(message.get("command")).startswith(PREFIX)  # views show it themselves
        body = _error(text, is_shown)
        self._to_client(_answer(message, False) | {"message": text, "body": body})

    def output(self, text: str) -> None:
        self.event("output", {"category": "important", "output": text + "\n"})

    def event(self, name: str, body: Message) -> None:
        self._to_client({"type": "event", "event": name, "body": body})

    def ask_client(
        self, command: str, arguments: Any, answer: Callable[[Message], None]
    ) -> None:  # fmt: skip
        """A request of ours. `answer` gets its response."""
        message = {"type": "request", "command": command, "arguments": arguments}
        self._to_client(message | {"seq": answer})

    def _to_client(self, message: Message) -> None:
        number = message.pop("seq", None)
        with self._writing, suppress(Gone):
            if message.get("type") == "request":  # the answer may be quick
                self._asked[self._client.latest + 1] = number
            self._client.write(message)

    def _to_adapter(
        self, message: Message, answer: Callable[[Message], None] | None = None
    ) -> None:  # fmt: skip
        """`answer` gets its response. The number is known before it is sent: it may be quick."""
        with self._lock:
            if answer is not None:
                self._pending[self._adapter.latest + 1] = answer
            message = {k: v for k, v in message.items() if k != "seq"}
            with suppress(Gone):
                self._adapter.write(message)

    def ask(self, command: str, arguments: Any, answer: Callable[[Message], None]) -> None:
        message = {"type": "request", "command": command, "arguments": arguments}
        self._to_adapter(message, answer)

    # --- from the adapter ---

    def _from_adapter(self, message: Message) -> None:
        kind, body = message.get("type"), message.get("body") or {}
        if kind == "response":
            answer = self._pending.pop(message.get("request_seq", 0), None)
            if answer is not None:
                answer(message)
        elif kind == "request":
            if message.get("command") == "startDebugging":
                self._as_given(message["arguments"]["configuration"])
            self._to_client(message)
        else:
            handler = getattr(self, f"on_event_{message.get('event')}", None)
            if handler is None or handler(body) is None:
                self._to_client(message)

    def _as_given(self, configuration: Message) -> None:
        """A child's configuration repeats that of the launch, as we changed it."""
        configuration.pop("env", None)
        configuration |= {k: v for k, v in self._given.items() if k in ("env", *OURS)}

    # --- the beginning ---

    def _announce(self, response: Message) -> None:
        """Of a client that has another server's capabilities."""
        body = response.get("body") or {}
        self.after_initialize(body, {})
        self.event("capabilities", {"capabilities": body})

    def after_initialize(self, body: Message, arguments: Message) -> None:
        body.setdefault("exceptionBreakpointFilters", []).extend(FILTERS)
        body.update(supportsStepBack=True, supportsSteppingGranularity=True)
        body.update(supportsDataBreakpoints=True, supportsDisassembleRequest=True)
        self.views.is_styled = bool(self.greeting.get("supportsANSIStyling"))
        body["supportsANSIStyling"] = self.views.is_styled

    def on_launch(self, message: Message, arguments: Message) -> None:
        if program := arguments.get("program"):  # a script finds its modules wherever it goes
            folder = os.path.abspath(arguments.get("cwd") or os.getcwd())
            arguments = arguments | {"program": os.path.join(folder, program)}
        self._given = arguments
        variables = dict(arguments.get("env") or {})
        before = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        if is_recorded(arguments):
            arguments = recorded(arguments)
        ours = {k: arguments[k] for k in OURS if k in arguments}
        variables |= environment(before, folders(arguments), ours)
        given = {k: v for k, v in arguments.items() if k not in OURS}
        self.pass_on(message, given | {"env": variables})

    def on_attach(self, message: Message, arguments: Message) -> None:
        """To a program that listens: its adapter is there already."""
        self._given = arguments
        place = arguments.get("connect") or arguments
        if "port" in place and "listen" not in arguments:
            try:
                self._reach(place.get("host", "127.0.0.1"), int(place["port"]))
            except (OSError, ValueError, OverflowError) as error:
                text = f"no program listens on {place.get('host', '127.0.0.1')}:{place['port']}"
                return self.refuse(message, f"{text}: {error}. {_ATTACH}")
        return self.pass_on(message, {k: v for k, v in arguments.items() if k not in OURS})

    def _reach(self, host: str, port: int) -> None:
        connection = socket.create_connection((host, port), FAREWELL_S)
        connection.settimeout(None)
        before, self._adapter_process = self._adapter_process, None
        self._connect(wire_of(connection))
        if before is not None:
            before.kill()
            before.wait()
        self.ask("initialize", self.greeting, lambda response: None)

    def on_disconnect(self, message: Message, arguments: Message) -> None:
        if arguments.get("terminateDebuggee") is False:
            self._script = 0
        self.pass_on(message, arguments)

    def on_restartFrame(self, message: Message, arguments: Message) -> None:  # noqa: N802
        raise Refused("a frame of Python cannot be restarted")  # debugpy would not answer

    def on_restart(self, message: Message, arguments: Message) -> None:
        raise Refused("a script is restarted by a new session")  # nor here

    def on_initialize(self, message: Message, arguments: Message) -> None:
        self.greeting = arguments
        self.pass_on(message, arguments)

    # --- the program ---

    def on_event_process(self, body: Message) -> None:
        if body.get("startMethod") == "launch":
            self._script = body.get("systemProcessId") or 0
            if str(self._given.get("console")).endswith("Terminal"):
                self._ending.watch(self._script)

    def on_event_terminated(self, body: Message) -> bool | None:
        return None if self._ending.is_news() else True

    def on_event_exited(self, body: Message) -> None:
        self._script = 0

    def on_event_debugpyAttach(self, body: Message) -> None:  # noqa: N802
        self._as_given(body)

    def on_event_initialized(self, body: Message) -> bool:
        """pydevd is there, and the helper, which listened before pydevd was connected."""

        def reach(response: Message) -> None:
            process = (response.get("body") or {}).get("process") or {}
            self._reach_helper(process.get("pid", 0))
            self.event("initialized", body)

        self.ask("pydevdSystemInfo", {}, reach)
        return True

    def _reach_helper(self, process: int) -> None:
        try:
            self._channel = Channel(process)
        except Unreachable:
            if self._given.get("subProcessId") is None and not self._given.get("noDebug"):
                is_launch = self._given.get("request") == "launch" or "program" in self._given
                python = self._given.get("python") or sys.executable
                python = python[0] if isinstance(python, list) else python
                self.output(MISSING + (_INSTALL.format(python=python) if is_launch else _ATTACH))
            return
        with suppress(Unreachable, Refused):
            if note := self.helper("note"):
                self.output(note)

    def helper(self, name: str, /, **arguments: Any) -> Any:
        """A call of the helper in the program. Raises `Refused`, `Unreachable`."""
        if self._channel is None:
            raise Unreachable(MISSING.strip())
        return self._channel.call(name, **arguments)

    # --- NaNs ---

    def on_setExceptionBreakpoints(self, message: Message, arguments: Message) -> None:  # noqa: N802
        names = {str(f["filter"]) for f in FILTERS}
        options = arguments.get("filterOptions") or []
        wanted = [*arguments.get("filters", []), *(o.get("filterId") for o in options)]
        ours = [name for name in wanted if name in names]
        if self._channel is not None:
            with suppress(Unreachable, Refused):
                self.helper("filters", filters=ours)
        rest = {"filters": [f for f in arguments.get("filters", []) if f not in names]}
        if options:
            rest["filterOptions"] = [o for o in options if o.get("filterId") not in names]
        self.pass_on(message, arguments | rest)

    def evaluate_in_thread(
        self, thread: Any, text: str, answer: Callable[[Message], None]
    ) -> None:  # fmt: skip
        """In the top frame of a thread; `answer` gets the response."""

        def found(response: Message) -> None:
            frames = (response.get("body") or {}).get("stackFrames") or [{"id": 0}]
            given = {"expression": text, "frameId": frames[0]["id"], "context": "watch"}
            self.ask("evaluate", given, answer)

        self.ask("stackTrace", {"threadId": thread, "levels": 1}, found)

    def after_variables(self, body: Message, arguments: Message) -> None:
        self._lines.saw_variables(body, arguments)
        self.views.mark(body.get("variables", []), arguments.get("variablesReference", 0))

    def after_evaluate(self, body: Message, arguments: Message) -> None:
        self.views.colour_result(body, arguments)

    def evaluate_in(
        self, frame: int | None, expression: str, then: Callable[[Message], None]
    ) -> None:
        """In a frame, or where the script stands; `then` gets the response."""

        def ask() -> None:
            arguments = {"expression": expression, "frameId": frame or self.top}
            self.ask("evaluate", arguments | {"context": "watch"}, then)

        if frame is None:
            self._find_top(ask)
        else:
            ask()

    def on_event_stopped(self, body: Message) -> bool | None:
        """The client hears of a NaN when it is known in which frame the script stands."""
        self.thread = body.get("threadId", self.thread)
        self._travel.stopped(self.thread)
        self._graphs.stopped()
        self._lines.stopped(body)
        self._frames.found = self._ops.stopped(body)
        if self._frames.found:
            self._travel.describe(body, body.get("description") or "Paused")
            self._find_top(lambda: self.event("stopped", body))
            return True
        if body.get("reason") != "exception" or STOPPED_AT not in str(body.get("text")):
            as_ever = body.get("description") or f"Paused on {body.get('reason')}"
            self._travel.describe(body, as_ever)
            return None
        with suppress(Refused, Unreachable):
            self._frames.found = found = self.helper("latest")
            body.update(description=f"Paused on {found['kind']}", text=found["headline"])
            self._travel.describe(body, body["description"])
        self._find_top(lambda: self.event("stopped", body))
        return True

    def _find_top(self, then: Callable[[], None]) -> None:
        def found(response: Message) -> None:
            frames = (response.get("body") or {}).get("stackFrames")
            self.top = frames[0]["id"] if frames else 0
            then()

        self.ask("stackTrace", {"threadId": self.thread, "levels": 1}, found)

    def on_setFunctionBreakpoints(self, message: Message, arguments: Message) -> None:  # noqa: N802
        self._ops.set(message, arguments)

    def on_next(self, message: Message, arguments: Message) -> None:
        is_by_ops = arguments.get("granularity") == "instruction"
        (self._ops.step if is_by_ops else self.pass_on)(message, arguments)

    def on_stepIn(self, message: Message, arguments: Message) -> None:  # noqa: N802
        if arguments.get("granularity") == "instruction":
            self._ops.step(message, arguments)
        else:
            self._graphs.step_in(lambda: self.pass_on(message, arguments))

    def on_setBreakpoints(self, message: Message, arguments: Message) -> None:  # noqa: N802
        self._travel.set_breakpoints(arguments)
        self._lines.set(message, arguments)

    def on_dataBreakpointInfo(self, message: Message, arguments: Message) -> None:  # noqa: N802
        self._lines.info(message, arguments)

    def on_setDataBreakpoints(self, message: Message, arguments: Message) -> None:  # noqa: N802
        self._lines.set_watches(message, arguments)

    def after_scopes(self, body: Message, arguments: Message) -> None:
        self._lines.saw_scopes(body, arguments)

    def after_stackTrace(self, body: Message, arguments: Message) -> None:  # noqa: N802
        is_here = arguments.get("threadId") == self.thread and not arguments.get("startFrame")
        self._lines.saw_frames(body, self._frames.found.get("listed", 0) if is_here else 0)

    def on_disassemble(self, message: Message, arguments: Message) -> None:
        self._lines.disassembly.answer(message, arguments)

    def after_gotoTargets(self, body: Message, arguments: Message) -> None:  # noqa: N802
        with suppress(Refused, Unreachable):
            body.setdefault("targets", []).extend(self._travel.targets(arguments))

    def after_exceptionInfo(self, body: Message, arguments: Message) -> None:  # noqa: N802
        self._frames.exception_info(body, arguments)

    def on_stackTrace(self, message: Message, arguments: Message) -> None:  # noqa: N802
        self._frames.stack(message, arguments)

    def on_scopes(self, message: Message, arguments: Message) -> None:
        self._frames.scopes(message, arguments)


def _error(text: str, is_shown: bool = True) -> Message:
    return {"error": {"id": 1, "format": text, "showUser": is_shown}}


def _answer(message: Message, success: bool) -> Message:
    command, number = message.get("command", ""), message.get("seq")
    return {"type": "response", "request_seq": number, "success": success, "command": command}
