"""The old place of `opstep.differing.precision`."""

from opstep.differing.precision import precision

__all__ = ["precision"]
