"""Quantised models that say it with DequantizeLinear, an op of fractions and QuantizeLinear (QDQ):
products become those of integers, as runtimes compute them, and what only picks elements works on
bytes. What is computed is the same, but that nothing is rounded before the result is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.frontends.onnx.rules.registry import MICROSOFT
from opstep.frontends.onnx.values import Known

if TYPE_CHECKING:
    from onnx import NodeProto

BYTES = ("i8", "u8")
INTEGER = {
    "Conv": ("QLinearConv", ""),
    "MatMul": ("QLinearMatMul", ""),
    "Gemm": ("QGemm", MICROSOFT),
}
PICKING = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze")


class _Model(NamedTuple):
    made: dict[str, NodeProto]  # by value
    uses: dict[str, int]
    known: Callable[[str], Any]


def in_integers(
    nodes: Sequence[NodeProto], outputs: Collection[str], known: Callable[[str], Any]
) -> list[NodeProto]:
    """The nodes, with integer products in place of those between dequantised values. `known`: what
    is known of a value, by its name.
    """
    uses = dict.fromkeys(outputs, 1)
    for node in nodes:
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    model = _Model({o: n for n in nodes for o in n.output}, uses, known)
    written: list[NodeProto] = []
    replaced: dict[int, NodeProto] = {}
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            product = model.made.get(node.input[0])
            fused = product and (_fused(model, product, node) or _on_bytes(model, product, node))
            if product is not None and fused is not None:
                replaced |= {id(product): fused, id(node): fused}
    if not replaced:
        return list(nodes)
    for node in nodes:
        fused = replaced.get(id(node))
        if fused is None:
            written.append(node)
        elif node.op_type == "QuantizeLinear":  # its scale is known by then
            written.append(fused)
    used = {name for n in written for name in n.input} | set(outputs)
    return _late([n for n in written if n.op_type != "DequantizeLinear" or used & {*n.output}])


def _late(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The nodes with what dequantises right before its first use: until then it is kept in bytes,
    and computed together with what it is for.
    """
    found: list[NodeProto] = []
    waiting: dict[str, NodeProto] = {}
    for node in nodes:
        inner = any(a.HasField("g") or a.graphs for a in node.attribute)  # may use any
        for name in list(waiting) if inner else node.input:
            if name in waiting:
                found.append(waiting.pop(name))
        if node.op_type == "DequantizeLinear":
            waiting[node.output[0]] = node
        else:
            found.append(node)
    return [*found, *waiting.values()]


def _fused(model: _Model, product: NodeProto, last: NodeProto) -> NodeProto | None:
    """The integer product; None where it is none."""
    from onnx import NodeProto

    op, domain = INTEGER.get(product.op_type, ("", ""))
    alone = model.uses[product.output[0]] == 1 and len(last.input) == 3
    if not op or product.domain or not alone:
        return None
    sides = [_dequantised(model, name) for name in product.input]
    beta = next((a.f for a in product.attribute if a.name == "beta"), 1.0)
    if (
        None in sides
        or len(sides) not in (2, 3)
        or beta != 1.0
        or not _is_one(model, last.input[1])
    ):
        return None
    first, second, *biases = sides
    types = [model.known(s[2]) for s in (first, second)]
    if not all(isinstance(z, Known) and z.dtype.name in BYTES for z in types):
        return None
    if not _is_one(model, first[1]) or (biases and not _fits(model, biases[0], first, second)):
        return None
    made = NodeProto()
    made.CopyFrom(product)
    made.op_type, made.domain = op, domain
    bias = [b[0] for b in biases]
    inputs = [*first, *second, *last.input[1:], *bias]
    if op == "QGemm":
        inputs = [*first, *second, *(bias or [""]), *last.input[1:]]
    del made.input[:], made.output[:]
    made.input.extend(inputs)
    made.output.extend(last.output)
    kept = [a for a in made.attribute if a.name != "beta"]
    del made.attribute[:]
    made.attribute.extend(kept)
    return made


def _on_bytes(model: _Model, moved: NodeProto, last: NodeProto) -> NodeProto | None:
    """What only picks elements, of the bytes themselves; None where they are others afterwards."""
    from onnx import NodeProto

    if moved.op_type not in PICKING or moved.domain or len(moved.output) != 1:
        return None
    first = _dequantised(model, moved.input[0])
    if model.uses[moved.output[0]] != 1 or first is None or len(last.input) != 3:
        return None
    scales, zeros = ([model.known(side[k]) for side in (first, last.input)] for k in (1, 2))
    known = [v for v in (*scales, *zeros) if isinstance(v, Known) and v.size == 1]
    if len(known) != 4 or not all(z.dtype.name in BYTES for z in zeros):
        return None
    if zeros[0].dtype is not zeros[1].dtype or not _exact(*(float(s.elements) for s in scales)):
        return None
    if int(zeros[0].elements) != int(zeros[1].elements):
        return None
    made = NodeProto()
    made.CopyFrom(moved)
    made.input[0] = first[0]
    made.output[0] = last.output[0]
    return made


def _exact(scale: float, other: float) -> bool:
    """Whether bytes times one scale are themselves by the other."""
    return scale == other and 1e-30 < scale < 1e30


def _dequantised(model: _Model, name: str) -> Any:
    """The integers, scale and zero point that a value is made of."""
    node = model.made.get(name)
    if node is None or node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return None
    axis = next((a.i for a in node.attribute if a.name == "block_size"), 0)
    return None if axis else [*node.input, ""][:3]


def _is_one(model: _Model, name: str) -> bool:
    found = model.known(name)
    return isinstance(found, Known) and found.size == 1


def _fits(model: _Model, bias: Any, first: Any, second: Any) -> bool:
    """Whether a bias is of i32 in steps of the product."""
    scales = [model.known(s[1]) for s in (bias, first, second)]
    zero = model.known(bias[2]) if bias[2] else None
    added = model.known(bias[0])
    if not all(isinstance(s, Known) for s in scales) or not isinstance(zero, Known | None):
        return False
    step, x, w = (s.elements.astype(np.float32).reshape(-1) for s in scales)
    if added is None or added.dtype.name != "i32" or step.size not in (1, (x * w).size):
        return False
    no_zero = zero is None or not zero.elements.any()
    return no_zero and np.allclose(step, x * w, rtol=1e-6, atol=0)
