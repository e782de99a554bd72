"""What is proposed at a cursor, in its order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from lsprotocol import types

from opstep.lsp.completions import snippets
from opstep.lsp.completions.cursor import Cursor
from opstep.lsp.completions.scope import Scope

MOST = 300  # proposals of one answer; more come as one goes on typing

Kind = types.CompletionItemKind


class Proposals:
    """Collects completion items; those that do not match what is typed are left out.

    They are sorted by `rank`, then as they were added. With `stops` the client takes snippets.
    """

    def __init__(self, cursor: Cursor, scope: Scope, stops: bool):
        self.cursor = cursor
        self.scope = scope
        self.stops = stops
        self.items: list[types.CompletionItem] = []
        self.cut = False  # there are more than were taken
        self.cut_short = False  # there may be others once more is typed
        self._typed = cursor.word.lower()
        self._range = scope.file.range(cursor.start, cursor.end)

    def wants(self, label: str) -> bool:
        """Whether a proposal would be taken: it matches, and there are not too many yet."""
        if self._typed and not _matches(self._typed, label.lower()):
            return False
        self.cut = self.cut or len(self.items) >= MOST
        return not self.cut

    def add(
        self,
        label: str,
        kind: Kind,
        detail: str = "",
        text: str = "",
        *,
        rank: int = 5,
        snippet: str = "",
        label_detail: str = "",
        commit: Iterable[str] = (),
        data: Any = None,
        preselect: bool = False,
    ) -> None:
        """Proposes `label`. What is inserted is `snippet` where the client takes one, else `text`,
        else the label. `label_detail` stands greyed behind the label.
        """
        if not self.wants(label):
            return
        with_stops = bool(snippet) and self.stops
        new = snippet if with_stops else text or label
        self.items.append(
            types.CompletionItem(
                label=label,
                label_details=_label_details(label_detail) if label_detail else None,
                kind=kind,
                detail=detail or None,
                sort_text=f"{rank}{len(self.items):04d}",
                insert_text_format=types.InsertTextFormat.Snippet if with_stops else None,
                text_edit=types.TextEdit(self._range, new),
                commit_characters=list(commit) or None,
                data=data,
                preselect=preselect or None,
            )
        )

    def call(self, label: str, snippet: str, **rest: Any) -> None:
        """Proposes to call something; where the parenthesis stands already, its name only."""
        if self.scope.file.text.startswith("(", self.cursor.end):
            self.add(label, **rest)
        elif self.stops:
            self.add(label, snippet=snippet, **rest)
        else:
            self.add(label, text=snippets.plain(snippet), **rest)


@cache
def _label_details(text: str) -> types.CompletionItemLabelDetails:
    return types.CompletionItemLabelDetails(detail=text)


def _matches(typed: str, label: str) -> bool:
    """Whether the letters typed occur in this order, the first at the start of a word."""
    begin = label.find(typed[0])
    while begin >= 0:
        if begin == 0 or not label[begin - 1].isalnum():
            at = begin
            for letter in typed[1:]:
                at = label.find(letter, at + 1)
                if at < 0:
                    break
            else:
                return True
        begin = label.find(typed[0], begin + 1)
    return False
