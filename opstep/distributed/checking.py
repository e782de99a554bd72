"""``--check``: before each collective its ranks compare what they are at."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opstep.runtime.ir.diagnostics import Diagnostic, Note, OpstepError
from opstep.runtime.ir.graph import Source, Span
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.plan.plan import Plan, Step
from opstep.runtime.plan.rank_traces import Place, Talk, talk_of

Arrays = dict[int, np.ndarray]
_TAG = 2  # of its messages, beside those of collectives
_SIZE = 4096  # bytes that are sent, whatever they say
_LONGEST = 300  # characters of one thing that is told


class Check:
    """Of one rank. Raises `OpstepError` where others are at something else, with both lines.
    `swap` sends to others and receives, by rank; `sources`: of the program that all run, by their
    paths.
    """

    def __init__(self, rank: int, swap: Callable[[Arrays, Arrays, int], Any]):
        self._rank = rank
        self._swap = swap
        self.sources: Mapping[str, Source] = {}

    def __call__(self, plan: Plan, step: Step) -> None:
        """This rank is at a collective."""
        talk = talk_of(plan, step)
        members = talk.group.members(self._rank)
        if talk.is_pair and members[talk.peer] == self._rank:
            raise _error(f"rank {self._rank} waits for itself at {talk}", talk.place)
        told = self._exchanged({members[talk.peer]} if talk.is_pair else set(members), talk)
        for other, its in told.items():
            if its is None or not self._meets(talk, other, its):
                raise self._error(talk, other, its)

    def between(self, members: Sequence[int]) -> None:
        """This rank is between two graphs, as all others are to be."""
        for other, its in self._exchanged(set(members), None).items():
            if its is not None:
                raise self._error(None, other, its)

    def _exchanged(self, others: set[int], own: Talk | None) -> dict[int, Talk | None]:
        """What others are at; None for those that are between two graphs."""
        others.discard(self._rank)
        got = {other: np.zeros(_SIZE, np.uint8) for other in others}
        self._swap(dict.fromkeys(others, _told(own)), got, _TAG)
        texts = {other: data.tobytes().rstrip(b"\0") for other, data in got.items()}
        return {other: self._talk(json.loads(text)) for other, text in texts.items()}

    def _talk(self, told: dict[str, Any] | None) -> Talk | None:
        if told is None:
            return None
        sources = (s for path, s in self.sources.items() if path.endswith(told["path"]))
        place = Place(next(sources, None), Span(*told["span"]))
        mesh = Mesh(tuple((name, extent) for name, extent in told["mesh"]), told["declared"])
        return Talk(told["op"], Group(mesh, tuple(told["axes"])), told["what"], place, told["peer"])

    def _meets(self, talk: Talk, other: int, its: Talk) -> bool:
        if its.group != talk.group or its.what != talk.what[:_LONGEST]:
            return False
        if not talk.is_pair or not its.is_pair:
            return its.op == talk.op
        return its.op != talk.op and its.group.members(other)[its.peer] == self._rank

    def _error(self, talk: Talk | None, other: int, its: Talk | None) -> OpstepError:
        here, there = (f"is at {one}" if one else "is done" for one in (talk, its))
        message, note = f"rank {self._rank} {here}, but rank {other} {there}", None
        if its is not None and its.place.source is not None:
            note = Note(f"rank {other} is here", its.place.span, its.place.source)
        return _error(message, talk.place if talk else None, note)


def _error(message: str, place: Place | None, note: Note | None = None) -> OpstepError:
    span, source = (place.span, place.source) if place else (None, None)
    notes = () if note is None else (note,)
    return OpstepError([Diagnostic("error", message, span, source, "", notes, "ranks")])


def _told(talk: Talk | None) -> np.ndarray:
    """What the others are told, in as many bytes as all send."""
    found, told = np.zeros(_SIZE, np.uint8), None
    if talk is not None:
        place, mesh = talk.place, talk.group.mesh
        told = {
            "op": talk.op, "mesh": mesh.axes, "declared": mesh.declared, "axes": talk.group.axes,
            "what": talk.what[:_LONGEST], "peer": talk.peer, "span": [*place.span],
            "path": place.source.path[-_LONGEST:] if place.source else "",
        }  # fmt: skip
    data = np.frombuffer(json.dumps(told).encode(), np.uint8)
    found[: data.size] = data
    return found
