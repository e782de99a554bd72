"""Ops of other libraries, run by the library's own kernel on memory of ours (`ir.foreign`).

Who runs a program allows it: a text alone has no library imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from opstep.runtime.device.errors import error_at, error_in
from opstep.runtime.device.routine import Enqueue, PreparedCall
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.foreign import LIBRARIES
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.plan.plan import Plan, Step

# Modules that run the ops of a library, `Library`, by the first part of their names. They are
# imported when such an op is run: nothing here depends on them.
MODULES = {"torch": "opstep.frontends.torch.kernels"}


class ForeignCall(NamedTuple):
    """One op on concrete types. `results` are contiguous, and none is an operand's memory."""

    name: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    attrs: Mapping[str, Any]
    on_gpu: bool = False

    @property
    def workspace(self) -> int:
        return 0

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        return library_of(self.name).bind(self, pointers)


class Library(Protocol):
    def check(self, call: ForeignCall) -> None:
        """Raises `InputError` where the library cannot run it, or is not there."""
        ...

    def bind(self, call: ForeignCall, pointers: Sequence[int]) -> Enqueue:
        """The call with tensors at these addresses, operands first. What it enqueues raises
        `OpstepError`.
        """
        ...


def library_of(name: str) -> Library:
    """The function that runs an op. Raises `InputError` where the library cannot be imported."""
    library = name.partition(".")[0]
    try:
        module: Any = importlib.import_module(MODULES[library])
    except ImportError as error:
        raise InputError(
            f"{name} is an op of {LIBRARIES[library]}, which cannot be imported: {error}",
            hint=f"pip install 'opstep[{library}]'",
        ) from None
    return module


def prepared(step: Step, types: Sequence[TensorType | None], on_gpu: bool) -> PreparedCall:
    """The call of a step, given the types of its operands, then of its results."""
    known = tuple(t for t in types if t is not None)
    count = len(step.operand_types)
    call: Any = ForeignCall(step.op.name, known[:count], known[count:], step.attrs, on_gpu)
    return PreparedCall(call, tuple(range(len(known))), 0)


def check_foreign(plan: Plan, allowed: str | None, on_gpu: bool) -> None:
    """Complains of ops of other libraries in a plan that is to be run, at their statements: those
    of a library that is not `allowed`, and those that it cannot run.
    """
    for number in plan.foreign:
        step = plan.steps[number]
        name, values = step.op.name, plan.values
        library = name.partition(".")[0]
        if library != allowed:
            title = LIBRARIES[library]
            hint = Wording(Argument("fallback", library), f" lets {title} run it")
            raise error_at(plan, step, f"{name} is an op of {title}", InputError, hint)
        types = [values[v].type for v in (*step.operands, *step.results) if v is not None]
        try:
            call: Any = prepared(step, types, on_gpu).routine
            library_of(name).check(call)
        except OpstepError as error:
            raise error_in(plan, step, error) from None
