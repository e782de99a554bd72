"""A thread in the script's process that answers the proxy, also while the script is stopped.

Its calls are the methods of `Helper` whose names have no underscore at their beginning. It imports
nothing that the script has not imported: what needs PyTorch waits until PyTorch is there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from opstep.dap.python.channel import address_of, user_of
from opstep.dap.python.environment import CONFIGURATION, EXTENSION
from opstep.debuggee import expressions
from opstep.debuggee.files import OURS, is_user
from opstep.debuggee.main_thread import on_main_thread
from opstep.debuggee.stops import calls, lines
from opstep.debuggee.stops.op_stops import OpStops
from opstep.frontends.scripts.frameworks import Arrivals
from opstep.runtime.ir.errors import InputError

_NOT_BUILT = (
    "what records the past is being compiled, once, for half a minute: the next session has it"
)
_PHASES = {  # modules of PyTorch, and their functions that call for it
    "forward": ("torch.nn.modules.module", ("_call_impl",)),
    "backward": ("torch.autograd", ("_engine_run_backward",)),
    "optimizer": ("torch.optim", ("step",)),
}
_JAX_IS_NOT_WATCHED = (
    "opstep: what JAX computes is not watched in this session: NaNs and infinities of it do not "
    "stop the script. opstep hunt SCRIPT finds them.\n"
)
_MAIN = threading.main_thread().ident or 0

_helper: Helper | None = None


def begin() -> None:
    """pydevd is there, the script has not begun."""
    global _helper
    configuration = json.loads(os.environ.pop(CONFIGURATION, "{}"))
    _restore_path(configuration)
    _hide()
    expressions.install()
    if not hasattr(socket, "SO_PEERCRED"):
        return
    _helper = Helper(configuration)
    with suppress(OSError):
        _helper._listen()
        sys.meta_path.insert(0, Arrivals(_helper._arrived))
        _helper._record(configuration)


def _restore_path(configuration: dict[str, Any]) -> None:
    """What was put into PYTHONPATH for pydevd is neither the script's nor its children's."""
    if "pythonPath" in configuration:
        before = configuration["pythonPath"]
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before
    with suppress(ValueError):
        sys.path.remove(str(EXTENSION))
    if not os.environ.get("DEBUGPY_LOG_STDERR", "x"):  # of the adapter
        del os.environ["DEBUGPY_LOG_STDERR"]


def _hide() -> None:
    """Our files are neither stepped into nor shown, as pydevd's own are not."""
    debugger: Any = sys.modules["pydevd"].PyDB
    hidden = sys.modules["_pydevd_bundle.pydevd_dont_trace_files"].PYDEV_FILE
    found_by_name = debugger.get_file_type

    def get_file_type(self: Any, frame: Any, *names: Any) -> Any:
        if frame.f_code.co_filename.startswith(OURS):
            return hidden
        return found_by_name(self, frame, *names)

    debugger.get_file_type = get_file_type


class Helper:
    """`filters`: those of exceptions that are opstep's own, and are on."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._filters: list[str] = []
        self._folders = tuple(configuration.get("folders", [os.getcwd()]))
        self._ops = OpStops(lambda: self._filters)
        self._past: Any = None
        self._no_past = ""  # why there is none
        self._stream: Any = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve, name="opstep helper", daemon=True)

    # --- what the proxy calls ---

    def note(self) -> str:
        """A remark for the person at the beginning; "" for nothing."""
        return f"Nothing can be gone back to: {_NOT_BUILT}." if self._no_past == _NOT_BUILT else ""

    def filters(self, filters: list[str]) -> None:
        """Turns on these, and no others."""
        self._filters = filters
        watching = sys.modules.get("opstep.frontends.torch.debugging.watching")
        if watching is not None and watching.want(filters):
            return
        if filters and hasattr(sys.modules.get("torch"), "compile"):  # all of it is there
            on_main_thread(self._watch)

    def latest(self) -> dict[str, Any]:
        """The NaN that the script stopped at last, as a report and as plain data."""
        watching = sys.modules.get("opstep.frontends.torch.debugging.watching")
        if watching is None or watching.latest is None:
            return {}
        from opstep.frontends.torch.eager.ops import plain_name
        from opstep.frontends.torch.eager.report import headline, report

        found = watching.latest
        frames = [{"name": f.function, "path": f.file, "line": f.line} for f in found.frames]
        return {
            "kind": found.finding.bad, "headline": headline(found),
            "report": report(found, is_live=True), "phase": found.phase, "frames": frames,
            "op": plain_name(found.finding.op),
            "line": found.finding.where.text.partition("  #")[0] if found.finding.where else "",
        }  # fmt: skip

    def graphs(self, name: str) -> Any:
        """A function of `graphs`. Without JAX there are none."""
        graphs = sys.modules.get("opstep.debuggee.graphs")
        if graphs is None:
            return None
        return graphs.enter(self._stopped_frame()) if name == "enter" else getattr(graphs, name)()

    def ops(self, name: str, given: dict[str, Any]) -> Any:
        """A method of `OpStops`."""
        return getattr(self._ops, name)(**given)

    def calls(self, name: str, given: dict[str, Any]) -> Any:
        """A function of `calls`."""
        return getattr(calls, name)(**given)

    def lines(self, name: str, given: dict[str, Any]) -> Any:
        """A function of `lines`."""
        return getattr(lines, name)(**given)

    def past(self, name: str, given: dict[str, Any]) -> Any:
        """A method of `Past`, while the script is stopped."""
        if self._past is None:
            raise RuntimeError(self._no_past)
        if name == "move":
            points = {path: dict(found) for path, found in given.pop("breakpoints").items()}
            stopped = self._stopped_frame()
            return self._past.move(**given, breakpoints=points, stopped=stopped)._asdict()
        if name == "moment" and given["position"] is None:
            if not _is_of_main(given.get("thread")):
                return ""
            return ", ".join(filter(None, [self._past.moment(None), _phase()]))
        return getattr(self._past, name)(**given)

    def without_past(self, thread: int) -> str:
        """The reason why a thread, as the protocol numbers it, has none; "" where it has one."""
        if self._past is None:
            return self._no_past
        found = _thread_of(thread)
        if found is None:
            return f"there is no thread {thread}"
        if found is threading.main_thread():
            return ""
        return f"the past of thread {found.name} is not recorded: only the main thread's is"

    def view(self, name: str, of: dict[str, Any], given: dict[str, Any]) -> Any:
        """The part or the figures of a tensor that a view of the editor shows."""
        from opstep.debuggee import viewing

        return viewing.answer(name, of, given, self._past)

    def nan_report(self) -> dict[str, Any]:
        """That of the NaN that the script stopped at last, for a view."""
        watching = sys.modules.get("opstep.frontends.torch.debugging.watching")
        if watching is None or watching.latest is None:
            raise RuntimeError("the program is not stopped at a NaN: which tensor?")
        from opstep.frontends.torch.debugging import nan_report

        return nan_report.of_finding(watching.latest)

    def _stopped_frame(self) -> Any:
        """The innermost of the script's own in the main thread."""
        frame = sys._current_frames().get(_MAIN)
        while frame is not None and not is_user(frame.f_code.co_filename, self._folders):
            frame = frame.f_back
        return frame

    def _record(self, configuration: dict[str, Any]) -> None:
        """Time travel begins, before the first line of the script."""
        if not configuration.get("timeTravel", True):
            self._no_past = 'the past was not recorded: "timeTravel" is false'
            return
        from opstep.debuggee.past import recorder
        from opstep.debuggee.past.past import MEMORY, Past

        if not recorder.is_built():
            recorder.build_in_background()
            self._no_past = _NOT_BUILT
            return
        memory = int(configuration.get("memory", 0) * 2**30) or MEMORY
        try:
            self._past = Past.begin(list(self._folders), memory)
        except InputError as error:
            self._no_past = str(error)
            return
        expressions.past_value = self._ago

    def _ago(self, expression: str, runs: int) -> Any:
        """In the frame for which pydevd evaluates, or in that of the past."""
        if threading.get_ident() not in (_MAIN, self._thread.ident):
            raise InputError("op.ago: only the past of the main thread is recorded")
        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name == "evaluate_expression":  # of pydevd
                return self._past.ago(expression, runs, frame.f_locals["frame"])
            frame = frame.f_back
        return self._past.ago(expression, runs)

    # --- the script's thread ---

    def _arrived(self, package: str) -> None:
        if package == "jax":
            from opstep.debuggee import graphs

            graphs.watch()
            if self._filters:
                sys.stderr.write(_JAX_IS_NOT_WATCHED)
        if package != "torch":
            return
        if self._past is not None:
            from opstep.frontends.torch.debugging import watching

            self._past.text_of, self._past.children_of = _text, _children
            watching.after_steps(self._past.step_done)
            self._past.watch_writes()
        if self._filters:
            self._watch()
        self._ops.arrived()

    def _watch(self) -> None:
        from opstep.frontends.torch.debugging import watching

        watching.watch(self._filters)

    # --- the channel ---

    def _listen(self) -> None:
        self._socket.bind(address_of(os.getpid()))
        self._socket.listen(1)
        thread = self._thread
        for mark in ("pydev_do_not_trace", "is_pydev_daemon_thread"):  # as pydevd marks its own
            setattr(thread, mark, True)
        thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if user_of(connection) != os.getuid():
                connection.close()
                continue
            with suppress(OSError, ValueError), connection:
                self._stream = connection.makefile("rw", encoding="utf-8", newline="\n")
                for line in self._stream:
                    self._say(self._answered(json.loads(line)))

    def _answered(self, message: dict[str, Any]) -> dict[str, Any]:
        name = str(message.get("call"))
        call: Callable[..., Any] | None = getattr(self, name, None)
        number = message.get("id")
        if call is None or name.startswith("_"):
            return {"id": number, "error": f"{name} is not known in the program's opstep"}
        try:
            return {"id": number, "body": call(**message.get("arguments", {}))}
        except InputError as error:
            return {"id": number, "error": error.diagnostics[0].message}
        except Exception as error:
            return {"id": number, "error": str(error) or type(error).__name__}

    def _say(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()


def _phase() -> str:
    """Of training, by what of PyTorch has called the line at which the main thread stands."""
    frame = sys._current_frames().get(_MAIN)
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        for phase, (prefix, names) in _PHASES.items():
            if module.startswith(prefix) and function in names:
                return phase
        frame = frame.f_back
    return ""


def _is_of_main(thread: int | None) -> bool:
    """Whether what a thread does is a part of what the main one does: of autograd's own threads,
    which Python did not start, while the main one waits in a backward.
    """
    found = _thread_of(thread)
    if isinstance(found, threading._DummyThread):
        return _phase() == "backward"
    return found in (None, threading.main_thread())


def _thread_of(number: int | None) -> threading.Thread | None:
    """By its number in the protocol."""
    if number is None:
        return None
    return next((t for t in threading.enumerate() if _number_of(t) == number), None)


def _number_of(thread: threading.Thread) -> int | None:
    """As debugpy gave it to clients."""
    known = sys.modules["_pydevd_bundle._debug_adapter.pydevd_base_schema"].BaseSchema
    id = sys.modules["_pydevd_bundle.pydevd_constants"].get_thread_id(thread)
    return known._obj_id_to_dap_id.get(id)


def _text(value: Any) -> str:
    """Of a value of the past, as Variables show it in the present."""
    from opstep.debuggee.past import kinds, texts
    from opstep.frontends.torch.debugging import values

    return values.text_of(value) if kinds.is_tensor(type(value)) else texts.text_of(value)


def _children(value: Any) -> list[tuple[str, Any]]:
    from opstep.debuggee.past import kinds, texts
    from opstep.frontends.torch.debugging import values

    if not kinds.is_tensor(type(value)):
        return texts.children_of(value)
    found = values.children_of(value).items()  # gradients are not kept with their tensors
    return [(name, child) for name, child in found if name not in ("grad", "grad_fn")]
