"""What numba need not do for kernels, whichever target it compiles them for.

Imported only where something is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import types

# Passes over what kernels do not hold (closures, `with`, raised exceptions, arrays), and reports.
# After each one numba looks anew at where every variable is alive.
UNNEEDED = {
    "IRProcessing", "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises",
    "MakeFunctionToJitFunction", "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll",
    "LiteralPropagationSubPipelinePass", "InlineOverloads", "NopythonRewrites", "AnnotateTypes",
    "DumpParforDiagnostics",
}  # fmt: skip

_known: dict[Any, dict[tuple, tuple]] = {}


def needed(passes: list[Any]) -> list[Any]:
    return [p for p in passes if p[0].__name__ not in UNNEEDED]


@contextmanager
def remembering(typing: Any) -> Iterator[None]:
    """Within it, a typing context asks once what an operator gives for operands of some types:
    numba tries all that it knows of an operator each time, those of arrays and texts as well.
    """
    known, ask = _known.setdefault(typing, {}), typing.resolve_function_type

    def resolve(function: Any, args: tuple, keywords: Any) -> Any:
        if type(function) is not types.Function or keywords or not _is_operator(function):
            return ask(function, args, keywords)
        key = (id(function), *args)
        if key not in known:
            known[key] = (ask(function, args, keywords), function)  # whose id is no other's then
        return known[key][0]

    typing.resolve_function_type = resolve
    try:
        yield
    finally:
        del typing.resolve_function_type


def _is_operator(function: Any) -> bool:
    key = function.typing_key
    return key is bool or getattr(key, "__module__", "") == "_operator"
