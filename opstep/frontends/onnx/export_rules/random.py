"""Random numbers. ONNX's own are others, from run to run. Without a step ours are constants."""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.frontends.onnx.export_nodes import Unsayable
from opstep.frontends.onnx.export_rules import RULES, rule
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.op import OPS

_MOST = 1 << 24  # numbers that are written into a file


def _drawn(b, name, t, step, attrs):
    hint = "draw the numbers outside, and take them as an input"
    if step is not None:
        raise Unsayable("ONNX's random numbers are others than ours", hint)
    if any(isinstance(d, Expr) for d in t.shape):
        b.ints(t.shape)
    if prod(t.shape) > _MOST:
        raise Unsayable(f"it draws more than {_MOST:,} numbers, which are constants", hint)
    with np.errstate(all="ignore"):
        return OPS[name].oracle(**attrs)


def _constant(name):
    def write(b, t, step, **attrs):
        return b.value(_drawn(b, name, t, step, {**attrs, "shape": t.shape}), t.dtype)

    return write


for _name in ("bernoulli", "normal", "randint", "uniform"):
    RULES[_name] = _constant(_name)


@rule("dropout")
def _dropout(b, t, x, step, p, seed, training):
    if not training:
        return x
    if step is not None:
        raise Unsayable(
            "ONNX drops other elements than we do", "export the model for inference: training=false"
        )
    attrs = {"p": p, "seed": seed, "training": True, "x": np.ones(b.ints(t.shape))}
    return b.mul(x, b.value(_drawn(b, "dropout", t, None, attrs), t.dtype))
