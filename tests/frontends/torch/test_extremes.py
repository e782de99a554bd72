"""NaNs and infinities stand where PyTorch's eager mode has them, in results and in gradients, for
operands with zeros, denormals, large numbers, infinities and NaNs. Where they are known not to, and
why: `extremes_known`.

Of element types other than f32 every twelfth function is taken; ``--every-op`` takes all.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import pytest
import torch
from extremes import Refused, differences_of
from extremes_known import unknown
from op_forms import FORMS
from test_rules import EAGER_FAILS, FAMILIES

ON_FLOATS = [f"form {name}" for name, found in FORMS.items() if found.tensors[0][0] != "i"]
HALVES = torch.bfloat16, torch.float16


def samples() -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db  # takes two seconds

    wanted = set(" ".join(FAMILIES.values()).split())
    return [
        f"{op.name}/{op.variant_test_name}".rstrip("/")
        for op in op_db
        if op.name in wanted and op.variant_test_name not in EAGER_FAILS
    ]


NAMES = ON_FLOATS + samples()


# PyTorch's kernels for any processor: those for wide registers add in another order.
PLAIN_KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """A process that computes with `PLAIN_KERNELS`."""
    spawned = multiprocessing.get_context("spawn")
    with mock.patch.dict(os.environ, PLAIN_KERNELS), ProcessPoolExecutor(1, spawned) as pool:
        assert pool.submit(torch.backends.cpu.get_cpu_capability).result() == "DEFAULT"
        yield pool


def check(elsewhere: ProcessPoolExecutor, name: str, dtype: torch.dtype) -> None:
    found = elsewhere.submit(differences_of, name, dtype).result()
    if found is None:
        pytest.skip("no sample of floats")
    assert not unknown(name, found)


@pytest.mark.parametrize("name", NAMES)
def test_f32(elsewhere, name):
    check(elsewhere, name, torch.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_halves(elsewhere, name, dtype, request):
    taken = NAMES.index(name) % 12 == 6 * HALVES.index(dtype)
    if not taken and not request.config.getoption("--every-op"):
        pytest.skip("another one stands for it")
    try:
        check(elsewhere, name, dtype)
    except Refused:
        pytest.skip("PyTorch has no kernel for it")
