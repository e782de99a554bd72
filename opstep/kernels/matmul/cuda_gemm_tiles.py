"""Which tiles a matrix product takes, and in how many parts its sums are cut: what should take the
least time, by what tiles took on an H200.

Only shapes, dtypes and the architecture decide, so that a product has the same bits whatever else
runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opstep.kernels.matmul.cuda_tile import Tile, WarpTile
from opstep.runtime.device.cuda.compiling.target import architecture

_MULTIPROCESSORS = 132
_PARTS = 512  # of a sum, at most
_LAUNCH = 4.5  # microseconds, of the kernel that adds parts
_BYTES = 2.5e6  # a microsecond, of parts


class Pace(NamedTuple):
    """How long blocks of a tile take, in microseconds: r of them on a multiprocessor do one step of
    `tile.steps` terms each in `wait` + r * `work`; more than `together` do not fit.
    """

    tile: Tile | WarpTile
    wait: float
    work: float
    together: int

    def step(self, blocks: int) -> float:
        """One step of all blocks of a multiprocessor."""
        rounds, rest = divmod(blocks, self.together)
        whole = rounds * (self.wait + self.together * self.work)
        return whole + (self.wait + rest * self.work if rest else 0)


PLAIN = {
    4: (
        Pace(Tile(128, 128, 16, 8, 8), 0.74, 1.31, 2),
        Pace(Tile(64, 128, 16, 8, 8), 1.15, 0.62, 4),
        Pace(Tile(64, 64, 16, 8, 4), 0.83, 0.29, 4),
        Pace(Tile(32, 64, 16, 4, 4), 0.77, 0.20, 8),
        Pace(Tile(32, 32, 16, 4, 4), 0.67, 0.12, 16),
        Pace(Tile(32, 32, 32, 4, 4), 0.79, 0.30, 14),
        Pace(Tile(16, 128, 16, 4, 8), 1.68, 0.15, 8),
    ),
    8: (
        Pace(Tile(64, 128, 8, 8, 8, 8), 0.3, 0.7, 2),
        Pace(Tile(64, 64, 16, 8, 4, 8), 0.3, 0.83, 3),
        Pace(Tile(32, 32, 16, 4, 4, 8), 0.4, 0.27, 8),
    ),
}
HALVES = (
    Pace(WarpTile(128, 256, 64, 64, 3), 0.3, 0.95, 1),
    Pace(WarpTile(128, 128, 64, 32, 3), 0.0, 0.83, 2),
    Pace(WarpTile(64, 128, 32, 64, 3), 0.25, 0.3, 3),
    Pace(WarpTile(64, 64, 32, 32, 4), 0.2, 0.165, 3),
)
WARPGROUPS = (
    Pace(WarpTile(128, 256, 16, 256, 4, True), 0.2, 0.6, 1),
    Pace(WarpTile(128, 128, 16, 128, 3, True), 0.2, 0.3, 2),
    Pace(WarpTile(64, 128, 16, 128, 4, True), 0.2, 0.19, 2),
    Pace(WarpTile(64, 64, 16, 64, 4, True), 0.2, 0.115, 3),
)
_SHARED = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227}  # KiB that a block may have


def of_halves() -> Sequence[Pace]:
    """Those that the architecture has tensor cores and shared memory for; see `tile.WarpTile`."""
    if architecture() == 90:
        return WARPGROUPS
    room = _SHARED.get(architecture(), 99) << 10
    return [pace for pace in HALVES if isinstance(pace.tile, WarpTile) and pace.tile.shared <= room]


def cheapest(
    paces: Sequence[Pace], m: int, n: int, k: int, count: int, cut: bool = True, parts: int = 0
) -> tuple[Tile | WarpTile, int]:
    """(the tile, parts of the sums) for `count` products of [m, k] and [k, n]. `cut`: there may be
    more parts than one; with `parts` there are so many.
    """
    most = parts or (_PARTS if cut else 1)
    found = _costs(paces, m, n, k, count, most)
    return min((f for f in found if not parts or f[2] == parts), key=lambda f: f[0])[1:]


def _costs(
    paces: Sequence[Pace], m: int, n: int, k: int, count: int, most: int
) -> Iterator[tuple[float, Tile | WarpTile, int]]:
    for pace in paces:
        tile = pace.tile
        blocks = -(-m // tile.rows) * -(-n // tile.columns) * count
        parts = 1
        while parts <= most and (parts == 1 or k // parts >= 2 * tile.steps):
            steps = -(-k // (parts * tile.steps)) + 2  # filling and emptying take time too
            time = steps * pace.step(-(-blocks * parts // _MULTIPROCESSORS))
            if parts > 1:
                time += _LAUNCH + 4 * count * m * n * (2 * parts + 1) / _BYTES
            yield time, tile, parts
            parts *= 2
