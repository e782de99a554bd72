"""A node's result beside ONNX's own reference implementation, in f64, on the same operands."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.reference import ReferenceEvaluator

from opstep.differing.elements import is_float
from opstep.differing.errors import TOLERANCE, error_of
from opstep.differing.models import SHAKEN, SLACK, Own, excess, rms
from opstep.runtime.ir.types import dtype_of

FEW = 64  # terms of a sum whose rounding errors count as one


def own_error(
    model: ModelProto, node: NodeProto, k: int, operands: Mapping[str, np.ndarray],
    got: np.ndarray, tolerance: float | None = None,
) -> Own | None:  # fmt: skip
    """What a node adds to its result `k`; None where the reference has no f64 of it."""
    try:
        reference = _Reference(model, node, k)
        target = reference.run(operands)
        if target.shape != got.shape:
            return None
        if not is_float(got.dtype):
            same = np.array_equal(got, target.astype(got.dtype))
            return Own(error_of(got, target), 0.0 if same else math.inf)
        x, y = got.astype(np.float64), _in_range(target.astype(np.float64), got)
        dtype = dtype_of(got.dtype)
        scale = TOLERANCE[dtype.name] if tolerance is None else tolerance
        bound = scale * np.abs(y) + scale * rms(y[np.isfinite(y)]) + _smallest(got)
        most = excess(x, y, bound)
        if most > 1:
            grown = _growth(operands, got)
            moved = _moved(reference, operands, y)
            bound = grown * (bound + SLACK * np.maximum(moved, rms(moved)))
            most = excess(x, y, bound)
    except Exception:  # the reference refuses in many ways what it has not
        return None
    return Own(error_of(x, y), most)


class _Reference:
    """One node as a model of its own, whose floats are f64."""

    def __init__(self, model: ModelProto, node: NodeProto, k: int):
        graph = helper.make_graph(
            [node], "node",
            [helper.make_tensor_value_info(n, 11, None) for n in dict.fromkeys(node.input) if n],
            [helper.make_tensor_value_info(node.output[k], 11, None)],
        )  # fmt: skip
        alone = helper.make_model(graph, opset_imports=model.opset_import)
        self._evaluator = ReferenceEvaluator(alone)

    def run(
        self, operands: Mapping[str, np.ndarray], shaken: np.random.Generator | None = None
    ) -> np.ndarray:
        given = {n: _wide(a, shaken) for n, a in operands.items()}
        with np.errstate(all="ignore"):
            (found,) = self._evaluator.run(None, given)  # pyright: ignore[reportGeneralTypeIssues]
        return np.asarray(found)


def _wide(array: np.ndarray, shaken: np.random.Generator | None) -> np.ndarray:
    if not is_float(array.dtype):
        return array
    wide = array.astype(np.float64)
    if shaken is None:
        return wide
    step = TOLERANCE[dtype_of(array.dtype).name] / 16  # half a unit in the last place
    return wide * (1 + step * (shaken.integers(0, 2, wide.shape) * 2.0 - 1.0))


def _moved(
    reference: _Reference, operands: Mapping[str, np.ndarray], target: np.ndarray
) -> np.ndarray:
    """How far rounding of its operands may move a result."""
    rngs = (np.random.default_rng(k) for k in range(SHAKEN))
    with np.errstate(all="ignore"):
        found = [np.abs(reference.run(operands, rng) - target) for rng in rngs]
    moved = np.max(found, axis=0)
    return np.where(np.isfinite(moved), moved, 0.0)


def _growth(operands: Mapping[str, np.ndarray], got: np.ndarray) -> float:
    """How much more than one rounding error a sum has, by the number of terms that sizes suggest:
    the square root of it, as errors have either sign.
    """
    sizes = sorted(a.size for a in operands.values() if is_float(a.dtype))[-2:]
    if not sizes:
        return 1.0
    terms = (math.prod(sizes) / max(got.size, 1)) ** (1 / len(sizes))
    return max(1.0, math.sqrt(terms / FEW))


def _in_range(target: np.ndarray, got: np.ndarray) -> np.ndarray:
    """What is exact, where the type of what was got reaches; beyond, what it is rounded to."""
    with np.errstate(all="ignore"):
        rounded = target.astype(got.dtype).astype(np.float64)
    return np.where(np.isinf(rounded), rounded, target)


def _smallest(got: np.ndarray) -> float:
    """Numbers so small have fewer digits."""
    return SLACK * (6e-8 if got.dtype.itemsize == 2 else 1e-44)
