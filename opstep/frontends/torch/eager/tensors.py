"""Facts about tensors that cost no op that is watched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

FINITE, INFINITE, NAN = 0, 1, 2  # levels: of a tensor the worst of its elements


class _Local(threading.local):
    depth = 0


_local = _Local()


@contextmanager
def undispatched() -> Iterator[None]:
    """While the block lasts, what is computed is neither watched nor part of the script's graph."""
    _local.depth += 1
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            yield
    finally:
        _local.depth -= 1


def is_undispatched() -> bool:
    """Whether this thread is in such a block."""
    return _local.depth > 0


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def readable(t: torch.Tensor) -> bool:
    """Whether the elements of a tensor can be read: not of a subclass, of meta, or of no memory."""
    if (
        type(t) not in PLAIN
        or _is_wrapped(t)
        or t.layout is not torch.strided
        or t.is_meta
        or t.is_quantized
    ):
        return False
    return not t._is_zerotensor() and (t.is_floating_point() or t.is_complex())


def storage_key(t: torch.Tensor) -> int:
    """The key of its storage, of a tensor for which `readable` holds."""
    return t.untyped_storage()._cdata


def storage_of(t: torch.Tensor) -> int | None:
    """The key of its storage; None where it has none: sparse, a subclass, a wrapper's."""
    try:
        return storage_key(t)
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def level_of(t: torch.Tensor | None) -> int:
    """FINITE, INFINITE or NAN, of all elements."""
    if t is None or not readable(t) or not t.numel():
        return FINITE
    if torch.isnan(t).any():
        return NAN
    return INFINITE if torch.isinf(t).any() else FINITE


def bad(t: torch.Tensor) -> torch.Tensor:
    return (t - t) != 0  # NaN there: three ops less than asking for each


def is_parameter(t: torch.Tensor) -> bool:
    """A parameter, or a view of one."""
    base = t if t._base is None else t._base
    return base.requires_grad and base.is_leaf
