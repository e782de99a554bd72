"""What a request is: one function, decorated, beside the capability that it stands for.

    @request("scopes")
    def scopes(session: Session, frame_id: int) -> dict[str, Any]:      # its argument frameId
        debugger = session.debugger                     # there, as the state is checked before
        return {"scopes": [...]}

The arguments come checked by their annotations (`checking.py`); a parameter `arguments` has them
all, as the dataclass that annotates it. What is returned is
the response's body: a dict in the protocol's names, or a dataclass; None for none. An error is
raised as `DapError`. What must happen behind the response (events, going on) is given to
`session.after`. What is advertised by `initialize` is what is declared here and nothing else.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, make_dataclass
from functools import cache
from typing import Any, get_type_hints

from opstep.dap.checking import Mismatch, check


class State(enum.Enum):
    """Where a session stands; the value completes "… while …" in messages."""

    NEW = "nothing was said yet: initialize comes first"
    READY = "nothing is launched: send launch or attach"
    CONFIGURING = "the session is being configured: configurationDone ends that"
    IDLE = "no graph is running"  # attached, and the Python program runs none
    RUNNING = "the run is under way: pause it first"
    STOPPED = "the run is stopped"
    ENDED = "the run has ended"


ANY = frozenset(State)
INITIALIZED = ANY - {State.NEW}  # behind initialize
LAUNCHED = INITIALIZED - {State.READY}  # behind launch or attach
STOPPED = frozenset({State.STOPPED})

# Ids of errors (`Message.id`): clients may tell them apart.
BAD_ARGUMENTS, WRONG_STATE, UNKNOWN_REQUEST, FAILED, INTERNAL, PROGRAM_ERROR = range(1001, 1007)
MACHINE = 1007  # it cannot do it: out of memory, no such device


NO_ANSWER = object()  # returned by a handler whose request somebody else answers


class DapError(Exception):
    """A request cannot be answered: becomes an error response.

    `text`: one sentence for the user. `id`: one of the numbers above, or a family's own from 2000
    on. `show`: whether the client shall show it in a window (for what the user asked for by hand),
    and not only where the request came from. `short`: the response's `message`, for machines.
    `problems`: places in files, for clients that list such.
    """

    def __init__(
        self, text: str, id: int = FAILED, *, show: bool = False, short: str = "",
        problems: list[dict[str, Any]] | None = None,
    ):  # fmt: skip
        super().__init__(text)
        self.text = text
        self.id = id
        self.show = show
        self.short = short or text
        self.problems = problems


class Cancelled(DapError):
    """The client cancelled the request: `session.check_cancelled` raises it."""

    def __init__(self) -> None:
        super().__init__("cancelled", short="cancelled")


@dataclass(frozen=True)
class Request:
    """A declared request. `handler` takes the session, and what `arguments` has: as parameters, or
    as one where it `takes_all`.

    `states`: where it may come. `wire`: it is handled at once by the thread that reads (it must be
    quick and must not touch the debuggee); others run on the thread that owns the debuggee,
    between two points where the run goes on.
    """

    command: str
    handler: Callable[..., Any]
    arguments: type
    takes_all: bool
    states: frozenset[State]
    wire: bool
    capabilities: Mapping[str, Any]
    custom: bool

    def checked(self, arguments: Any) -> dict[str, Any]:
        """What the handler gets behind the session. Raises `DapError`."""
        try:
            return checked(self.arguments, self.takes_all, arguments)
        except Mismatch as error:
            raise DapError(f"{self.command}: {error}", BAD_ARGUMENTS) from None

    def check_state(self, state: State) -> None:
        """Raises `DapError` where the request may not come now."""
        if state not in self.states:
            short = "notStopped" if state is State.RUNNING else ""
            text = f"{self.command} is not possible while {state.value}"
            raise DapError(text, WRONG_STATE, short=short)


_requests: dict[str, Request] = {}


def request(
    command: str,
    *,
    capability: str | Sequence[str] = (),
    advertises: Mapping[str, Any] | None = None,
    states: frozenset[State] = STOPPED,
    wire: bool = False,
    custom: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the function below as the handler of `command`.

    `capability`: names that `initialize` answers with true; `advertises`: such with other values.
    `custom`: not of the protocol, but one of those that docs/dap.md describes.
    """
    names = [capability] if isinstance(capability, str) else capability
    capabilities = {**dict.fromkeys(names, True), **(advertises or {})}

    def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
        if command in _requests:
            raise ValueError(f"request {command} is declared twice")
        kind, whole = arguments_of(handler)
        _requests[command] = Request(
            command, handler, kind, whole, states, wire, capabilities, custom
        )
        return handler

    return declare


@dataclass(frozen=True)
class TensorArguments:
    """`expression`: a tensor of a frame, the innermost one if none is named. `memory_reference`:
    that of a tensor which the expression calls ``value``, whether it has a name or not.
    """

    expression: str
    frame_id: int | None = None
    memory_reference: str | None = None


@dataclass(frozen=True)
class HistogramArguments(TensorArguments):
    bins: int = 64
    low: float | None = None
    high: float | None = None


def arguments_of(handler: Callable[..., Any]) -> tuple[type, bool]:
    """The class of a handler's arguments, and whether it takes them as one."""
    # The session's class is imported for type checkers alone: it imports this module.
    hints = get_type_hints(handler, {"Session": Any, **handler.__globals__})
    _, *taken = inspect.signature(handler).parameters.values()
    if [p.name for p in taken] == ["arguments"]:
        return hints["arguments"], True
    members = [(p.name, hints[p.name], _default(p)) for p in taken]
    return make_dataclass("Arguments", members), False


def checked(kind: type, takes_all: bool, arguments: Any) -> dict[str, Any]:
    """Arguments as a handler takes them, see `arguments_of`. Raises `Mismatch`."""
    found = check(kind, {} if arguments is None else arguments, "arguments")
    return {"arguments": found} if takes_all else vars(found)


def _default(parameter: inspect.Parameter) -> Any:
    is_missing = parameter.default is parameter.empty
    return field(default=MISSING if is_missing else parameter.default)


@cache
def requests() -> Mapping[str, Request]:
    """Every request by its command; imports the modules of `opstep.dap.requests`."""
    package = importlib.import_module("opstep.dap.requests")
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    return _requests


def capabilities() -> dict[str, Any]:
    """What `initialize` answers: what the requests say, together."""
    return {k: v for declared in requests().values() for k, v in declared.capabilities.items()}
