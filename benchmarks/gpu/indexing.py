"""Sorting, top-k, gathering and adding at indices, beside PyTorch's deterministic algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from gpu_timing import op_work, timed
from rows import Row, at_most, group

SIZE = 1 << 24
PLACES = 1 << 20  # of a tensor that is added to
ROW = 4096
K = 64


class Case(NamedTuple):
    op: str
    shape: str
    operands: list[torch.Tensor]
    attrs: dict[str, Any]
    theirs: Callable[[], Any]


def cases() -> Iterator[Case]:
    flat = torch.randn(SIZE, device="cuda")
    rows = flat.view(-1, ROW)
    yield Case("sort", "2^24", [flat], {}, lambda: torch.sort(flat, stable=True))
    yield Case("sort", "4096 rows of 4096", [rows], {}, lambda: torch.sort(rows, stable=True))
    yield Case("top_k", f"{K} of 2^24", [flat], {"k": K}, lambda: torch.topk(flat, K))
    yield Case("top_k", f"{K} of 4096, 4096 rows", [rows], {"k": K}, lambda: torch.topk(rows, K))
    index = torch.randint(0, SIZE, (SIZE,), device="cuda")
    yield Case("gather", "2^24 of 2^24", [flat, index], {}, lambda: flat.index_select(0, index))
    within = torch.randint(0, ROW, tuple(rows.shape), device="cuda")
    yield Case(
        "gather_elements", "4096 rows of 4096", [rows, within], {"axis": 1},
        lambda: torch.gather(rows, 1, within),
    )  # fmt: skip
    few, to = torch.zeros(PLACES, device="cuda"), index % PLACES
    yield Case(
        "scatter_add", "2^24 to 2^20", [few, to, flat], {}, lambda: few.scatter_add(0, to, flat)
    )


def check(case: Case, found: list[torch.Tensor], theirs: Any) -> None:
    """Raises where results differ: by rounding only, where elements are added."""
    expected = theirs if isinstance(theirs, torch.Tensor) else theirs[0]
    close = torch.allclose(found[0], expected, rtol=1e-5, atol=1e-5)
    if not (close if case.op == "scatter_add" else torch.equal(found[0], expected)):
        raise ValueError(f"{case.op}, {case.shape}: differs from PyTorch's")


@group("indexing")
def indexing() -> Iterator[Row]:
    torch.use_deterministic_algorithms(True)
    try:
        for case in cases():
            ours, outputs = op_work(case.op, case.operands, **case.attrs)
            with torch.cuda.stream(torch.cuda.Stream()):
                ours()
                check(case, outputs, case.theirs())
                ms = [1e3 * timed(call) for call in (ours, case.theirs, ours, case.theirs)]
            what = f"{case.op}, f32, {case.shape}"
            yield at_most(1.5, what, (ms[0] + ms[2]) / 2, "ms", "PyTorch", (ms[1] + ms[3]) / 2)
    finally:
        torch.use_deterministic_algorithms(False)
