"""What cannot be imported, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.errors import InputError

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


class ImportFailed(InputError):
    """Some nodes have no counterpart: one message for each op and reason, with its first node;
    `missing` lists every one.
    """

    def __init__(self, path: str, missing: Sequence[Missing]):
        self.missing = tuple(missing)
        groups: dict[tuple[str, str], list[Missing]] = {}
        for m in missing:
            groups.setdefault((m.op, m.reason), []).append(m)
        super().__init__(_diagnostic(path, found) for found in groups.values())


def _diagnostic(path: str, found: Sequence[Missing]) -> Diagnostic:
    first = found[0]
    times = f" ({len(found)} times)" if len(found) > 1 else ""
    message = f"{path}: {first.node}: {first.op} cannot be imported: {first.reason}{times}"
    hint = ""
    if first.reason == OF_DATA and first.op not in FAMILIES:
        hint = "give it at import, where it is an input: opstep.from_onnx(model, constants={…})"
    return Diagnostic("error", message, hint=hint)
