"""Ranks find each other: over a store of PyTorch's that rank 0 has, or a file on one machine.

PyTorch waits for the others where no signal ends it, so all waiting is done here.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opstep.distributed.lookout import ranks_listed, say
from opstep.distributed.place import Place
from opstep.runtime.ir.diagnostics import first_line, names_listed
from opstep.runtime.ir.errors import DeviceError, InputError

_T = TypeVar("_T")

SILENT_S = 5.0  # of looking for the others, before it is said whom
_LOOK_S = 0.05
_ANSWER_S = 1.0  # for a machine to answer
_BACKLOG = 4096


def meet(place: Place, limit_s: float) -> Any:
    """The store over which ranks speak, once all have it. Says who is not there after some seconds,
    and what made this process a rank. Raises `InputError`, `DeviceError`.
    """
    return _Meeting(place, limit_s).store()


class _Meeting:
    def __init__(self, place: Place, limit_s: float):
        self._place = place
        self._limit_s = limit_s
        self._end = time.monotonic() + limit_s
        self._missing = [0] if place.rank else []  # who has the store
        self._why = ""  # the store does not answer

    def store(self) -> Any:
        timer = threading.Timer(SILENT_S, self._tell)
        timer.daemon = True
        timer.start()
        try:
            store = self._opened()
            self._wait_for_all(store)
        except RuntimeError as error:
            place = self._place
            message = f"rank {place.rank} lost the others at {place.meeting}: {first_line(error)}"
            raise DeviceError(message) from None
        finally:
            timer.cancel()
        return store

    def _opened(self) -> Any:
        dist: Any = importlib.import_module("torch.distributed")
        place, url = self._place, urlsplit(self._place.meeting)
        if url.scheme == "file":
            return dist.FileStore(url.path, place.ranks)
        host, port = str(url.hostname), url.port or 0
        if place.rank or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun's
            self._wait_for_store(host, port)
            return interruptible(
                lambda: dist.TCPStore(
                    host, port, place.ranks, is_master=False, wait_for_workers=False
                )
            )
        one_machine = place.local_ranks == place.ranks
        listening = _listening(host if one_machine else "", port)
        return dist.TCPStore(
            host if one_machine else "localhost", port, place.ranks, is_master=True,
            wait_for_workers=False, master_listen_fd=listening.detach(),
        )  # fmt: skip

    def _wait_for_store(self, host: str, port: int) -> None:
        while True:  # its name, too, may be known only later
            try:
                with closing(socket.create_connection((host, port), _ANSWER_S)):
                    return
            except (OSError, UnicodeError) as error:
                self._why = f"nothing answers there: {_reason_of(error)}"
                self._check_time()
            time.sleep(_LOOK_S)

    def _wait_for_all(self, store: Any) -> None:
        place = self._place
        if store.add(f"claims/{place.rank}", 1) > 1:
            raise InputError(
                f"another process is rank {place.rank} of {place.ranks}, too",
                hint="the launcher is to give each a number of its own",
            )
        store.set(f"here/{place.rank}", str(place.ranks))
        others = [rank for rank in range(place.ranks) if rank != place.rank]
        self._missing = others
        while self._missing:
            here = [rank for rank in self._missing if store.check([f"here/{rank}"])]
            for rank in here:
                count = int(store.get(f"here/{rank}"))
                if count != place.ranks:
                    raise InputError(
                        f"rank {rank} is one of {count} ranks, and rank {place.rank} one of "
                        f"{place.ranks}",
                        hint="the launcher is to tell all the same number",
                    )
            self._missing = [rank for rank in self._missing if rank not in here]
            if self._missing:
                self._check_time()
                time.sleep(_LOOK_S)

    def _check_time(self) -> None:
        if time.monotonic() > self._end:
            place = self._place
            late = f"{ranks_listed(self._missing)} did not come to {place.meeting} within"
            message = "; ".join(filter(None, (f"{late} {self._limit_s:g} s", self._why)))
            raise DeviceError(message, hint=self._reason())

    def _tell(self) -> None:
        place = self._place
        who = ranks_listed(self._missing) if self._missing else "others"
        waits = f"rank {place.rank} of {place.ranks} waits for {who} at {place.meeting}"
        say("; ".join(filter(None, (waits, self._why))))
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


def interruptible(call: Callable[[], _T]) -> _T:
    """What a call gives that no signal ends: it goes on in a thread of its own, if one comes."""
    found: list[_T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_S)
    if failed:
        raise failed[0]
    return found[0]


def _listening(host: str, port: int) -> socket.socket:
    """A socket of rank 0, at an address of this machine; at all of them where `host` is empty."""
    try:
        if not host:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            return socket.create_server(
                ("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
            )
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        raise DeviceError(
            f"rank 0 cannot listen at {host or 'this machine'}, port {port}: {_reason_of(error)}",
            hint="set MASTER_ADDR to this machine, and MASTER_PORT to a port that no other process "
            "has, which may be rank 0, too",
        ) from None


def _reason_of(error: Exception) -> str:
    number = getattr(error, "errno", None) or 0
    if number > 0:
        return os.strerror(number)  # Python adds what it tried
    return getattr(error, "strerror", None) or str(error)
