"""What ops are called elsewhere: the names of PyTorch, NumPy and ONNX that their `source` gives."""

from __future__ import annotations

import re
from functools import cache

from opstep.runtime.ir.op import OPS

# torch.clamp, torch.nn.functional.hardtanh and relu6, ONNX Clip, ATen slice.Tensor
_NAMED = re.compile(r"\b(?:(ATen )|ONNX |XLA |torch\.|numpy\.)([\w.]+(?: and [\w.]+)*)")


def ops_by_foreign_name(name: str) -> tuple[str, ...]:
    """The ops that another library calls so, whatever the case and the underscores."""
    return _index(len(OPS)).get(_key(name), ())


def _key(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _index(_count: int) -> dict[str, tuple[str, ...]]:
    """Ops by their names elsewhere, those first that ATen calls so; made anew where more ops have
    been declared.
    """
    found: dict[str, dict[str, bool]] = {}  # and whether it is not ATen's own name
    for op in OPS.values():
        names = {_key(op.name): False}
        for match in _NAMED.finditer(op.source):
            for name in match[2].split(" and "):
                parts = name.strip(".").split(".")
                key = _key(parts[0] if match[1] else parts[-1])
                names[key] = names.get(key, True) and not match[1]
        for name, other in names.items():
            found.setdefault(name, {})[op.name] = other
    return {
        name: tuple(sorted(ops, key=lambda op, ops=ops: (ops[op], op)))
        for name, ops in found.items()
    }
