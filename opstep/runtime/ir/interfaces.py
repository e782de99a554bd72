"""Parts of a declaration that few ops have, each asked for by one pass.

- ``outside(operands, shape, **attrs)``, of an op that takes indices: a mask of the elements of a
  result of that shape, or of the whole, that an index which does not exist was meant for.
- ``per_channel``, beside `Op.element`: operands that have an element for each place along axis 1 of
  the result.
- ``views``: the number of operands, the first ones, that kernels can read by strides
  (`plan.viewing`).
- ``lays_out(*types, **attrs)``, of an op with kernels for channels last (`plan.layouts`): whether
  others turn images for themselves.
"""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.op import Op


def outside_of(op: type[Op]) -> Any:
    """The function `outside`, or None."""
    return getattr(op, "outside", None)


def per_channel_of(op: type[Op]) -> tuple[int, ...]:
    return getattr(op, "per_channel", ())


def views_of(op: type[Op]) -> int:
    return getattr(op, "views", 0)


def lays_out_of(op: type[Op]) -> Any:
    """The function `lays_out`, or None."""
    return getattr(op, "lays_out", None)
