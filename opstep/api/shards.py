"""Tensors of which ranks have parts, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.runtime.device.ranks import connected
from opstep.runtime.ir.shards import Shard

if TYPE_CHECKING:
    import numpy as np


def gathered(shard: Shard, own: np.ndarray) -> np.ndarray:
    """On rank 0, from the parts of its group, the whole; other ranks keep their own. All ranks call
    this at the same time. Raises `DeviceError` where one is gone.
    """
    import numpy as np

    transport = connected()
    members = shard.group.members(transport.rank)
    ranks = transport.ranks(shard.group)
    if transport.rank:
        if members[0] == 0:
            ranks.send(own, 0)
        return own
    shape: tuple[int, ...] = shard.whole.shape  # pyright: ignore[reportAssignmentType]
    found = np.empty(shape, own.dtype)
    for k, member in enumerate(members):
        found[shard.part(member)] = own if k == 0 else ranks.recv(own, k)
    return found
