"""The cases that JAX tests its primitives with, in x64 mode: the same results, or a refusal."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("absl")
import jax
import jax.numpy as jnp
from jax_agreement import agree

from opstep.runtime.ir.errors import OpstepError

with jax.enable_x64(True):
    from jax._src.internal_test_util.test_harnesses import all_harnesses

PARTS = 120
ONE_OF = 12  # in each part, unless all cases are wanted
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 4e-2, "float16": 4e-3}
# Of matrices of condition 4e5: JAX itself is off by 1e-3 there, and we by 4e-4.
TOLERANCE_OF_ROOTS = TOLERANCE | {"float32": 5e-3}


def defined(harness: Any) -> Any:
    """Its function, without what JAX leaves undefined."""
    function, params = harness.dyn_fun, harness.params
    if harness.group_name == "cholesky":  # the other triangle
        return lambda *args: jnp.tril(function(*args))
    if harness.group_name == "sort" and not params["is_stable"]:  # what equal keys come with
        return lambda *args: function(*args)[: params["num_keys"]]
    return function


def taken(part: int, is_all: bool) -> list[Any]:
    known = sorted(all_harnesses, key=lambda h: crc32(h.fullname.encode()))
    listed = known[part :: PARTS if is_all else PARTS * ONE_OF]
    return [h for h in listed if h.filter("cpu")]


@pytest.mark.parametrize("part", range(PARTS))
def test_what_jax_tests_its_primitives_with(part, request):
    wrong = []
    with jax.enable_x64(True):
        for harness in taken(part, request.config.getoption("--cases") == "all"):
            tolerances = TOLERANCE_OF_ROOTS if harness.group_name == "cholesky" else TOLERANCE
            args = harness.dyn_args_maker(np.random.RandomState(crc32(harness.fullname.encode())))
            try:
                agree(defined(harness), *args, tolerances=tolerances)
            except OpstepError:
                pass
            except Exception as error:  # of any class: none is to be raised
                wrong.append(f"{harness.fullname}: {error!r}")
    assert not wrong, "\n".join(wrong)
