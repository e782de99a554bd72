"""A node's result beside ONNX's own reference implementation, in f64, on the same operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, defs, helper
from onnx.reference import ReferenceEvaluator

from opstep.differing import judging
from opstep.differing.elements import is_float
from opstep.differing.errors import TOLERANCE, error_of
from opstep.differing.models import Own
from opstep.frontends.onnx.quantising import STEP, unrounded
from opstep.frontends.onnx.spelled import BETTER, SPELLED
from opstep.runtime.ir.types import dtype_of

FEW = 64  # terms of a sum whose rounding errors count as one

Arrays = Mapping[str, np.ndarray]


def own_error(
    model: ModelProto, node: NodeProto, k: int, operands: Arrays, results: Arrays,
    tolerance: float | None = None,
) -> Own | None:  # fmt: skip
    """What a node adds to its result `k`; None where the reference has no f64 of it."""
    got = results[node.output[k]]
    try:
        reference = _Reference(model, node, k)
        if not is_float(got.dtype):
            return _own_choice(reference, node, operands, results, got)
        target = reference.run(operands).astype(np.float64)
        if target.shape != got.shape:
            return None
        return judging.own_error(
            got, target, tolerance, lambda: _growth(operands, got),
            lambda rng: reference.run(operands, rng),
        )  # fmt: skip
    except Exception:  # the reference refuses in many ways what it has not
        return None


def recomputed(
    model: ModelProto, nodes: Sequence[NodeProto], wanted: str, known: Arrays,
    types: Mapping[str, np.dtype],
) -> np.ndarray | None:  # fmt: skip
    """A value that nodes make of what is known, in f64, each result rounded to its type, where that
    is said; None where the reference has not all of them.
    """
    found = dict(known)
    with np.errstate(all="ignore"):
        try:
            for node in nodes:
                operands = {n: found[n] for n in node.input if n}
                made = _Reference(model, node, 0).results(operands)
                for name, array in zip(filter(None, node.output), made, strict=True):
                    dtype = types.get(name, array.dtype)
                    found[name] = array.astype(dtype) if is_float(array.dtype) else array
            return found[wanted]
        except Exception:  # the reference refuses in many ways what it has not
            return None


def _own_choice(
    reference: _Reference, node: NodeProto, operands: Arrays, results: Arrays, got: np.ndarray
) -> Own | None:
    """Of integers and bools: they are right or wrong, but that numbers near a tie may be rounded to
    either side of it.
    """
    exact = unrounded(node, operands, results, got, reference.alone)
    if exact is None:
        target = reference.run(operands)
        if target.shape != got.shape:
            return None
        same = np.array_equal(got, target.astype(got.dtype))
        return Own(error_of(got, target), 0.0 if same else math.inf)
    if exact.shape != got.shape:
        return None
    limits = np.iinfo(got.dtype)
    beyond = np.abs(got - np.clip(exact, limits.min, limits.max)) - 0.5
    allowed = STEP * (limits.max - limits.min)
    most = float(beyond.max(initial=0.0)) / allowed
    return Own(error_of(got, np.clip(np.rint(exact), limits.min, limits.max)), max(most, 0.0))


class _Reference:
    """One node, whose floats are f64."""

    def __init__(self, model: ModelProto, node: NodeProto, k: int):
        self._imports = model.opset_import
        self._node, self._k = node, k

    def run(self, operands: Arrays, shaken: np.random.Generator | None = None) -> np.ndarray:
        given = {n: _wide(a, shaken) for n, a in operands.items()}
        return self._computed(given, [self._k])[0]

    def results(self, operands: Arrays) -> list[np.ndarray]:
        """All of them."""
        given = {n: _wide(a, None) for n, a in operands.items()}
        return self._computed(given, [k for k, n in enumerate(self._node.output) if n])

    def _computed(self, given: Arrays, wanted: Sequence[int]) -> list[np.ndarray]:
        op = self._node.op_type
        if defs.has(op, self._node.domain) and op not in BETTER:
            return self._by_onnx(self._node, wanted, given)
        attrs = {a.name: helper.get_attribute_value(a) for a in self._node.attribute}
        with np.errstate(all="ignore"):
            found = SPELLED[op](*(given.get(n) for n in self._node.input), **attrs)
        return [np.asarray(found[k] if isinstance(found, tuple) else found) for k in wanted]

    def alone(self, node: NodeProto, operands: Arrays) -> np.ndarray:
        """The first result of another node."""
        return self._by_onnx(node, [0], operands)[0]

    def _by_onnx(self, node: NodeProto, wanted: Sequence[int], given: Arrays) -> list[np.ndarray]:
        graph = helper.make_graph(
            [node], "node",
            [helper.make_tensor_value_info(n, 11, None) for n in dict.fromkeys(node.input) if n],
            [helper.make_tensor_value_info(node.output[k], 11, None) for k in wanted],
        )  # fmt: skip
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=self._imports))
        with np.errstate(all="ignore"):
            found: Any = evaluator.run(None, dict(given))
        return [np.asarray(a) for a in found]


def _wide(array: np.ndarray, shaken: np.random.Generator | None) -> np.ndarray:
    if not is_float(array.dtype):
        return array
    wide = array.astype(np.float64)
    if shaken is None:
        return wide
    step = TOLERANCE[dtype_of(array.dtype).name] / 16  # half a unit in the last place
    return wide * (1 + step * (shaken.integers(0, 2, wide.shape) * 2.0 - 1.0))


def _growth(operands: Arrays, got: np.ndarray) -> float:
    """How much more than one rounding error a sum has, by the number of terms that sizes suggest:
    the square root of it, as errors have either sign.
    """
    sizes = sorted(a.size for a in operands.values() if is_float(a.dtype))[-2:]
    if not sizes:
        return 1.0
    terms = (math.prod(sizes) / max(got.size, 1)) ** (1 / len(sizes))
    return max(1.0, math.sqrt(terms / FEW))
