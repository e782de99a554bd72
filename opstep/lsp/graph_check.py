"""The verifier's findings in one graph, block by block; after an edit only the blocks are checked
again that it touches, or that use a value whose type is another now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from opstep.lsp.blocks import Before, Block, Checked
from opstep.lsp.graph_text import GraphText
from opstep.runtime.ir.applying import Applier
from opstep.runtime.ir.body import BodyChecker
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.graph import Apply, Declaration, Graph, Span
from opstep.runtime.ir.reporting import Reporter, TooMany
from opstep.runtime.ir.verified import VerifiedGraph

_ABSENT: Any = object()


class _Checker(BodyChecker):
    """Finds where a value is defined without walking through all of the body."""

    def __init__(self, text: GraphText, *args: Any):
        super().__init__(*args)
        self.text = text

    def definition(self, text: str) -> Span | None:
        for binding in self.graph.inputs:
            if binding.name.text == text:
                return binding.name.span
        for block in self.text.blocks:
            found = block.definition(text) if text in block.names else None
            if found is not None:
                return found.span
        return None


class GraphCheck:
    """What is known about a graph: `verified` and `problems`, once `done`."""

    def __init__(self, text: GraphText):
        self.text = text
        self.done = False
        self.verified: VerifiedGraph | None = None
        self.problems: list[Diagnostic] = []
        self._heads = -1  # of the text, when the head was checked
        self._stale: dict[str, Any] = {}  # types before, of values that may have another now

    def forget(self) -> None:
        """What it uses has changed: all is checked again."""
        self.done = False
        self._heads = -1

    def steps(
        self, graph: Graph, tensors: Mapping[str, Declaration], applier: Applier
    ) -> Iterator[None]:
        """Checks what must be checked, and yields now and then.

        Where it is left before its end, the next one goes on from there.
        """
        text, reporter = self.text, Reporter()
        checker = _Checker(text, graph, text.source, tensors, applier, reporter)
        if self._heads != text.heads:
            self._heads = text.heads
            self._stale = {}
            for block in text.blocks:
                block.checked = None
        self._take_gone()
        try:
            checker.check_head()
            yield from self._blocks(checker, tensors)
            checker.check_returned()
        except TooMany:
            self._heads = -1  # what was not checked is no base for the next time
        yield
        self._stale = {}
        applications = [a for b in text.blocks if b.checked for a in b.checked.applications]
        self.verified = checker.verified(applications)
        self.problems = reporter.diagnostics
        self.done = True

    def _take_gone(self) -> None:
        for block in self.text.gone:
            if block.checked is not None:
                for name, t in block.checked.defined.items():
                    self._stale.setdefault(name, t)
        self.text.gone.clear()

    def _blocks(self, checker: _Checker, tensors: Mapping[str, Declaration]) -> Iterator[None]:
        types, stale = checker.types, self._stale
        for block in self.text.blocks:
            before = Before(checker.returned is not None, checker.over, tuple(checker.updates))
            old = block.checked
            if old is None or self._again(old, before, block, types, tensors):
                block.checked = _check(block, before, checker)
                if old is not None:
                    for name, t in old.defined.items():
                        stale.setdefault(name, t)
                for name in block.checked.defined:
                    stale.setdefault(name, _ABSENT)
                yield
                continue
            types.update(old.defined)
            if old.updates or old.returned:
                block.settle()  # messages may tell their places
                checker.updates = {**old.updates, **checker.updates}
                checker.returned = checker.returned or old.returned
            checker.over = old.over

    def _again(
        self, old: Checked, before: Before, block: Block, types: Mapping, tensors: Mapping
    ) -> bool:
        """Whether a block that was checked must be checked once more."""
        if old.problems or old.before != before:
            return True
        stale = self._stale
        return any(
            name not in tensors and types.get(name, _ABSENT) != stale[name]
            for name in block.names & stale.keys()
        )


def _check(block: Block, before: Before, checker: _Checker) -> Checked:
    """Checks one block behind those before it."""
    known, reported = len(checker.types), len(checker.reporter.diagnostics)
    types = checker.types
    updates = dict(checker.updates)
    applications = checker.check_statements(block.statements)
    return Checked(
        before,
        dict(islice(reversed(types.items()), len(types) - known)),
        applications,
        checker.reporter.diagnostics[reported:],
        {name: u for name, u in checker.updates.items() if name not in updates},
        checker.returned if not before.returned else None,
        checker.over,
    )


def unused(text: GraphText, used: set[str]) -> Iterator[tuple[Apply, list[tuple[str, Span]]]]:
    """Statements with results that nothing uses, and which these are: the places of the names count
    as the text is now, those of the statements may not.
    """
    for block in text.blocks:
        if used.issuperset(block.defines):
            continue
        for s in block.unsettled:
            if isinstance(s, Apply):
                names = [b.name for b in s.results if b.name.text not in used]
                if names:
                    yield s, [(n.text, block.settled(n.span)) for n in names]
