"""Breakpoints that opstep itself decides: conditions in Python, and which of the times count."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import Any

_HIT = re.compile(r"\s*(%|==|>=|<=|>|<)?\s*([1-9]\d{0,8})\s*$")
_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "==": eq, ">=": ge, "<=": le, ">": gt, "<": lt, "%": lambda hits, n: hits % n == 0
}  # fmt: skip


@dataclass
class Breakpoint:
    """`pattern`: what it is on. `condition`: Python's, "" for none; `hit`: which of the times
    count, ``5``, ``>= 5``, ``% 2``. `hits`: how often the condition was true.
    """

    id: int
    pattern: Any
    condition: str = ""
    hit: str = ""
    hits: int = 0

    def complaint(self) -> str:
        """Why it will not stop the program; "" if it may."""
        if self.hit and _HIT.match(self.hit) is None:
            return f"{self.hit} is not a hit condition: write 5, >= 5 or % 5"
        try:
            compile(self.condition or "0", "<condition>", "eval")
        except (SyntaxError, ValueError) as error:
            return f"the condition {self.condition} is not Python: {error}"
        return ""

    def meets(self, values: dict[str, Any]) -> tuple[bool, str]:
        """Whether the program stops, where names have these values. And why the condition could
        not be evaluated, which stops it, too.
        """
        if self.condition:
            try:
                with unseen():
                    if not eval(self.condition, dict(values)):
                        return False, ""
            except Exception as error:
                text = f"the condition {self.condition} cannot be evaluated"
                return True, f"{text}: {type(error).__name__}: {error}"
        self.hits += 1
        found = _HIT.match(self.hit)
        return found is None or _COMPARES[found[1] or "=="](self.hits, int(found[2])), ""


def unseen() -> Any:
    """While the block lasts, what is computed is not the script's."""
    watching = sys.modules.get("opstep.frontends.torch.debugging.watching")
    return watching.unseen() if watching is not None else nullcontext()
