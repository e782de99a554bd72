"""Ops that no program names: those for ``<-`` and ``assert``, and copies of old versions.

They are not in `OPS`. Their kernels belong to the device (`device.cpu.internal`), which this module
must not import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Assert, Source
from opstep.runtime.ir.op import AttrSpec, Op, OperandSpec, Traits
from opstep.runtime.ir.types import TensorType, i64

STATUS = TensorType(i64, ())  # the run's status: 0, or the code of the assert that failed first
ELSEWHERE = -1  # a status: an assert of another rank failed
FLAGS = TensorType(i64, (2,))  # not 0 where a tensor has a NaN, and where it has an infinity


def takes_effect(status):
    """Whether an update of a run with that status is made. Kernels call it."""
    return status == 0


def status_behind(status, condition, code):
    """The status of a run after an assert: the code of the first that fails. Kernels call it."""
    return code if condition == 0 and status == 0 else status


class PlanOp(Op):
    """Base of ops that only plans have. `is_taken` takes the arguments of `cuda` and returns
    whether there are kernels for them; None where there always are.
    """

    family = "internal"
    grad = None
    is_taken: ClassVar[Any] = None


class Described:
    """Base of frozen dataclasses that say what a step of several ops computes, without shapes:
    those with equal texts share a kernel. `text`: the fields, an op by its name.
    """

    @cached_property
    def text(self) -> str:
        values = (getattr(self, name) for name in self.__dataclass_fields__)  # pyright: ignore
        return repr(tuple(v.name if isinstance(v, type) else v for v in values))

    def __repr__(self) -> str:
        return self.text


class update(PlanOp):
    """Copies `value` over a named tensor, unless the run's status says that an assert failed."""

    name = "update"
    operands = (
        OperandSpec("value", "T", "T", False, False),
        OperandSpec("status", "I", "I", False, False),
    )
    results = ("tensor",)
    traits = Traits(moves=True)


class assert_(PlanOp):
    """Sets the run's status to `code` if `condition` is false and no assert failed before."""

    name = "assert"
    operands = (
        OperandSpec("condition", "B", "B", False, False),
        OperandSpec("status", "I", "I", False, False),
    )
    attrs = (AttrSpec("code", "int", True, None), AttrSpec("message", "str", True, None))
    results = ("status",)


class snapshot(PlanOp):
    """A copy of a named tensor's old version, for steps that read it after its update."""

    name = "snapshot"
    operands = (OperandSpec("x", "T", "T", False, False),)
    traits = Traits(moves=True)


class statistics(PlanOp):
    """Figures of a tensor (`runtime.statistics`), taken where `enabled` is not 0.

    `filled`: memory was filled with the NaN payload, so elements never written can be told.
    """

    name = "statistics"
    operands = (
        OperandSpec("x", "T", "T", False, False),
        OperandSpec("enabled", "I", "I", False, False),
    )
    attrs = (AttrSpec("filled", "bool", True, None),)
    results = ("record",)
    traits = Traits(moves=True)


class flag(PlanOp):
    """Sets `flags` (see `FLAGS`) where `x` has a NaN or an infinity; else leaves them as they are.

    So one look at them after a step covers all activations of its plan.
    """

    name = "flag"
    operands = (OperandSpec("x", "T", "T", False, False),)
    results = ("flags",)
    traits = Traits(moves=True)


TOGETHER = 16  # tensors that one launch reads


class flag_several(PlanOp):
    """`flag` of several tensors of one dtype in one launch. `rows`: the row of flags of each; only
    as many operands are used as there are rows.
    """

    name = "flag_several"
    operands = tuple(OperandSpec(f"x{k}", "T", "T", False, False) for k in range(TOGETHER))
    attrs = (AttrSpec("rows", "ints", True, None),)
    results = ("flags",)
    traits = Traits(moves=True)


class AssertSite(NamedTuple):
    """An assert, and the graph and text that it is in."""

    statement: Assert
    graph: str
    source: Source | None


@dataclass(slots=True)
class Asserts:
    """The codes of all asserts that plans of one program may write into a run's status."""

    sites: list[AssertSite] = field(default_factory=list)
    _codes: dict[int, int] = field(default_factory=dict)  # id of a statement of a site -> code

    def code(self, statement: Assert, graph: str, source: Source | None) -> int:
        """The code of an assert, from 1; always the same for the same statement."""
        code = self._codes.get(id(statement))
        if code is None:
            self.sites.append(AssertSite(statement, graph, source))
            code = self._codes[id(statement)] = len(self.sites)
        return code

    def site(self, code: int) -> AssertSite:
        """The assert that a non-zero status names."""
        return self.sites[code - 1]

    def error(self, code: int) -> OpstepError:
        """The error for a non-zero status, with the line that an importer took the assert from."""
        statement, _, source = self.site(code)
        at = statement.at
        message = f"assert failed: {statement.message}"
        hint = f"it is from {at.file}:{at.line}" if at else ""
        return OpstepError(message, span=statement.condition.span, source=source, hint=hint)
