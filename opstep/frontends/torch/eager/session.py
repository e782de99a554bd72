"""A script's run, watched: what the watcher, the hooks and the findings share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from opstep.frontends.torch.eager import native as native_watcher
from opstep.frontends.torch.eager.births import BORN, CAME, Birth, Births, in_parameter
from opstep.frontends.torch.eager.dispatch import Asked, Dispatch, Listener, Wants
from opstep.frontends.torch.eager.findings import ScriptFinding, finding_of, grown
from opstep.frontends.torch.eager.harm import BIRTH, END, FAILED, GRADIENT, Harm, Sinks, values_at
from opstep.frontends.torch.eager.hooks import Hooks
from opstep.frontends.torch.eager.kinds import Kinds
from opstep.frontends.torch.eager.names import Names, leaves, parameters
from opstep.frontends.torch.eager.tensors import level_of, readable, storage_key, undispatched
from opstep.runtime.nan.kinds import Criteria

_DEFAULT = Criteria()
_OF_NAN = re.compile(r"\b(nans?|infs?|infinit(e|y)|(non-?)?finite)\b", re.IGNORECASE)
MOST_BIRTHS = 1000  # without harm, that are remembered


class Session:
    """`tell`: called with each finding; what it raises ends the script. `criteria`: what is hunted;
    its wanted names are lines (``model.py:12``), ops, modules and parameters whose infinities are
    as they should be, and `known` gets those of them that were met. `masked`: each birth is a
    finding. `waits`: on a GPU each look waits for its op. `native`: whether the native watcher is
    used where it can be. `listeners`: look at every op, which only the watcher in Python shows.
    `looks`: see `Dispatch`. `records`: gets what runs, see `records.Records`.
    `beside`: modules are compiled, and hunts of their own report what comes out of them; ops beside
    them are watched natively or not at all.
    """

    def __init__(
        self, tell: Callable[[ScriptFinding], None], *,
        criteria: Criteria = _DEFAULT, masked: bool = False, known: set[str] | None = None,
        waits: bool = False, native: bool = True, listeners: Sequence[Listener] = (),
        looks: bool = True, records: Any = None, beside: bool = False,
    ):  # fmt: skip
        self._waits = waits
        self._beside = beside
        self.came: ScriptFinding | None = None  # of what may have come out of a compiled module
        self.found: list[ScriptFinding] = []
        self.births_of_own: list[Birth] = []  # that an op made, whatever came of them
        self.notes: list[str] = []
        self._tell = tell
        self._masked = masked
        self._wanted = criteria.wanted
        self._known = set() if known is None else known
        self._is_compiling = False  # a function of the script's own
        self._stack = ExitStack()
        self.births = Births(lambda: self.watcher.place())
        self.sinks = Sinks(self.births, self._report, criteria)
        if criteria.slow:
            listeners = [*listeners, Kinds(criteria, self.births, self.sinks.lost)]
        self._looks, self._records = looks, records
        self._asked: tuple[Wants | None, Asked | None, bool] = None, None, False
        noted = records.noted if records is not None else None
        self._is_seen = bool(listeners) or records is not None  # all ops are wanted
        self.watcher: Any = None
        if native and not listeners:
            self.watcher = self._native()
        self.watcher = self.watcher or Dispatch(self.births, self.sinks, listeners, looks, noted)
        self.sinks.place_of = self.births.place_of
        self.sinks.ops = lambda: self.watcher.counts()[0]
        self.sinks.note = lambda t, sink: self.watcher.note([t], sink)
        self.sinks.level_of = self.births.level_of = lambda t: self.watcher.level(t)
        self.hooks = Hooks(lambda: self.watcher, self.births, self.sinks, self._on_scaler)
        self.hooks.on_compile = self._on_compile
        self.hooks.sees_modules = not beside
        self.hooks.listeners = listeners
        self.births.on_birth = self._on_birth

    def _native(self) -> Any:
        try:
            if self._beside:
                native_watcher.build()
            return self._new_native()
        except native_watcher.Unavailable as error:
            how = "watched in Python, which takes longer"
            how = "ops beside compiled modules were not watched" if self._beside else how
            self.notes.append(f"{how}: {error}")
            return None

    def _new_native(self) -> native_watcher.Native:
        given = self._waits, self._looks, self._records
        return native_watcher.Native(self.births, self.sinks, *given)

    @property
    def is_watching(self) -> bool:
        """Whether ops are watched: Dynamo compiles nothing while a mode of Python's is there."""
        return not self._beside or not isinstance(self.watcher, Dispatch)

    def __enter__(self) -> Session:
        self.hooks.__enter__()
        if self.is_watching:
            self.watcher.start()
            if self._beside:
                self.watcher.distrust()
        return self

    def __exit__(self, *error: object) -> None:
        self.watcher.stop()
        self._stack.close()
        self.hooks.__exit__(*error)

    def ask(self, wants: Wants | None, asked: Asked | None, has_composites: bool = False) -> None:
        """See `Dispatch.ask`."""
        self._asked = wants, asked, has_composites
        self.watcher.ask(*self._asked)

    def counts(self) -> tuple[int, dict[str, int]]:
        """The number of ops that ran; results that were not looked at, by their kind."""
        return self.watcher.counts()

    def end(self, error: BaseException | None = None) -> None:
        """The script is over: what it trained is looked at, and what was at hand where it failed,
        which may be because it found a NaN itself.
        """
        self.hooks.settle()
        if not self.watcher.is_active:
            return
        given = values_at(error) if error is not None and _is_check(error) else []
        self.watcher.note([t for _, t in given], FAILED)
        self.watcher.step_done(wait=True)
        if self._failed(given, str(error)):
            return
        if self.births.any:
            self._look_at_parameters()
        self.sinks.ended()

    def _look_at_parameters(self) -> None:
        with undispatched():
            params = [p for p in parameters() + leaves() if readable(p)]
            for p in params:
                in_parameter(self.births.of(storage_key(p)))
            given = [(END, params), (GRADIENT, [p.grad for p in params])]
            is_scaling = self.hooks.skipped and self.hooks.steps  # the last one may be skipped, too
            for sink, tensors in given[: 1 if is_scaling else 2]:
                for p, t in zip(params, tensors, strict=True):
                    if t is not None and readable(t) and self.births.is_bad(storage_key(t)):
                        self.sinks.ask(t, sink, label=str(storage_key(p)))

    def _failed(self, given: list[tuple[str, torch.Tensor]], error: str) -> bool:
        """Whether the script failed with a NaN that it found, which is reported."""
        with undispatched():
            for what, t in given:
                if self.births.is_bad(storage_key(t)) and self.sinks.ask(t, what):
                    return True
            latest = [b for b in self.births_of_own[-1:] if b.step == self.births.step]
            if not latest or _OF_NAN.search(error) is None:
                return False
            # Nothing is at hand where PyTorch's anomaly mode raises.
            return self.sinks.judge(latest, latest[0].level, FAILED, "", self.births.place_of())

    def leave(self) -> None:
        """The script is to end."""
        self.watcher.silence()

    def origin(
        self, t: torch.Tensor, sink: str, of_worst: bool = False
    ) -> ScriptFinding | None:  # fmt: skip
        """Of what is bad in a tensor, as far as ops made it; with `of_worst`, of its NaNs if it has
        any, and not of infinities that they were made of.
        """
        with undispatched():
            level = level_of(t)
            births = self.births.of(storage_key(t))
            worst = [b for b in births if of_worst and b.level == level]
            birth = min(worst or births, key=lambda b: b.order, default=None)
            if birth is None:
                return None
            harm = Harm(birth, sink, "", self.births.place_of(), level)
            return finding_of(harm, Names(self.hooks.optimizers), self.hooks.batch.text())

    # --- what happens meanwhile ---

    def _on_birth(self, birth: Birth) -> None:
        if birth.how != BORN:
            return
        if len(self.births_of_own) < MOST_BIRTHS:
            self.births_of_own.append(birth)
        if self._masked and self.sinks.hunted[birth.level] and not birth.scaled:
            self.sinks.harmed(Harm(birth, BIRTH, "", birth.place, birth.level))

    def _report(self, harm: Harm) -> None:
        with undispatched():
            names = Names(self.hooks.optimizers)
            one = finding_of(harm, names, "" if harm.late else self.hooks.batch.text())
            one.why += grown(self.watcher.sizes(), names) if one.how == BORN else []
        file, line = one.place
        at = {f"{file}:{line}", f"{file.rpartition('/')[2]}:{line}", one.finding.op, one.module}
        parameter = names.tensors.get(int(harm.label)) if harm.label.isdigit() else ""
        if met := self._wanted & {*at, one.finding.given, parameter}:
            self._known.update(met)
            return
        if self._beside and one.how == CAME:
            self.came = self.came or one
            return
        self.found.append(one)
        self._tell(one)

    def _on_scaler(self, text: str) -> None:
        """A GradScaler that cannot find a scale: its last birth is to blame."""
        scaled = [b for b in self.births_of_own if b.scaled]
        if scaled:
            self.sinks.harmed(Harm(scaled[-1], text, "", self.births.place_of(), scaled[-1].level))

    def _on_compile(self) -> None:
        """The script compiles a function: Dynamo does not under a mode of Python's. So the native
        watcher goes on, once it is there; without it the function runs eagerly.
        """
        if self._beside or self._is_compiling:
            return
        if not self._is_seen and not isinstance(self.watcher, Dispatch):
            self.births.compiles = True
            self.watcher.distrust()
            return
        self._is_compiling = True
        if not self._is_seen and self._becomes_native():
            return
        self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self.notes.append("functions that the script compiles ran eagerly, to be watched")

    def _becomes_native(self) -> bool:
        try:
            native_watcher.build()
            other = self._new_native()
        except native_watcher.Unavailable:
            return False
        before, self.watcher = self.watcher, other
        before.stop()
        other.take_over(before)
        other.looks = before.looks
        other.ask(*self._asked)
        self.births.compiles = True
        other.distrust()
        self.notes = [n for n in self.notes if not n.startswith("watched in Python")]
        return True


def _is_check(error: BaseException) -> bool:
    """Whether a script may have failed because it found a NaN."""
    is_check = isinstance(error, AssertionError | SystemExit | FloatingPointError)
    return is_check or _OF_NAN.search(str(error)) is not None
