"""Names for what AOTAutograd's graphs take and give: those of parameters and of arguments."""

from __future__ import annotations

import re
from typing import Any

from torch import fx

from opstep.frontends.torch.hunting import KeptValues

_KEY = re.compile(r"\['?(\w+)'?\]|\.(\w+)|^(\w+)")
_STORES = {"_modules", "_parameters", "_buffers", "__dict__"}
_INNER = ("output", "grad_of", "mutated_input", "base_of", "base")


def arguments_of(module: fx.GraphModule) -> list[str]:
    """What the inputs of a graph that Dynamo made are called: ``fc.weight``, ``x``."""
    return [_argument(node) for node in module.graph.nodes if node.op == "placeholder"]


def _argument(node: fx.Node) -> str:
    known = node.meta.get("grapharg")
    source = getattr(known, "source", None) or getattr(node, "_dynamo_source", None)
    try:
        path = [next(filter(None, m)) for m in _KEY.findall(source.name)]  # pyright: ignore
    except Exception:  # of sources that have no name
        return node.name
    if path[:1] and path[0] in "LG":
        del path[0]
    if not _STORES.isdisjoint(path):
        del path[0]  # the variable that holds the model
    return ".".join(p for p in path if p not in _STORES) or node.name


class Labels:
    """Those of one model's graphs. AOTAutograd says (in ``desc``) which argument or output a
    placeholder stands for.
    """

    def __init__(self, arguments: list[str]):
        self.arguments = arguments
        self.saved: dict[str, str] = {}  # what the forward calls what it keeps, by node
        self.kept = KeptValues()
        self.values: dict[str, str] = {}  # what it calls all its values, by node

    def placeholder(self, node: fx.Node) -> str:
        described = node.meta.get("desc")
        if described is None:
            return self.saved.get(node.name, node.name)
        return self._of(described) or node.name

    def result(self, described: Any) -> str:
        """ "" for a result that is best called after the op or the variable that it is from."""
        wanted = type(described).__name__ in ("GradAOTOutput", "InputMutationAOTOutput")
        return self._of(described) if wanted else ""

    def _of(self, described: Any) -> str:
        """What one of ``torch._functorch._aot_autograd.descriptors`` is called."""
        inner = next((getattr(described, n) for n in _INNER if hasattr(described, n)), None)
        around = self._of(inner) if inner is not None else ""
        match type(described).__name__:
            case "PlainAOTInput" if described.idx < len(self.arguments):
                return self.arguments[described.idx]
            case "ParamAOTInput" | "BufferAOTInput":
                return described.target
            case "PlainAOTOutput":
                return f"output_{described.idx}" if described.idx else "output"
            case "TangentAOTInput" | "GradAOTOutput":
                return f"grad_{around}"
            case "InputMutationAOTOutput":
                return f"new_{around}"
        return around
