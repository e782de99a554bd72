"""Names of ATen ops and modules as a person writes them, and the ops that PyTorch has, imported
or not.

``softmax`` stands for ``_softmax``, too, and ``relu`` for ``relu_``; a name that begins or ends in
an underscore stands for itself. A namespace and an overload narrow it: ``aten::add.Tensor``.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from opstep.runtime.ir.diagnostics import did_you_mean

_LISTED = Path("packaged", "ATen", "native", "native_functions.yaml")
_FUNCTION = re.compile(r"^- func: ([\w.]+)\(", re.MULTILINE)
_WRITTEN = re.compile(r"(?:(\w+)::)?(\w+)(?:\.(\w+))?$")
_PREFIXES = ("foreach_", "native_", "linalg_")


class Pattern(NamedTuple):
    space: str
    name: str
    overload: str

    @classmethod
    def of(cls, text: str) -> Pattern | None:
        """None for what is no name."""
        found = _WRITTEN.match(text.strip())
        return cls(found[1] or "", found[2], found[3] or "") if found else None

    def matches(self, qualified: str, overload: str) -> bool:
        space, _, name = qualified.partition("::")
        if (self.space and space != self.space) or (self.overload and overload != self.overload):
            return False
        plain = name.strip("_")
        return self.name in (name, plain, *(plain.removeprefix(p) for p in _PREFIXES))


class ModulePath(NamedTuple):
    """``module blocks.0.attn``: of a module in the one that contains it and all others."""

    path: str

    @classmethod
    def of(cls, text: str) -> ModulePath | None:
        word, _, path = text.strip().partition(" ")
        return cls(path.strip()) if word == "module" and path.strip() else None


def complaint(pattern: Pattern) -> str:
    """Why no op of this name stops the script; "" where one does."""
    ops = _ops()
    if not ops:
        return "whether PyTorch has such an op is known once it is imported"
    if any(pattern.matches(*op) for op in ops):
        return ""
    hint = did_you_mean(pattern.name, {name.partition("::")[2].strip("_") for name, _ in ops})
    return f"PyTorch has no op {pattern.name}" + (f"; {hint}" if hint else "")


def _ops() -> frozenset[tuple[str, str]]:
    """Names and overloads; of a program that has not imported PyTorch yet, PyTorch's own."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "compile"):  # it comes last: all of PyTorch is there
        return _listed()
    return frozenset(_split(op) for op in torch._C._dispatch_get_all_op_names())


@cache
def _listed() -> frozenset[tuple[str, str]]:
    """From the file that PyTorch's ops are generated of."""
    spec = find_spec("torchgen")
    folder = next(iter(spec.submodule_search_locations or ()), "") if spec is not None else ""
    path = Path(folder, _LISTED)
    text = path.read_text("utf-8") if folder and path.is_file() else ""
    return frozenset(_split(f"aten::{op}") for op in _FUNCTION.findall(text))


def _split(op: str) -> tuple[str, str]:
    name, _, overload = op.partition(".")
    return name, overload
