"""Running bound kernels without Python: tables of launches, and lanes that share one launch's
range.

A *table* holds some words a launch: entry point, address of its argument words, units, grain, and
how many launches after it follow tile by tile (`following`). `run_table` walks it. A launch of more
units than its grain is cut into chunks. The calling thread and the helper threads (*lanes*) have a
share of them each, the same part of every launch, so that a lane finds the elements that it wrote
in its own cache; a lane that is done takes chunks of others. Chunk limits never change the result
(see `launch`), so neither does the number of lanes.

Idle helpers poll for the next launch for a while, yielding to other threads, and then sleep on
POSIX semaphores: most launches come soon after the last, and waking a thread takes longer than many
of them. Linux may wake a thread on the core of the thread that wakes it, though others are idle,
and leave it there for milliseconds, so it is first bound to the other cores.

There is one team of lanes a process. While one stream uses it, others run their launches alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from functools import cache
from typing import Any

import numpy as np

from opstep.runtime.device.builtin import (
    atomic_add,
    atomic_load,
    atomic_swap,
    call_c,
    call_c_3,
    compare_and_swap,
    monotonic_ns,
    offset,
)
from opstep.runtime.device.cpu import jit
from opstep.runtime.device.cpu.following import FOLLOWERS, GRAIN, ROW, UNITS, run_part
from opstep.runtime.ir.types import i64

# words of a team
_LANES, _BUSY, _ROW, _CHUNK, _CHUNKS, _SHARES, _POST, _WAIT, _YIELD, _CLOCK, _CPU = range(11)
_GET_CPUS, _SET_CPUS, _MASK = range(11, 14)
_HELPER = 16  # then words of each lane: state, start and done semaphores, thread; its next chunk
_NEXT = 8  # a line of cache behind
_STRIDE = 16
_NONE, _ASKED, _TAKEN, _AWAITED, _ASLEEP = range(5)  # states
_PATIENCE = 300_000  # ns for which a thread looks at a state before it sleeps
_GREED = 100  # looks between which it gives no other thread a chance
_MASK_WORDS = 16  # of a set of processors; behind the lanes are two of them
_SEMAPHORE_WORDS = 8  # sizeof(sem_t) is 32 on 64-bit Linux; room to spare

ENTRY = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
)


def run_table(table, team, away, lo, hi):
    """Runs the launches lo..hi of a table, in order; it begins so many words `away` from a team."""
    k = lo
    while k < hi:
        row = offset(table, k * ROW)
        units = row[UNITS]
        if units <= row[GRAIN] or team[_LANES] == 1 or atomic_swap(team, _BUSY, 1) != 0:
            run_part(row, 0, units, 0)
        else:
            _share(team, away + k * ROW, units, row[GRAIN])
            atomic_swap(team, _BUSY, 0)
        k += 1 + row[FOLLOWERS]


def lanes_of(units: int, grain: int, lanes: int) -> int:
    """The number of lanes, from 0 on, that may take part in a launch, as in `_share`."""
    if units <= grain:
        return 1
    return min(lanes, -(-units // chunk_of(units, grain, lanes)))


def chunk_of(units, grain, lanes):
    """Units that are taken at a time: of few, one, or shares would differ by several."""
    return max(grain, units // (lanes * 4), 1)


def _share(team, row, units, grain):
    """Runs one launch on all lanes that come in time."""
    lanes = team[_LANES]
    chunk = chunk_of(units, grain, lanes)
    chunks = (units + chunk - 1) // chunk
    shares = min(lanes, chunks)
    team[_ROW] = row
    team[_CHUNK] = chunk
    team[_CHUNKS] = chunks
    team[_SHARES] = shares
    for lane in range(shares):
        atomic_swap(team, _HELPER + _STRIDE * lane + _NEXT, lane * chunks // shares)
    elsewhere = -1
    for lane in range(1, shares):
        state = _HELPER + _STRIDE * lane
        if atomic_swap(team, state, _ASKED) == _ASLEEP:
            if elsewhere < 0:
                elsewhere = _elsewhere(team)
            if elsewhere == 1:
                call_c_3(team[_SET_CPUS], team[state + 3], 8 * _MASK_WORDS, team[_MASK])
            call_c(team[_POST], team[state + 1])
    _take_chunks(team, 0)
    for lane in range(1, shares):
        state = _HELPER + _STRIDE * lane
        # a helper that has not begun is told to forget it; one that has is waited for
        begun = compare_and_swap(team, state, _ASKED, _NONE) != _ASKED
        if begun and not _seen(team, state, _NONE):
            _sleep_until_done(team, state)


def _elsewhere(team):
    """Whether this thread may use other processors than the one it is on; which are then in the
    first set behind the lanes, and all in the second.
    """
    rest = offset(team, _HELPER + _STRIDE * team[_LANES])
    whole = offset(rest, _MASK_WORDS)
    cpu = call_c(team[_CPU], 0)
    if cpu < 0 or call_c_3(team[_GET_CPUS], 0, 8 * _MASK_WORDS, team[_MASK]) != 0:
        return 0
    others = 0
    for k in range(_MASK_WORDS):
        whole[k] = rest[k]
        if k == cpu // 64:
            rest[k] &= ~(1 << cpu % 64)
        others |= rest[k]
    return 1 if others != 0 else 0


def _sleep_until_done(team, state):
    if compare_and_swap(team, state, _TAKEN, _AWAITED) == _TAKEN:
        while call_c(team[_WAIT], team[state + 2]) != 0:
            pass


def _seen(team, state, wanted):
    """Whether a state becomes `wanted` soon. A thread that another one keeps from its core learns
    it from the clock, and sleeps: whoever wakes it has the system find it a core again.
    """
    end = monotonic_ns(team[_CLOCK]) + _PATIENCE
    while True:
        for _ in range(_GREED):
            if atomic_load(team, state) == wanted:
                return True
        call_c(team[_YIELD], 0)
        if monotonic_ns(team[_CLOCK]) > end:
            return False


def _take_chunks(team, lane):
    """First the lane's own share, then what others have not begun."""
    row = offset(team, team[_ROW])
    chunk, chunks, shares = team[_CHUNK], team[_CHUNKS], team[_SHARES]
    for k in range(shares):
        whose = (lane + k) % shares
        end = (whose + 1) * chunks // shares
        while True:
            c = atomic_add(team, _HELPER + _STRIDE * whose + _NEXT, 1)
            if c >= end:
                break
            run_part(row, c * chunk, min((c + 1) * chunk, row[UNITS]), lane)


def help_forever(team, lo, hi, lane):
    """The life of lane `lo`: wait, take chunks, say done."""
    state = _HELPER + _STRIDE * lo
    while True:
        asked = _seen(team, state, _ASKED)
        if not asked and compare_and_swap(team, state, _NONE, _ASLEEP) == _NONE:
            while call_c(team[_WAIT], team[state + 1]) != 0:
                pass
            call_c_3(team[_SET_CPUS], 0, 8 * _MASK_WORDS, team[_MASK] + 8 * _MASK_WORDS)
        if compare_and_swap(team, state, _ASKED, _TAKEN) == _ASKED:
            _take_chunks(team, lo)
            if atomic_swap(team, state, _NONE) == _AWAITED:
                call_c(team[_POST], team[state + 2])


def call(entry: int, words: int, lo: int, hi: int, lane: int = 0) -> None:
    """Runs compiled code from Python; the GIL is free meanwhile."""
    _entry(entry)(_SLOTS, _SLOTS + 8, words, lo, hi, lane)


_entries: dict[int, Any] = {}
_slots = np.zeros(2, np.int64)
_SLOTS = _slots.ctypes.data


def _entry(address: int):
    found = _entries.get(address)
    if found is None:
        found = _entries[address] = ENTRY(address)
    return found


def most_lanes(lanes: int) -> int:
    """The number of lanes that there can be: 1 where the system has no unnamed semaphores."""
    return lanes if _semaphores() else 1


class Team:
    """The lanes of a process: `most_lanes` of `lanes`."""

    def __init__(self, lanes: int):
        semaphores = _semaphores() if lanes > 1 else None
        self.lanes = lanes if semaphores else 1
        self.words = np.zeros(_HELPER + _STRIDE * self.lanes + 2 * _MASK_WORDS, np.int64)
        self.words[_LANES] = self.lanes
        self.address = self.words.ctypes.data
        if self.lanes == 1 or semaphores is None:
            return
        init, *called = semaphores
        self._memory = np.zeros((self.lanes, 2, _SEMAPHORE_WORDS), np.int64)
        self.words[_POST : _SET_CPUS + 1] = called
        self.words[_MASK] = self.address + 8 * (_HELPER + _STRIDE * self.lanes)
        for lane in range(1, self.lanes):
            for which in (0, 1):
                address = self._memory[lane, which].ctypes.data
                init(ctypes.c_void_p(address), 0, 0)
                self.words[_HELPER + _STRIDE * lane + 1 + which] = address
            threading.Thread(
                target=self._help, args=(lane,), daemon=True, name=f"opstep lane {lane}"
            ).start()

    def _help(self, lane: int) -> None:
        self.words[_HELPER + _STRIDE * lane + 3] = threading.get_native_id()
        args = np.array([self.address], np.int64)
        call(HELP.address(), args.ctypes.data, lane, lane + 1)


@cache
def _semaphores():
    """(sem_init, addresses of what a team calls, from `_POST` on), or None where they lack."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    try:
        called = (libc.sem_post, libc.sem_wait, libc.sched_yield, libc.clock_gettime)
        called += (libc.sched_getcpu, libc.sched_getaffinity, libc.sched_setaffinity)
    except AttributeError:
        return None
    return libc.sem_init, *(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in called)


_teams: dict[tuple[int, int], Team] = {}
_team_lock = threading.Lock()


def _forget_helpers() -> None:
    """In a forked child, which has none of them: what is bound already runs on one lane."""
    for team in _teams.values():
        team.words[_LANES] = 1


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_helpers)


def team(lanes: int) -> Team:
    """The process's team of that many lanes (a forked child makes its own)."""
    with _team_lock:
        key = (os.getpid(), lanes)
        if key not in _teams:
            _teams[key] = Team(lanes)
        return _teams[key]


RUN_TABLE = jit.Kernel(run_table, ("*i64", "*i64", "i"), i64)
HELP = jit.Kernel(help_forever, ("*i64",), i64)


class LaunchTable:
    """Launches bound to addresses, ready to run as one native call."""

    def __init__(self, rows: list[list[int]], lanes: int, keep: Any = None):
        self._keep = keep  # what the addresses in the rows belong to
        self._rows = np.array(rows, np.int64).reshape(len(rows), ROW)
        # What nobody can share needs no helpers, whose kernel would have to be compiled.
        shared = bool((self._rows[:, UNITS] > self._rows[:, GRAIN]).any())
        self._team = team(lanes if shared else 1)
        table, other = self._rows.ctypes.data, self._team.address
        self._args = np.array([table, other, (table - other) // 8], np.int64)
        self._words = self._args.ctypes.data
        self._count = len(rows)
        self._call = _entry(RUN_TABLE.address())

    def __call__(self) -> None:
        self._call(_SLOTS, _SLOTS + 8, self._words, 0, self._count, 0)
