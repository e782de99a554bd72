"""The text of one graph, read block by block; an edit reads the blocks that it touches anew.

What is left alone would be read as before: a block ends behind a statement without a fault, so
nothing in it depends on what follows, and the next block begins as it would have begun.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress

from opstep.lsp.blocks import BLOCK, Block, Body
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.graph import Graph, Source
from opstep.runtime.ir.reading import Closing, Head, Reader, TooManyErrors, graph_of, tidy


class GraphText:
    """Reads a graph's item. Until `done`, and where nothing could be read, there is no `node`."""

    def __init__(self, source: Source):
        self.source = source
        self.done = False
        self.head: Head | None = None
        self.faults: list[Diagnostic] = []  # of the head
        self.blocks: list[Block] = []
        self.closing: Closing | None = None
        self.node: Graph | None = None
        self._whole = False  # nothing was left unread
        self.gone: list[Block] = []  # replaced by edits; the checker looks at them and empties it
        self.heads = 0  # how often the head was read

    @property
    def syntax(self) -> list[Diagnostic]:
        """What is wrong in it."""
        return [*self.faults, *(d for block in self.blocks for d in block.syntax)]

    def steps(self) -> Iterator[None]:
        """Reads all of it, and yields now and then."""
        reader = Reader(self.source)
        with suppress(TooManyErrors):
            position = self._head(reader)
            self.faults = reader.diagnostics
            if position is not None:
                yield from self._rest(reader, position)
            self._whole = True
        if not self._whole and self.blocks:  # cut short within the last block
            self._keep(reader, len(self.syntax))
        elif not self._whole:
            self.faults = reader.diagnostics
        self._finish()

    def _head(self, reader: Reader) -> int | None:
        """Reads the head; where the body begins. Without a body the rest of the text is read."""
        above, start = reader.begin(0)
        self.heads += 1
        self.head, position = reader.head(tidy(above, True))
        if position is None:
            self.head = None
            reader.items(reader.recover(start), [], True)
        return position

    def _rest(self, reader: Reader, position: int) -> Iterator[None]:
        """Reads statements up to the end of the body, and what follows it."""
        continues = True
        while continues:
            known = len(reader.diagnostics)
            read = reader.statements(position, not self.blocks, BLOCK)
            continues = read.continues
            block = Block(position, read.position, read.body, [])
            self.blocks.append(block)
            position = read.position
            if not continues:
                assert self.head is not None
                self.closing, position = reader.closing(read, self.head.brace)
                reader.items(position, [], True)
                block.end = reader.limit
            block.take_syntax(reader.diagnostics[known:])
            yield

    def _keep(self, reader: Reader, known: int) -> None:
        """What was reported behind the first `known` messages belongs to the last block."""
        self.blocks[-1].take_syntax(reader.diagnostics[known:])

    def _finish(self) -> None:
        self.done = True
        self.node = None
        if self.head is not None and self.closing is not None:
            self.node = graph_of(self.head, Body(self.blocks), self.closing)

    # --- edits ------------------------------------------------------------------------------------

    def edit(self, start: int, end: int, new: int) -> bool:
        """The source has `new` characters in place of those from `start` to `end`: reads anew what
        that touches. False where that is all of it; then nothing is read.
        """
        blocks = self.blocks
        if not self._whole or self.faults or not blocks or self.head is None:
            return False
        by = new - (end - start)
        if start >= blocks[0].start:
            return self._edit_body(start, end, by)
        return end < blocks[0].start and not blocks[-1].tells_of_head and self._edit_head(by)

    def _edit_head(self, by: int) -> bool:
        reader = Reader(self.source)
        reader.limit_to(self.blocks[0].start + by)
        old = self.head
        try:
            position = self._head(reader)
        except TooManyErrors:
            position = None
        if reader.diagnostics or position != reader.limit:
            self.head = old
            return False
        self._move(self.blocks, by)
        self._finish()
        return True

    def _edit_body(self, start: int, end: int, by: int) -> bool:
        blocks = self.blocks
        first = bisect_right(blocks, start, key=lambda b: b.start) - 1
        last = bisect_right(blocks, end, key=lambda b: b.start) - 1
        reader = Reader(self.source)
        position = blocks[first].start
        made: list[Block] = []
        while True:
            # what is said of a brace above does not move with the last block
            if last == len(blocks) - 1 or blocks[-1].tells_of_head:
                return self._read_tail(reader, first, position, made)
            reader.limit_to(blocks[last].end + by)
            many = reader.text.count("\n", position, reader.limit) > 2 * BLOCK
            known = len(reader.diagnostics)
            try:
                read = reader.statements(
                    position, first == 0 and not made, BLOCK if many else sys.maxsize
                )
            except TooManyErrors:
                return False
            block = Block(position, read.position, read.body, reader.diagnostics[known:])
            if read.continues or (read.clean and read.position == reader.limit):
                made.append(block)
                position = read.position
                if not read.continues or position == reader.limit:
                    break
                continue
            # The last statement may have looked further, or the body ends here.
            del reader.diagnostics[known:]
            last = last + 1 if reader.lex.kind == "end" else len(blocks) - 1
        self._move(blocks[last + 1 :], by)
        self._replace(first, last + 1, made)
        return True

    def _read_tail(self, reader: Reader, first: int, position: int, made: list[Block]) -> bool:
        """Reads all from `position` on."""
        reader.limit_to(len(reader.text))
        gone = self.blocks[first:]
        self.blocks = [*self.blocks[:first], *made]
        known = len(reader.diagnostics)
        try:
            for _ in self._rest(reader, position):
                pass
        except TooManyErrors:
            self._whole = False
            self._keep(reader, known)
        made = self.blocks[first:]
        self.blocks = [*self.blocks[:first], *gone]
        self._replace(first, len(self.blocks), made)
        return True

    def _move(self, blocks: list[Block], by: int) -> None:
        for block in blocks:
            block.move(by)
        if self.closing is not None and blocks:
            self.closing.end += by

    def _replace(self, first: int, last: int, made: list[Block]) -> None:
        self.gone += self.blocks[first:last]
        self.blocks[first:last] = made
        self._finish()
