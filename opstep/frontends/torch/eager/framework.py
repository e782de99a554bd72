"""Eager PyTorch in a script: all its ops are watched, and the script runs as PyTorch runs it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from opstep.api.program import Program
from opstep.frontends.scripts.frameworks import Framework
from opstep.frontends.scripts.options import Hunting
from opstep.frontends.torch.eager import native
from opstep.frontends.torch.eager.births import Birth, undispatched
from opstep.frontends.torch.eager.lint import LintFinding, linting
from opstep.frontends.torch.eager.programs import program_of
from opstep.frontends.torch.eager.records import Records
from opstep.frontends.torch.eager.report import short
from opstep.frontends.torch.eager.session import Session
from opstep.frontends.torch.eager.steps import Recorder, simple_kernels
from opstep.frontends.torch.importing import check_installed

MOST_LINES = 3  # of births without harm


class Eager(Framework):
    """`options`: those of a hunt, and `sync`; `patterns`: of modules that are to be compiled, which
    none is here.
    """

    part = "op"

    def __init__(self, options: dict[str, Any], patterns: Sequence[str]):
        check_installed()
        hunting = options.get("hunt")
        self._hunting = hunting if isinstance(hunting, Hunting) else Hunting()
        how = self._hunting
        self._lint = linting(how.lint_except) if how.lint else None
        recording = options.get("recording")
        self._records = Records(recording) if recording is not None else None
        self._recorder = Recorder() if how.keep_step else None
        self._stack = ExitStack()
        self._error: BaseException | None = None  # that ended the script
        self._session = Session(
            how.report or (lambda found: None), criteria=how.criteria, masked=how.masked,
            known=how.known, waits=options.get("sync") == "op",
            listeners=[one for one in (self._lint, self._recorder) if one is not None],
            records=self._records,
            looks=self._records is None or how.report is not None,
        )  # fmt: skip

    def __enter__(self) -> Eager:
        if self._session.watcher.form != "native" and not native.what_is_missing():
            native.build_in_background()
        if self._lint is not None:
            self._lint.__enter__()
        self._session.__enter__()
        if self._recorder is not None:
            self._recorder.session = self._session
            self._stack.enter_context(simple_kernels())
            self._stack.enter_context(self._recorder.hooked())
        if self._records is not None:
            self._records.begin(self._session)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        self._session.__exit__(*error)
        if self._records is not None:
            is_ended = isinstance(error[1], KeyboardInterrupt | SystemExit)
            self._records.end(error[1] if is_ended else self._error)
        if self._lint is not None:
            if error[:1] == (None,):
                self._lint.end()
            self._lint.__exit__(*error)

    def faults(self) -> list[LintFinding]:
        return self._lint.found if self._lint is not None else []

    def kept_step(self) -> tuple[int, Program] | None:
        """The step at hand as far as it has run, and its number; None where none is kept. Raises
        `ImportFailed` where ops have no counterpart.
        """
        recorder = self._recorder
        if recorder is None:
            return None
        if recorder.failed is not None:
            raise recorder.failed
        recorder.finish(is_over=False)
        with ThreadPoolExecutor(1) as pool:  # in this one, an op may be about to run
            return recorder.steps, pool.submit(undispatched()(program_of), recorder).result()

    def cause_of(self, error: Exception) -> None:
        """The lint knows of some why they are raised."""
        self._error = error
        if self._lint is not None:
            self._lint.cause_of(error)

    @property
    def called(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._session.counts()[0]

    compiled = count = called  # pyright: ignore[reportAssignmentType]

    def leave(self) -> None:
        self._session.leave()

    def settle(self, error: BaseException | None) -> None:
        """The parameters that the script leaves are looked at, and what it failed with."""
        self._session.end(error)

    def seen(self) -> str:
        steps = self._session.hooks.steps
        after = f" in {steps:,} step{'s' * (steps != 1)} of optimizers" if steps else ""
        ops = self.called
        return f"{ops:,} op{'s' * (ops != 1)}{after}"

    def excepted(self) -> str:
        return "".join(f"; {text}" for text in excepted(self._session))

    def notes(self) -> list[str]:
        broken = self._lint.broken if self._lint is not None else {}
        left = [f"the lint left out {kind}: {text}" for kind, text in broken.items()]
        return self._session.notes + left


def excepted(session: Session) -> list[str]:
    """Births that did no harm; what a scaler skipped; what was not looked at."""
    skipped = session.hooks.skipped
    parts = []
    if skipped:
        steps = "1 step" if skipped == 1 else f"{skipped:,} steps"
        parts.append(f"GradScaler skipped {steps}")
    born = [b for b in session.births_of_own if not b.scaled]
    if born:
        lines = list(dict.fromkeys(map(_place, born)))
        more = f" and {len(lines) - MOST_LINES:,} more lines" * (len(lines) > MOST_LINES)
        where = f"{', '.join(lines[:MOST_LINES])}{more}"
        parts.append(f"some were born that did no harm ({where}): --masked reports them")
    _, unseen = session.counts()
    if unseen:
        kinds = ", ".join(f"{n:,} of {kind}" for kind, n in sorted(unseen.items()))
        parts.append(f"results that were not looked at: {kinds}")
    return parts


def _place(birth: Birth) -> str:
    from opstep.frontends.torch.eager.findings import frames_of

    own = frames_of(birth)
    return f"{birth.op}, {short(own[0].file)}:{own[0].line}" if own else birth.op
