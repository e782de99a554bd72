"""Where bad elements come from, against one element after the other."""

from __future__ import annotations

import numpy as np
import pytest
from test_verdict import CASES, case, places

from opstep.runtime.debugger.rerun import born, carriers, on_cpu
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.nan.sources import CAUSED, ITSELF, Sources

MORE = {
    "relu": ("relu", (3, 4), {}),
    "sort": ("sort", (3, 5), {}),
    "max_pool2d": ("max_pool2d", (1, 2, 4, 4), {"kernel": (2, 2)}),
    "transpose": ("transpose", (3, 4), {}),
    "slice": ("slice", (4, 5), {"starts": (1, 0), "ends": (3, 5)}),
    "pad": ("pad", (3, 4), {"pads": (1, 0, 0, 2)}),
    "tile": ("tile", (2, 3), {"repeats": (2, 2)}),
    "reshape": ("reshape", (3, 4), {"shape": (2, 6)}),
    "max over axes": ("max", (3, 4, 2), {"axes": (1,)}),
    "upsample2d": ("upsample2d", (1, 1, 3, 3), {"scale": (2, 2), "mode": "bilinear"}),
    "tril": ("tril", (4, 4), {}),
}


def one(name):
    if name in CASES:
        return case(name)
    op, shape, given = MORE[name]
    arrays = [np.random.default_rng(3).standard_normal(shape).astype(np.float32)]
    attrs = complete(OPS[op], given)
    step, _, _ = one_step(OPS[op], arrays, attrs)
    return step, [*arrays, *[None] * (len(step.operand_types) - len(arrays))], attrs


@pytest.mark.parametrize("name", [*CASES, *MORE])
@pytest.mark.parametrize("share", [0.15, 0.6])
def test_the_sources_of_an_element_are_those_that_make_it_alone(name, share):
    """Some elements of an operand are NaN: those count for an element of the result that, when they
    are the only ones, make it NaN.
    """
    step, operands, attrs = one(name)
    rng = np.random.default_rng(len(name))
    for j, array in enumerate(operands):
        if array is None or array.dtype.kind in "iu":
            continue
        odd = rng.random(array.shape) < share
        ruined = [np.where(odd, np.nan, a).astype(a.dtype) if i == j else a
                  for i, a in enumerate(operands)]  # fmt: skip
        result = execute(step.op, ruined, attrs)[0]
        again, nan = on_cpu(step, ruined), np.isnan(result)
        own = born(again, ruined, result, 0)
        assert not own.any()
        assert carriers(again, ruined, result, own, 0) == ((j,) if nan.any() else ())
        for place in places(result):
            if not nan[place]:
                continue
            wanted = np.zeros(result.shape, np.uint8)
            wanted[place] = ITSELF | CAUSED
            found = Sources().of(step, again, ruined, result, 0, own, wanted)
            expected = np.zeros(array.shape, bool)
            for at in np.argwhere(odd):
                alone = np.where(odd, 0.5, array).astype(array.dtype)
                alone[tuple(at)] = np.nan
                single = [alone if i == j else a for i, a in enumerate(ruined)]
                expected[tuple(at)] = np.isnan(execute(step.op, single, attrs)[0][place])
            told = (found[j] != 0).reshape(array.shape)
            if step.op.name == "sort":  # which of them comes to a place depends on all
                assert told.any() and not (told & ~odd).any()
            else:
                assert told.tolist() == expected.tolist()
