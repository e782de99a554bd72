"""Losses that are bad though no module gave a bad value: PyTorch computed them, in the script.

The gradient of such a loss may be finite (that of a logarithm of a negative number is), and then
nothing bad ever reaches a module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch

from opstep.frontends.scripts.frames import line_now
from opstep.frontends.torch.outstanding import outstanding
from opstep.frontends.torch.scaling import scaling

Line = tuple[str, int] | None


@contextmanager
def watched(tell: Callable[[int, str, Line], None], nan_only: bool = False) -> Iterator[None]:
    """While the block lasts, `tell` is called behind each backward pass of a loss that is not
    finite, with the number of passes before it, ``nan`` or ``inf``, and the script's line.
    """
    original: Any = torch.autograd.backward
    process = os.getpid()
    passes = 0

    @wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal passes
        if torch.compiler.is_compiling() or os.getpid() != process:
            original(tensors, *args, **kwargs)
            return
        bad = _bad(tensors, nan_only)
        original(tensors, *args, **kwargs)
        passes += 1
        if bad:
            outstanding.settle()  # a module that gave the bad value is told of first
            report = partial(tell, passes - 1, bad, line_now())
            if not scaling.defer(report):
                report()

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


def _bad(tensors: Any, nan_only: bool) -> str:
    """What of them is not finite: ``nan``, ``inf``, or nothing."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    tensors = [t for t in roots if isinstance(t, torch.Tensor) and not t.is_meta]
    dense = [t for t in tensors if t.layout == torch.strided]
    if any(t.isnan().any() for t in dense):
        return "nan"
    return "inf" if not nan_only and any(t.isinf().any() for t in dense) else ""
