"""What cannot be imported, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opstep.runtime.ir.errors import InputError


class Untranslatable(Exception):
    """Raised by a rule or a conversion: this op, with these arguments, has no counterpart."""


class Disagreement(Untranslatable):
    """Our result has another shape than PyTorch says. One of the two is wrong, so PyTorch's
    definition by other ops is not tried (2.11 has a wrong shape, and definition, of LSTM).
    """


class Missing(NamedTuple):
    """An ATen op that could not be translated, and where the model calls it."""

    op: str  # "aten.nonzero.default"
    reason: str
    file: str
    line: int  # 0 where it is not known


class ImportFailed(InputError):
    """Some ops have no counterpart; `missing` lists every place."""

    def __init__(self, missing: Sequence[Missing]):
        self.missing = tuple(missing)
        super().__init__(_summary(missing))


def _summary(missing: Sequence[Missing]) -> str:
    """One line for each op and reason, with its first place and how often it occurs."""
    groups: dict[tuple[str, str], list[Missing]] = {}
    for m in missing:
        groups.setdefault((m.op, m.reason), []).append(m)
    lines = []
    for (op, reason), found in groups.items():
        first = next((m for m in found if m.line), found[0])
        place = f"{first.file}:{first.line}: " if first.line else ""
        times = f" ({len(found)} times)" if len(found) > 1 else ""
        lines.append(f"{place}{op}: {reason}{times}")
    noun = "op" if len(groups) == 1 else "ops"
    return f"{len(groups)} {noun} of the model cannot be translated:\n  " + "\n  ".join(lines)
