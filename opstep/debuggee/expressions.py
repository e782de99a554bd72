"""``op`` in conditions, watches and the console of a Python session: functions of tensors that
name what a person looks for.

    op.isnan(x)    op.absmax(x)    op.diff(a, b)    op.ago("loss", 1)

It is the last place where Python looks for the name: a variable of the script's comes first.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

from opstep.debuggee.files import OURS


class Functions:
    """All but `ago` take tensors on any device, or what `torch.as_tensor` takes."""

    def isnan(self, x: Any) -> bool:
        """Whether an element is NaN."""
        return bool(_tensor(x).isnan().any())

    def isinf(self, x: Any) -> bool:
        """Whether an element is an infinity."""
        return bool(_tensor(x).isinf().any())

    def isfinite(self, x: Any) -> bool:
        """Whether all elements are finite."""
        return bool(_tensor(x).isfinite().all())

    def absmax(self, x: Any) -> float:
        """The largest magnitude, NaN if there is one."""
        return float(_tensor(x).abs().max())

    def mean(self, x: Any) -> float:
        """In f64."""
        return float(_tensor(x).double().mean())

    def std(self, x: Any) -> float:
        """Of the population, in f64."""
        return float(_tensor(x).double().std(correction=0))

    def diff(self, a: Any, b: Any) -> float:
        """The largest difference of two elements, in f64."""
        return float((_tensor(a).double() - _tensor(b).double()).abs().max())

    def ago(self, x: Any, runs: int = 1) -> Any:
        """The value of an expression, which is text or a variable, when this line ran before."""
        return past_value(x if isinstance(x, str) else _name_of(x), runs)

    def __getattribute__(self, name: str) -> Any:
        """A script that has no ``op`` fails as it does without a debugger."""
        if name in _NAMES:
            return _unseen(object.__getattribute__(self, name))
        if name in _OF_STOP:
            return _value_of_stop(name)
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise NameError("name 'op' is not defined", name="op")

    def __dir__(self) -> list[str]:
        return sorted(_NAMES | _OF_STOP)

    def __repr__(self) -> str:
        return f"functions of opstep: {', '.join(sorted(_NAMES))}"


_NAMES = frozenset(name for name in vars(Functions) if not name.startswith("_"))


_OF_STOP = frozenset(("result", "operands"))  # of the op at which the script stands


def _value_of_stop(name: str) -> Any:
    asking = sys.modules.get("opstep.frontends.torch.debugging.asking")
    current = asking.asking.current if asking is not None else None
    if current is not None:
        return getattr(current, name)
    watching = sys.modules.get("opstep.frontends.torch.debugging.watching")
    if watching is None or watching.standing is None:
        raise NameError(f"op.{name}: the program does not stand at an op", name="op")
    if name == "result":
        raise NameError("op.result: no result is kept at a stop for NaN", name="op")
    return watching.operands()


def _tensor(x: Any) -> Any:
    return sys.modules["torch"].as_tensor(x).detach()


def past_value(expression: str, runs: int) -> Any:
    """Replaced where the past is recorded."""
    raise ValueError("the past is not recorded")


def _name_of(value: Any) -> str:
    """The variable that has this value, of those that the expression can see."""
    frame = caller()
    for names in (frame.f_locals, frame.f_globals):
        for name, found in names.items():
            if found is value:
                return name
    raise ValueError('no variable has this value: write the expression as text, op.ago("x + 1")')


def caller() -> Any:
    """The frame of the expression that calls one of the functions here."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


def _unseen(function: Any) -> Any:
    def call(*tensors: Any) -> Any:
        if "torch" not in sys.modules:
            return function(*tensors)
        from opstep.frontends.torch.debugging import watching

        with watching.unseen():
            return function(*tensors)

    return call


def install() -> None:
    """From now on the name is known."""
    builtins.op = Functions()  # pyright: ignore[reportAttributeAccessIssue]
