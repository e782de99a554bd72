"""Who is waited for in a collective, and where they stand."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Any

from opstep.runtime.device.ranks import standing
from opstep.runtime.ir.diagnostics import names_listed

STUCK_S = 60.0  # of waiting in a collective, before it is said for whom
_TICK_S = 1.0


class Lookout:
    """Tells the others where this rank stands once it stands there for long, and says for whom it
    waits: each in a store that all have. `give_up`, where it is given, is told so after that time.
    """

    def __init__(
        self, store: Any, rank: int, limit_s: float = inf,
        give_up: Callable[[str], Any] | None = None,
    ):  # fmt: skip
        self._store = store
        self._rank = rank
        self._limit_s = limit_s
        self._give_up = give_up
        self._others: Collection[int] = ()
        self._count = 0  # of exchanges that began or ended
        self._since = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def wait_for(self, others: Collection[int]) -> None:
        """From now on this rank waits for these, or for none."""
        self._others = others
        self._count += 1
        self._since = time.monotonic()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def missing(self) -> str:
        """``rank 1 is not here: it stands behind step.opg:9 (all_reduce)``, of those that are
        elsewhere.
        """
        own, found = standing(), {}
        for rank in sorted(self._others):
            its = (
                "" if not self._store.check([str(rank)]) else json.loads(self._store.get(str(rank)))
            )
            if its != own:
                found[rank] = its
        if not found:
            return f"nothing came from {ranks_listed(sorted(self._others))}"
        where = [
            f"rank {rank} is not here: it stands {its}" if its else f"rank {rank} is not here"
            for rank, its in found.items()
        ]
        return "; ".join(where)

    def _look(self) -> None:
        before, told, said = -1, "", -1
        while not self._ended.wait(_TICK_S):
            with suppress(RuntimeError):  # the store is gone with a rank: whoever waits is told
                if self._count != before:
                    before = self._count
                elif (at := standing()) != told:
                    told = at
                    self._store.set(str(self._rank), json.dumps(at))
                waits = time.monotonic() - self._since
                if self._others and waits > STUCK_S and said != self._count:
                    said = self._count
                    since = f"rank {self._rank} waits {standing()} since {waits:.0f} s"
                    say(f"{since}: {self.missing()}")
                if self._others and waits > self._limit_s and self._give_up is not None:
                    self._give_up(f"after {self._limit_s:g} s {self.missing()}")


def ranks_listed(ranks: Collection[int]) -> str:
    listed = names_listed([str(rank) for rank in ranks], most=8)
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def say(text: str) -> None:
    with suppress(OSError, ValueError):  # a stream that is closed
        print(text, file=sys.stderr, flush=True)
