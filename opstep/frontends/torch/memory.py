"""Memory of PyTorch's for the results of calls.

On a GPU results that no one but PyTorch and we see share some pieces. An allocator gives a large
piece at the same address again sooner than it gives a hundred tensors theirs, and what is captured
has the addresses of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._C._dynamo import guards  # pyright: ignore[reportMissingImports]

ALIGNMENT = 512  # bytes, as PyTorch's own allocator has it
LARGEST = 1 << 28  # bytes of a piece with more than one tensor

Make = Callable[[], torch.Tensor]


class Wanted(NamedTuple):
    """A contiguous tensor. `hidden`: for whom it is, where the caller does not see it; "" where it
    does. Those of one kind are used as long.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    hidden: str

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class _Part(NamedTuple):
    """Where a result lies: in piece number `piece`, from that byte on."""

    number: int
    piece: int
    start: int
    wanted: Wanted
    strides: tuple[int, ...]


class Results:
    """The results of a call: None for those that need no memory."""

    def __init__(self, wanted: Sequence[Wanted | None], device: torch.device):
        self.count = len(wanted)
        self._all = [
            (k, allocation(w.shape, w.dtype, device)) for k, w in enumerate(wanted) if w is not None
        ]
        shares = is_shared(device)
        hidden = {
            k for k, w in enumerate(wanted) if w is not None and w.hidden and w.nbytes and shares
        }
        self._own = [(k, make) for k, make in self._all if k not in hidden]
        self._parts: list[_Part] = []
        sizes: list[int] = []
        at: dict[str, int] = {}  # the piece that those of a kind go to
        for k in sorted(hidden):
            w: Any = wanted[k]
            rounded = -(-w.nbytes // ALIGNMENT) * ALIGNMENT
            if w.hidden not in at or sizes[at[w.hidden]] + rounded > LARGEST:
                at[w.hidden] = len(sizes)
                sizes.append(0)
            piece = at[w.hidden]
            self._parts.append(_Part(k, piece, sizes[piece], w, strides_of(w.shape)))
            sizes[piece] += rounded
        self._pieces = [allocation((size,), torch.uint8, device) for size in sizes]

    def apart(self) -> list[torch.Tensor | None]:
        """Tensors, all with memory of their own."""
        made: list[torch.Tensor | None] = [None] * self.count
        for k, make in self._all:
            made[k] = make()
        return made

    def allocated(self) -> tuple[list[torch.Tensor | None], list[int], list[torch.Tensor]]:
        """Tensors, None where they lie in pieces; the addresses of all (0: none); the pieces."""
        made: list[torch.Tensor | None] = [None] * self.count
        addresses = [0] * self.count
        for k, make in self._own:
            made[k] = tensor = make()
            addresses[k] = tensor.data_ptr()
        pieces = [make() for make in self._pieces]
        bases = [piece.data_ptr() for piece in pieces]
        for number, piece, start, *_ in self._parts:
            addresses[number] = bases[piece] + start
        return made, addresses, pieces

    def fill_in(self, made: list[torch.Tensor | None], pieces: list[torch.Tensor]) -> None:
        """Sets those that lie in pieces: there is time for that once the GPU is at work."""
        seen: dict[Any, torch.Tensor] = {}
        for number, piece, start, (shape, dtype, _), strides in self._parts:
            whole = seen.get((piece, dtype))
            if whole is None:
                whole = seen[piece, dtype] = pieces[piece].view(dtype)
            made[number] = whole.as_strided(shape, strides, start // dtype.itemsize)


def is_shared(device: torch.device) -> bool:
    """Whether hidden results share memory there."""
    return device.type == "cuda"


def allocation(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Make:
    """What allocates a contiguous tensor."""
    quick = getattr(guards, f"_empty_strided_{device.type}", None)  # a fifth of the time
    if quick is not None and (device.type == "cpu" or torch.cuda.device_count() == 1):
        return partial(quick, shape, strides_of(shape), dtype)
    return partial(torch.empty, shape, dtype=dtype, device=device)


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of contiguous memory."""
    return torch.empty(shape, device="meta").stride()
