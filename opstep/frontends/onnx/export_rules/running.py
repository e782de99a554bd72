"""What is carried along an axis, as ONNX's Scan."""

from __future__ import annotations

from math import inf

from onnx import helper

from opstep.frontends.onnx.export_nodes import value_info
from opstep.frontends.onnx.export_rules import rule, wide
from opstep.kernels.rules.axes import axis_of
from opstep.runtime.ir.types import i64
from opstep.runtime.transforms.builder import Var


def _scan(b, states, xs, axis, reverse, step, outs):
    """`step` takes states and elements, and gives new states and what is put out."""
    if 0 in xs[0].shape:  # ONNX Runtime divides by it
        return [b.zeros(shape=t.shape, dtype=t.dtype) for t in outs]
    part = xs[0].type.with_shape([d for k, d in enumerate(xs[0].shape) if k != axis])
    before = [Var(b.fresh(f"{b.stem}/before"), s.type) for s in states]
    each = [Var(b.fresh(f"{b.stem}/each"), part.with_dtype(x.dtype)) for x in xs]
    given: list[Var] = []

    def write():
        for v in step(before, each):
            copy = Var(b.fresh(f"{b.stem}/after"), v.type)
            b.node("Identity", [v.name], [copy.name])
            given.append(copy)
        return given

    nodes, results = b.apart(write)
    graph = helper.make_graph(
        [n.proto() for n in nodes], "step",
        [value_info(v.name, v.type, False) for v in (*before, *each)],
        [value_info(v.name, v.type, False) for v in results],
    )  # fmt: skip
    last = [Var(b.fresh(f"{b.stem}/last"), s.type) for s in states]
    made = [Var(b.fresh(f"{b.stem}/all"), t) for t in outs]
    way = int(reverse)
    b.node(
        "Scan", [v.name for v in (*states, *xs)], [v.name for v in (*last, *made)],
        body=graph, num_scan_inputs=len(xs), scan_input_axes=[axis] * len(xs),
        scan_output_axes=[axis] * len(made), scan_input_directions=[way] * len(xs),
        scan_output_directions=[way] * len(made),
    )  # fmt: skip
    return made


def _first(b, x, axis, value, dtype=None):
    """A number for each row along an axis."""
    shape = [d for k, d in enumerate(x.shape) if k != axis]
    return b.full(shape=shape, value=value, dtype=dtype or x.dtype)


def _extremes(beats):
    def write(b, t, x, axis):
        at = axis_of(axis, x.type.rank) if x.type.rank else None
        if at is None:
            return x, b.zeros(shape=[], dtype=i64)
        start = b.select(x, index=0, axis=at) if x.shape[at] != 0 else x
        zeros = _first(b, x, at, 0, i64)
        turn = b.value(0)

        def step(states, each):
            best, place, now = states
            (new,) = each
            wins = b.logical_or(getattr(b, beats)(new, best), b.isnan(new))
            best, place = b.where(wins, new, best), b.where(wins, now, place)
            return best, place, b.add(now, 1), best, place

        return tuple(_scan(b, [start, zeros, turn], [x], at, False, step, t))

    return write


rule("cummax")(_extremes("greater_equal"))
rule("cummin")(_extremes("less_equal"))


@rule("logcumsumexp")
@wide
def _logcumsumexp(b, t, x, axis):
    at = axis_of(axis, x.type.rank)

    def step(states, each):
        total = b.logaddexp(states[0], each[0])
        return total, total

    return _scan(b, [_first(b, x, at, -inf)], [x], at, False, step, [t])[0]


@rule("cumprod")
@wide
def _cumprod(b, t, x, axis, exclusive, reverse):
    x = b.to(x, t.dtype)
    at = axis_of(axis, x.type.rank)

    def step(states, each):
        product = b.mul(states[0], each[0])
        return product, states[0] if exclusive else product

    return _scan(b, [_first(b, x, at, 1)], [x], at, reverse, step, [t])[0]


@rule("cumprod_grad")
@wide
def _cumprod_grad(b, t, x, gy, axis, exclusive, reverse):
    """From the last element: what the results behind an element pass back, by the product before
    it.
    """
    at = axis_of(axis, x.type.rank)
    before = b.cumprod(x, axis=axis, exclusive=True, reverse=reverse)

    def step(states, each):
        factor, g = each
        if exclusive:
            return b.add(g, b.mul(factor, states[0])), states[0]
        passed = b.add(g, states[0])
        return b.mul(factor, passed), passed

    (passed,) = _scan(b, [_first(b, x, at, 0)], [x, gy], at, not reverse, step, [t])
    return b.mul(before, passed)
