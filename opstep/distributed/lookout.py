"""Who is waited for: while ranks find each other, and later in a collective."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Any

from opstep.distributed.place import Place
from opstep.runtime.device.ranks import standing
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.errors import DeviceError

SILENT_S = 5.0  # of looking for the others, before it is said whom
STUCK_S = 60.0  # of waiting in a collective, before it is said for whom
_TICK_S = 1.0
_LOOK_S = 0.05


class Meeting:
    """While ranks find each other: says who is not there after some seconds, and what made this
    process a rank.
    """

    def __init__(self, place: Place, limit_s: float):
        self._place = place
        self._end = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._timer = threading.Timer(SILENT_S, self._tell)
        self._timer.daemon = True
        self._missing = [0] if place.rank else []  # who has the store

    def __enter__(self) -> Meeting:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def meet(self, store: Any) -> None:
        """Returns once all are there. Raises `DeviceError`."""
        place = self._place
        store.set(f"here/{place.rank}", "1")
        self._missing = [rank for rank in range(place.ranks) if rank != place.rank]
        while self._missing:
            self._missing = [rank for rank in self._missing if not store.check([f"here/{rank}"])]
            if self._missing and time.monotonic() > self._end:
                message = f"{_ranks(self._missing)} did not come within {self._limit_s:g} s"
                raise DeviceError(message, hint=self._reason())
            time.sleep(_LOOK_S if self._missing else 0)

    def _tell(self) -> None:
        place = self._place
        who = _ranks(self._missing) if self._missing else "others"
        say(f"rank {place.rank} of {place.ranks} waits for {who} at {place.meeting}")
        if reason := self._reason():
            say(f"  {reason}")

    def _reason(self) -> str:
        names = self._place.said
        if not names:
            return ""
        return (
            f"{names_listed(names)} in the environment make this process a rank: unset them where "
            "it is to run alone"
        )


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
            return f"nothing came from {_ranks(sorted(self._others))}"
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


def _ranks(ranks: Collection[int]) -> str:
    listed = names_listed([str(rank) for rank in ranks], most=8)
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def say(text: str) -> None:
    with suppress(OSError, ValueError):  # a stream that is closed
        print(text, file=sys.stderr, flush=True)
