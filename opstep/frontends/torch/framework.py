"""PyTorch in a script: its modules run on opstep, and ops beside them are watched."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opstep.frontends.missing import source_line
from opstep.frontends.scripts.frames import is_hidden, own_frames
from opstep.frontends.scripts.frameworks import Framework
from opstep.frontends.scripts.options import Hunting
from opstep.frontends.scripts.watching import told
from opstep.frontends.torch.eager.findings import ScriptFinding
from opstep.frontends.torch.eager.framework import excepted
from opstep.frontends.torch.eager.names import Names
from opstep.frontends.torch.eager.report import report
from opstep.frontends.torch.eager.session import Session
from opstep.frontends.torch.errors import cause
from opstep.frontends.torch.importing import check_installed
from opstep.frontends.torch.module_calls import ModuleCalls
from opstep.frontends.torch.outstanding import outstanding
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Blank, Wording

if TYPE_CHECKING:
    from opstep.hunting.report import Hunt

_GRAPHS = ("forward", "backward", "inference")
_TWICE = Wording(
    "a compiled module has no second derivatives, which is PyTorch's limit: with ",
    Argument("module", Blank("PATTERN", "pattern")), " only others are compiled",
)  # fmt: skip
_OTHERS = Wording(
    "with ", Argument("module", Blank("PATTERN", "pattern")), " only other modules are compiled"
)  # fmt: skip
_NOWHERE = None, None


class PyTorch(Framework):
    part = "module"

    def __init__(self, options: dict[str, Any], patterns: Sequence[str]):
        check_installed()
        self._stack = ExitStack()
        self._beside: _Beside | None = None
        if isinstance(hunting := options.get("hunt"), Hunting):
            self._beside = _Beside(hunting)
            options = options | {"hunt": self._beside.hunting}
        self._calls = ModuleCalls(options, patterns)

    def __enter__(self) -> PyTorch:
        self._stack.enter_context(self._calls)
        if self._beside is not None:
            self._stack.enter_context(self._beside.session)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def called(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._calls.called

    @property
    def compiled(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._calls.compiled

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._calls.count

    @property
    def names(self) -> set[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._calls.names

    def leave(self) -> None:
        self._calls.leaves = True
        if self._beside is not None:
            self._beside.session.leave()

    def settle(self, error: BaseException | None) -> None:
        """Flags of calls that a GPU was still at; what the script leaves."""
        outstanding.settle()
        if self._beside is not None:
            self._beside.settle(error)

    def excepted(self) -> str:
        return self._beside.excepted() if self._beside is not None else ""

    def unwatched(self) -> set[str]:
        watches = self._beside is not None and self._beside.session.is_watching
        return set() if watches else self._calls.unwatched

    def cause_of(self, error: Exception) -> OpstepError | None:
        """The error of ours that PyTorch raised another one for."""
        inner = getattr(error, "inner_exception", None)  # torch._dynamo.exc.BackendCompilerFailed
        if isinstance(inner, OpstepError):
            return inner
        if type(inner) is not RuntimeError:
            return None
        at = own_frames(error.__traceback__)
        while at is not None and at.tb_next is not None and not is_hidden(at.tb_next.tb_frame):
            at = at.tb_next
        source, span = source_line(at.tb_frame.f_code.co_filename, at.tb_lineno) if at else _NOWHERE
        what = f"PyTorch cannot compile what is called here: {cause(inner)}"
        return InputError(what, span=span, source=source, hint=_OTHERS)

    def advice(self, error: Exception) -> Wording | None:
        return _TWICE if "does not currently support double backward" in str(error) else None

    def outside(self, found: Hunt) -> str:
        given = found.first.given if found.first and found.graph in _GRAPHS else ""
        name = given.removeprefix("input ")
        if name == given:
            return ""
        if self._beside is not None and (note := self._beside.origin(name)):
            return f"note: {note}"
        if name.startswith("grad_"):
            return "note: the gradient comes from outside of modules"
        return "note: the script passes it as an argument. Look at the data"


class _Beside:
    """Watches the ops beside compiled modules. `hunting`: of these, which leave the ops to it."""

    def __init__(self, hunting: Hunting):
        self._report = hunting.report or (lambda found: None)
        # On a GPU it waits for each op: what came out of a module is not in a log of ops.
        self.session = session = Session(
            self._found, criteria=hunting.criteria, masked=hunting.masked, known=hunting.known,
            waits=True, beside=True,
        )  # fmt: skip
        within = session.watcher.within if session.is_watching else hunting.within
        self.hunting = replace(hunting, within=within, defers=session.hooks.defer)

    def _found(self, found: ScriptFinding) -> None:
        outstanding.settle()  # a module that gave the bad value is reported first
        self._report(found)

    def settle(self, error: BaseException | None) -> None:
        """The script is over: a bad value that no op made is reported if no module gave it."""
        self.session.end(error)
        came = self.session.came
        if came and not (told or self.hunting.own or self.hunting.known or self.session.found):
            self._report(came)

    def excepted(self) -> str:
        return "".join(f"; {text}" for text in [*excepted(self.session), *self.session.notes])

    def origin(self, name: str) -> str:
        """The origin of an input that a module was given bad, as far as it is known."""
        t = getattr(self.hunting.given.get(name), "owner", None)
        if t is None:
            return ""
        if made := self.session.origin(t, "what the module was given"):
            return f"it was made outside of compiled modules:\n{report(made)}"
        parameter = Names().of(t)
        return parameter and f"{parameter} was bad before this call: it was made or loaded so"
