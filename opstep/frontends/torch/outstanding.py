"""Calls of hunted models that a GPU may still be at: nobody waits for each one to read its flags.

    call ── add ──> outstanding ── done, no flag ──> forgotten
                        └───────── a flag ──> all are waited for ──> repeated ──> replayed and told

Flags name ops; which elements are bad, and why, only a replay says, on the inputs that the call
had. A replay on others would be a lie. So inputs are kept until the flags are read, which is done

- when the next call begins, of calls that are done by then: it waits only if too much is kept;
- before an optimizer's step, which changes params: this waits, once for all calls before it;
- when somebody looks at `findings`, and when the process ends.

PyTorch counts the changes of a tensor in place. Where it counted one, or where the call repeated
gives other bits, what is told are the flags alone (`Hunt.overwritten`). Then, and in fact as soon
as the inputs of any call are seen to have changed, the calls of that graph are waited for.
"""

from __future__ import annotations

import os
import threading
from collections import UserList, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from opstep.frontends.scripts.watching import told
from opstep.hunting.harmless import Mark, marks_of
from opstep.runtime.ir.errors import DeviceError

if TYPE_CHECKING:
    from opstep.hunting.report import Hunt
    from opstep.runtime.device.flagging import Raised, Verdict

CALLS = 8  # that may be outstanding
KEPT = 2 << 30  # bytes that may be kept for them, params aside; else they are waited for


class Hunted(Protocol):
    """What has calls: one executable, with what is known of its flags."""

    waits: bool

    def news(self, raised: list[Raised]) -> list[Raised]:
        """Of these flags those that may mean something."""
        ...

    def repeat(self, call: Call) -> list[Raised] | None:
        """The flags of the call repeated; None where it is no longer the same."""
        ...

    def examine(self, raised: list[Raised], call: Call) -> None:
        """Replays a call that raised these flags, and tells of it."""
        ...

    def tell(self, raised: list[Raised], call: Call, until: int, repeated: bool) -> None:
        """Tells of flags alone, of this call or one until that step."""
        ...


class Call:
    """One that was made. `inputs` and `results`: tensors as the executable had them."""

    __slots__ = (
        "addresses", "fresh", "hunter", "inputs", "nbytes", "results", "step", "verdict",
        "versions",
    )  # fmt: skip

    def __init__(
        self, hunter: Hunted, verdict: Verdict, inputs: list[Any], results: list[Any], step: int,
        nbytes: int = 0,
    ):  # fmt: skip
        self.hunter = hunter
        self.verdict = verdict
        self.inputs = inputs
        given = [t for t in results if t is not None]
        self.results = list(zip(given, _versions(given) or (), strict=False))
        self.step = step
        self.nbytes = nbytes
        self.fresh = False  # nothing else was done since it was made
        self.versions = _versions(inputs)
        self.addresses = [t.data_ptr() for t in inputs]

    def is_changed(self) -> bool:
        """Whether it is known that an input is not what it was, or nobody can know."""
        if self.fresh:
            return False
        same = self.versions is not None and self.versions == _versions(self.inputs)
        return not same or self.addresses != [t.data_ptr() for t in self.inputs]


def _versions(tensors: list[Any]) -> list[int] | None:
    """How often each was changed in place; None where PyTorch does not count that for one."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # made in inference mode
        return None


class Outstanding:
    """Those calls, in their order. `sees_optimizers`: their steps are told to `before_step`."""

    def __init__(self):
        self.sees_optimizers = False
        self.calls: deque[Call] = deque()
        self._lock = threading.RLock()
        self._judging = False

    def add(self, call: Call, wait: bool) -> None:
        """The call just made. `wait`: its flags are read before this returns."""
        self.calls.append(call)
        if wait:
            call.fresh = True
            self.settle()
            call.fresh = False

    def poll(self) -> None:
        """Reads the flags of calls that are done; not those of the latest alone, for to ask costs
        something and it hardly is.
        """
        calls = self.calls
        if not calls or (len(calls) == 1 and calls[0].nbytes <= KEPT):
            return
        if self._lock.acquire(blocking=False):  # else somebody is about it
            try:
                self._read(wait=False)
            finally:
                self._lock.release()

    def settle(self) -> None:
        """Reads all flags, and waits for them."""
        if self.calls:
            with self._lock:
                self._read(wait=True)

    def before_step(self, *_: Any) -> None:
        """An optimizer is about to change params."""
        self.sees_optimizers = True
        self.settle()

    def forget(self) -> None:
        """In the child of a fork, which cannot use the GPU of its parent."""
        self.calls.clear()
        self._lock = threading.RLock()
        self._judging = False

    def at_exit(self) -> None:
        with suppress(DeviceError):  # whoever uses the GPU was told
            self.settle()

    def _read(self, wait: bool) -> None:
        calls = self.calls
        if self._judging:
            return
        while calls:
            call = calls[0]
            if not call.verdict.done():
                if not (wait or self._is_too_much()):
                    return
                self._wait(call)
            if call.hunter.news(call.verdict.raised()):
                self._judge()
            else:
                calls.popleft()
                call.hunter.waits = call.hunter.waits or call.is_changed()

    def _is_too_much(self) -> bool:
        return len(self.calls) > CALLS or sum(call.nbytes for call in self.calls) > KEPT

    def _wait(self, call: Call) -> None:
        try:
            call.verdict.wait()
        except DeviceError:  # it is lost, with all that is there
            self.calls.clear()
            raise

    def _judge(self) -> None:
        """One is bad: all are looked at. The GPU has nothing left to do then."""
        calls = list(self.calls)
        for call in calls:
            self._wait(call)
        for _ in calls:
            self.calls.popleft()
        self._judging = True
        try:
            seen: dict[int, list[Call]] = {}
            for call in calls:
                seen.setdefault(id(call.verdict.flags), []).append(call)
            judged = {k: v for some in seen.values() for k, v in _judged(some).items()}
            for call in calls:
                _tell(call, judged.get(call))
        finally:
            self._judging = False


class _Judged:
    """What is known of a bad call. `raised`: its own flags, seen again. `lost`: flags that no call
    raises again, of this call or one until step `until`; `repeated`: though all are the same.
    """

    def __init__(self, raised: list[Raised] | None):
        self.raised = raised
        self.lost: list[Raised] = []
        self.until = 0
        self.repeated = False


def _judged(calls: list[Call]) -> dict[Call, _Judged]:
    """Calls that one context ran, one after another: its flags are those of all of them."""
    hunter = calls[0].hunter
    news = hunter.news(calls[0].verdict.raised())
    if not news:
        return {}
    if len(calls) == 1 and calls[0].fresh:
        return {calls[0]: _Judged(news)}
    judged = {c: _Judged(None if c.is_changed() else hunter.repeat(c)) for c in calls}
    again = set[Mark]().union(*(marks_of(j.raised or ()) for j in judged.values()))
    lost = [r for r in news if not marks_of([r]) <= again]
    if lost:
        suspects = [c for c in calls if judged[c].raised is None]
        first = judged[(suspects or calls)[0]]
        first.lost, first.until = lost, (suspects or calls)[-1].step
        first.repeated = not suspects
    return judged


def _tell(call: Call, judged: _Judged | None) -> None:
    if judged is None:
        return
    if judged.raised and (news := call.hunter.news(judged.raised)):
        call.hunter.examine(news, call)
    if judged.lost:
        call.hunter.tell(judged.lost, call, judged.until, judged.repeated)


outstanding = Outstanding()
os.register_at_fork(after_in_child=outstanding.forget)


class Findings(UserList["Hunt"]):
    """What hunts of compiled models found. To look at it reads all flags; `told` is the list."""

    def __init__(self, told: list[Hunt]):
        self.told = told

    @property
    def data(self) -> list[Hunt]:  # pyright: ignore[reportIncompatibleVariableOverride]
        outstanding.settle()
        return self.told


findings = Findings(told)  # of all compiled models of the process that are hunted, the latest last
