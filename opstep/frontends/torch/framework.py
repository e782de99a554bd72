"""PyTorch in a script: its modules run on opstep, and its losses are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from opstep.frontends.missing import source_line
from opstep.frontends.scripts.frames import is_hidden, own_frames
from opstep.frontends.scripts.frameworks import Framework
from opstep.frontends.scripts.options import Hunting
from opstep.frontends.torch import scaling
from opstep.frontends.torch.errors import cause
from opstep.frontends.torch.importing import check_installed
from opstep.frontends.torch.losses import watched
from opstep.frontends.torch.module_calls import ModuleCalls
from opstep.frontends.torch.outstanding import outstanding
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Blank, Wording

if TYPE_CHECKING:
    from opstep.hunting.report import Hunt

UNSEEN = (
    "PyTorch runs that, unseen: use a module (nn.CrossEntropyLoss, not F.cross_entropy), "
    "or write one for it"
)
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
        self._calls = ModuleCalls(options, patterns)
        self._stack = ExitStack()

    def __enter__(self) -> PyTorch:
        self._stack.enter_context(self._calls)
        hunting = self._calls.options.get("hunt")
        if hunting:
            self._stack.enter_context(scaling.watched())
        if isinstance(hunting, Hunting) and hunting.tell_loss is not None:
            self._stack.enter_context(watched(hunting.tell_loss, hunting.nan_only))
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

    def settle(self) -> None:
        """Flags of calls that a GPU was still at; what waits for a scaler."""
        outstanding.settle()
        scaling.scaling.settle()

    def excepted(self) -> str:
        skipped = scaling.scaling.skipped
        steps = "1 step" if skipped == 1 else f"{skipped:,} steps"
        return f" but in {steps} that GradScaler skipped" if skipped else ""

    def unwatched(self) -> set[str]:
        return self._calls.unwatched

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
        if name.startswith("grad_"):
            return (
                "note: the gradient comes from outside of modules: from what the script does with "
                f"this module's result.\n  {UNSEEN}"
            )
        array = found.inputs.get(name)
        if array is not None and (parameter := self._calls.parameter(name, array)):
            if self._calls.count <= 1:
                return f"note: {parameter} was bad before the first call: it was made or loaded so"
            step = f", of step {found.step:,}" if found.step else ""
            return (
                f"note: {parameter} was bad before this call{step}: the optimizer or the script "
                "wrote it, or it was loaded so.\n"
                "  If the optimizer did, lower the learning rate, or clip the gradients"
            )
        return (
            "note: it comes from outside of modules: the script passes it as an argument.\n"
            "  Look at the data; or write a module for what computes it"
        )
