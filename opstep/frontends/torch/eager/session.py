"""A script's run, watched: what the watcher, the hooks and the findings share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opstep.frontends.torch.eager.births import BORN, Birth, Births, undispatched
from opstep.frontends.torch.eager.dispatch import Dispatch, Listener
from opstep.frontends.torch.eager.findings import ScriptFinding, finding_of
from opstep.frontends.torch.eager.harm import END, GRADIENT, Harm, Sinks
from opstep.frontends.torch.eager.hooks import Hooks
from opstep.frontends.torch.eager.names import Names, leaves, roots
from opstep.frontends.torch.eager.native import Native, Unavailable


class Session:
    """`tell`: called with each finding; what it raises ends the script. `native`: whether the
    native watcher is used where it can be. `listener`: looks at every op, which only the watcher in
    Python can show it.
    """

    def __init__(
        self, tell: Callable[[ScriptFinding], None], *, nan_only: bool = False,
        native: bool = True, listener: Listener | None = None,
    ):  # fmt: skip
        self.found: list[ScriptFinding] = []
        self._tell = tell
        self.births = Births(self._place)
        self.sinks = Sinks(self.births, self._report, nan_only)
        self.watcher = self._watcher(native and listener is None, listener)
        self.sinks.place_of = self._place
        self.sinks.level_of = self.watcher.level
        self.hooks = Hooks(self.watcher, self.births, self.sinks, self._on_scaler)
        self._born: list[Birth] = []
        self.births.on_birth = self._born.append

    def _watcher(self, native: bool, listener: Listener | None) -> Any:
        if native:
            try:
                return Native(self.births, self.sinks)
            except Unavailable:
                pass
        return Dispatch(self.births, self.sinks, listener)

    def _place(self) -> Any:
        return self.watcher.place()

    def __enter__(self) -> Session:
        self.hooks.__enter__()
        self.watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.watcher.stop()
        self.hooks.__exit__(*error)

    def end(self) -> None:
        """The script is over: what it trained is looked at."""
        if not self.births.any:
            return
        with undispatched():
            params = [p for root in roots() for p in root.parameters()] + leaves()
            for p in params:
                for birth in self.births.of(p.untyped_storage()._cdata):
                    birth.into_parameter = True
            for sink, tensors in ((END, params), (GRADIENT, [p.grad for p in params])):
                for p, t in zip(params, tensors, strict=True):
                    if t is not None:
                        self.sinks.ask(t, sink, label=str(p.untyped_storage()._cdata))

    def leave(self) -> None:
        """The script is to end."""
        self.watcher.silence()

    def _report(self, harm: Harm) -> None:
        with undispatched():
            batch = self.hooks.batch
            text = f"batch {batch.number}" if batch.number >= 0 else ""
            one = finding_of(harm, Names(self.hooks.optimizers), text)
        self.found.append(one)
        self._tell(one)

    def _on_scaler(self, text: str) -> None:
        """A GradScaler that cannot find a scale: its last birth is to blame."""
        scaled = [b for b in self._born if b.scaled and b.how == BORN]
        if scaled:
            self._report(Harm(scaled[-1], text, "", self._place(), scaled[-1].level))

    @property
    def harmless(self) -> list[Birth]:
        """Births that did no harm that is known of."""
        return [b for b in self._born if b.how == BORN]
