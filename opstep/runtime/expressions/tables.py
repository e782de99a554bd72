"""What `stats`, `hist`, `topk` and `diff` give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class ValueTable:
    """`columns` name what stands in `rows`; `text` says all in a line; `fields` can be asked for by
    name: ``stats(x).std``.
    """

    __slots__ = ("columns", "fields", "kind", "rows", "text")

    def __init__(
        self,
        kind: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        text: str,
        fields: Mapping[str, Any],
    ):
        self.kind = kind
        self.columns = tuple(columns)
        self.rows = [tuple(row) for row in rows]
        self.text = text
        self.fields = dict(fields)

    def __repr__(self) -> str:
        return f"<{self.kind}: {self.text}>"
