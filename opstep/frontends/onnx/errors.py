"""What cannot be imported, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from opstep.frontends import missing
from opstep.runtime.ir.diagnostics import Diagnostic

OF_DATA = "a size depends on data"


# Why whole families of operators have no counterpart, by what their names have.
FAMILIES = {
    "Sequence": "sequences have no counterpart", "Optional": "optional values have no counterpart",
    "String": "strings have no counterpart", "NonMaxSuppression": OF_DATA, "Unique": OF_DATA,
}  # fmt: skip


def refusal(op: str) -> str:
    """Why there is no rule for an operator."""
    return next((why for word, why in FAMILIES.items() if word in op), "there is no op for it")


class Untranslatable(Exception):
    """Raised by a rule: this node, with these inputs and attributes, has no counterpart."""


class Missing(NamedTuple):
    """A node that could not be translated."""

    op: str  # "Unique", "com.microsoft.QMoE"
    reason: str
    node: str  # what the file calls it, or its place


class ImportFailed(missing.ImportFailed):
    """`missing` lists nodes; the message of several that are alike names the first."""

    def __init__(self, path: str, missing: Sequence[Any]):
        self.path = path
        super().__init__(missing)

    def _diagnostic(self, found: Sequence[Any]) -> Diagnostic:
        first = found[0]
        times = f" ({len(found)} times)" if len(found) > 1 else ""
        what = f"{self.path}: {first.node}: {first.op} cannot be imported: {first.reason}{times}"
        hint = ""
        if first.reason == OF_DATA and first.op not in FAMILIES:
            hint = "give it at import, where it is an input: opstep.from_onnx(model, constants={…})"
        return Diagnostic("error", what, hint=hint)
