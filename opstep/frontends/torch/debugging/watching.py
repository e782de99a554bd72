"""The watcher of PyTorch's ops in a script that is debugged: it stops where a NaN or an infinity
is born, as far as the person wants that, and says why.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from opstep.frontends.torch.eager.findings import documented
from opstep.frontends.torch.eager.tensors import INFINITE, NAN, undispatched

if TYPE_CHECKING:
    from opstep.frontends.torch.eager.births import Birth, Births
    from opstep.frontends.torch.eager.findings import ScriptFinding
    from opstep.frontends.torch.eager.session import Session

FILTERS = {"nan-origin": NAN, "inf-origin": INFINITE}  # of exceptions, as clients name them

session: Session | None = None
_shown: weakref.WeakSet[Any] = weakref.WeakSet()  # births that the script stopped at
latest: ScriptFinding | None = None  # that the script stands at, or stood at last
standing: ScriptFinding | None = None  # that it stands at


def watch(filters: Collection[str], asks: bool = False, builds: bool = False) -> None:
    """From now on the script stops where these are born; on the script's thread. `asks`: its ops
    are watched in any case; `builds`: by the native watcher, which may have to be compiled.
    """
    global session
    if session is None and (filters or asks):
        from opstep.frontends.torch.eager import native
        from opstep.frontends.torch.eager.session import Session

        if builds:
            with suppress(native.Unavailable):
                native.build()
        session = Session(_stop, masked=True, waits=True, looks=bool(filters))
        if session.watcher.form != "native" and not native.what_is_missing():
            native.build_in_background()
        session.__enter__()
    want(filters)


def want(filters: Collection[str]) -> bool:
    """Which of them are on; False where nothing is watched yet."""
    if session is not None:
        for name, level in FILTERS.items():
            session.sinks.hunted[level] = name in filters
        if session.watcher.looks != bool(filters):
            session.watcher.looks = bool(filters)
    return session is not None


def after_steps(call: Callable[[], None]) -> None:
    """From now on it is called after each step of an optimizer."""
    register_optimizer_step_post_hook(lambda *_: call())


@contextmanager
def unseen() -> Iterator[None]:
    """While the block lasts, what this thread computes is not the script's."""
    watcher = session.watcher if session is not None else None
    with undispatched():
        if watcher is None or watcher.form != "native":
            yield
            return
        before = watcher.within(True)
        try:
            yield
        finally:
            watcher.within(before)


def _stop(found: ScriptFinding) -> None:
    global latest, standing
    from opstep.frontends.torch.debugging import stops
    from opstep.frontends.torch.eager.report import report

    if found.birth in _shown:  # where it was born; now it does harm
        return
    _shown.add(found.birth)
    latest = standing = found
    try:
        stops.stop(report(found, is_live=True))
    finally:
        standing = None


def operand(order: int, number: int) -> Any:
    """One tensor that the op was given which made a birth, as it was."""
    for birth in _reported():
        if birth.order == order and number < len(birth.operands):
            tensor = birth.operands[number].tensor
            if tensor is not None:
                return tensor
    raise ValueError("the operand is not kept any more")


def _reported() -> Iterator[Birth]:
    """Births that the script stopped at, and those of the infinities that they were made of."""
    for found in session.found if session is not None else ():
        if found.birth is not None:
            yield found.birth
            yield from found.birth.causes


def finding(birth: Birth) -> ScriptFinding:
    """All that is known of a birth, whatever came of it."""
    from opstep.frontends.torch.eager.findings import finding_of
    from opstep.frontends.torch.eager.harm import BIRTH, Harm
    from opstep.frontends.torch.eager.names import Names

    names = Names(session.hooks.optimizers if session is not None else ())
    return finding_of(Harm(birth, BIRTH, "", birth.place, birth.level), names, "")


def births() -> Births | None:
    """Of all that is watched."""
    return session.births if session is not None else None


def is_stopped() -> bool:
    """Whether the script stands where the latest was born."""
    from opstep.frontends.torch.debugging import stops

    return stops.is_stopped()


def origin(t: Any) -> ScriptFinding | None:
    """The birth of what is bad in a tensor, as far as its op was seen."""
    if session is None or not session.watcher.looks:
        raise ValueError("NaNs are not watched: turn on a filter for them in Breakpoints")
    return session.origin(t, "this tensor", of_worst=True)


def operands() -> types.SimpleNamespace:
    """The tensors that the op was given which made the latest, as they were, as far as kept."""
    birth = latest.birth if latest is not None else None
    given = birth.operands if birth is not None else ()
    names = [documented(o.argument) or f"operand_{k}" for k, o in enumerate(given)]
    kept = {n: o.tensor for n, o in zip(names, given, strict=True) if o.tensor is not None}
    return types.SimpleNamespace(**kept)
