"""Where a run stops: lines, graphs and ops by name, predicates on tensors, kinds of trouble."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opstep.runtime.debugger.line_mapping import mapped_line, text_on_disk
from opstep.runtime.debugger.python.lines import PythonLines, Start
from opstep.runtime.debugger.python.lines import canonical as _canonical
from opstep.runtime.expressions import Expression, ExpressionError, parse
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.foreign import is_foreign_name
from opstep.runtime.ir.graph import Apply, Graph, Source, Span, Statement
from opstep.runtime.ir.op import OPS

FILTERS = ("nan", "inf", "uninitialised", "assert", "device")
EVERY = "*"  # as the name of a data breakpoint: whatever an op computes

_HITS = re.compile(r"\s*(>=|<=|==|=|>|<|%)?\s*(\d{1,9})\s*$")


class Wanted(NamedTuple):
    """What is asked for. `condition` is an expression; `hits` is like ``3``, ``>=3``, ``%10``; a
    breakpoint with a `log` message, with expressions in braces, does not stop.

    `name`: of a graph, an op, or a value (``loss``, ``features.c``); of a data breakpoint that of a
    tensor, or ``*``. `text`: what the file said when `line` was its line; None: what it says now.
    `most`: the line of Python that another run stops at, which is not passed over in search of one.
    """

    line: int = 0
    name: str = ""
    condition: str | None = None
    hits: str | None = None
    log: str | None = None
    column: int | None = None
    text: str | None = None
    most: int | None = None


@dataclass
class Breakpoint:
    """`verified` is False, with a reason in `message`, where it can never stop. A `message` beside
    True is a warning: no statement is an op of that name.
    """

    number: int
    kind: str  # line, function, data
    request: Wanted
    verified: bool = True
    message: str = ""
    path: str = ""
    span: Span | None = None
    source: Source | None = None
    condition: Expression | None = None
    hit_test: Callable[[int], bool] | None = None
    parts: list[str | Expression] | None = None  # of the log message
    invalid: ExpressionError | None = None  # of its condition, hits or message
    python_line: int = 0  # of a file that the program was imported from
    levels: dict[int, int] = field(default_factory=dict)  # of origins there, by ids of statements
    text: str | None = None  # of the file when it was set, whose lines it speaks of
    counts: Counter[int] = field(default_factory=Counter)  # how often each rank was here

    @property
    def count(self) -> int:
        """How often it was reached, by the rank that was here most often."""
        return max(self.counts.values(), default=0)

    @property
    def line(self) -> int:
        if self.source is None or self.span is None:
            return self.python_line or self.request.line
        return self.source.locate(self.span.start)[0]


class Texts(NamedTuple):
    """A program's texts: each with its graphs."""

    source: Source
    graphs: list[Graph]


class _StatementLines(NamedTuple):
    """A statement with its first and last line, and the line that its graph begins in."""

    start: int
    end: int
    opens: int
    found: tuple[Source, Graph, Statement]


class Breakpoints:
    """All that are set. Numbers are never used twice. `tensors`: names of the program's params and
    states; `python`: the lines that it was imported from.
    """

    def __init__(
        self, texts: Sequence[Texts], tensors: Sequence[str] = (), python: PythonLines | None = None
    ):
        self.tensors = tensors
        self.python = python
        self._texts = list(texts)
        self._statement_lines: dict[str, list[_StatementLines]] = {}
        self._next = 1
        self._lines: dict[str, list[Breakpoint]] = {}
        self._functions: list[Breakpoint] = []
        self.data: list[Breakpoint] = []
        self.filters: dict[str, Expression | None] = {}
        self.origin_only: set[str] = set()
        self.by_statement: dict[int, list[Breakpoint]] = {}
        self.by_graph: dict[str, list[Breakpoint]] = {}
        self.by_op: dict[str, list[Breakpoint]] = {}
        self.by_value: dict[str, list[Breakpoint]] = {}
        self.at_points = False  # whether anything stops before an op

    # --- setting ---

    def set_lines(self, path: str, requests: Iterable[Wanted]) -> list[Breakpoint]:
        """The line breakpoints of a file, in place of those that it had. They speak of the file as
        it is now, which may not be what runs.
        """
        created, text = [self._new("line", w) for w in requests], text_on_disk(path)
        for found in created:
            found.path, found.text = path, found.request.text or text
        self._lines[_canonical(path)] = created
        self._resolve()
        return created

    def set_functions(self, requests: Iterable[Wanted]) -> list[Breakpoint]:
        """Breakpoints on graphs, ops and values by name, in place of those there were."""
        self._functions = [self._new("function", w) for w in requests]
        self._resolve()
        return self._functions

    def set_data(self, requests: Iterable[Wanted]) -> list[Breakpoint]:
        """Predicates on tensors, in place of those there were. In its condition the tensor is
        called `value`, or by its own name; without one it stops where the tensor has changed.
        """
        self.data = [self._new("data", w) for w in requests]
        for found in self.data:
            if found.verified and not self._is_tensor(found.request.name):
                found.verified, found.message = False, f"there is no tensor {found.request.name}"
        return self.data

    def set_filters(self, filters: dict[str, str | None], origin_only: Iterable[str] = ()) -> None:
        """Kinds of trouble that stop a run, each with a condition or None. Raises
        `ExpressionError` and `KeyError`.
        """
        for name in filters:
            if name not in FILTERS:
                raise KeyError(f"there is no filter {name}; there are: {', '.join(FILTERS)}")
        self.filters = {k: parse(c) if c else None for k, c in filters.items()}
        self.origin_only = set(origin_only)

    def all(self) -> list[Breakpoint]:
        return [*(b for found in self._lines.values() for b in found), *self._functions, *self.data]

    @property
    def armed(self) -> bool:
        """Whether anything could stop a run."""
        return bool(self.filters) or any(b.verified for b in self.all())

    def relocate(
        self, texts: Sequence[Texts], python: PythonLines | None = None
    ) -> list[Breakpoint]:
        """The program's text is another: all are found again, where their lines are now. Gives
        those that changed.
        """
        before = {b.number: (b.verified, b.line) for b in self.all()}
        self.python = python
        self._texts = list(texts)
        self._statement_lines.clear()
        for path, found in self._lines.items():
            text = self._text(path)
            for one in found:
                if text is not None and one.text is not None:
                    line = mapped_line(one.request.line, one.text, text)
                    one.request, one.text = one.request._replace(line=line), text
                one.request = one.request._replace(most=None)
        self._resolve()
        return [b for b in self.all() if before[b.number] != (b.verified, b.line)]

    def locations(self, path: str, first: int, last: int) -> list[tuple[int, int, int, int]]:
        """Where breakpoints can be between two lines: line, column, end line, end column."""
        if self.python is not None and not self._is_text(path):
            starts = self.python.starts().get(_canonical(path), [])
            lines = {s.first for s in starts if first <= s.first <= last}
            return [(line, 1, line, 1) for line in sorted(lines)]
        found = []
        for source, graph, statement in self.statements(path):
            line, column = source.locate(statement.span.start)
            if first <= line <= last and graph:
                found.append((line, column, *source.locate(statement.span.end)))
        return sorted(found)

    def statements(self, path: str) -> list[tuple[Source, Graph, Statement]]:
        """All of a file."""
        return [
            (text.source, graph, statement)
            for text in self._texts
            if _canonical(text.source.path) == _canonical(path)
            for graph in text.graphs
            for statement in graph.body
        ]

    def at_line(self, path: str, line: int) -> list[Start]:
        """Where a line begins, or the next one of the same graph; of a line of Python, each time
        that it is executed.
        """
        if self._is_text(path):
            found = self._of_text(path, line)
            if found is None:
                return []
            source, graph, statement = found
            return [Start(source.locate(statement.span.start)[0], graph, statement, None)]
        return self.python.at_line(path, line) if self.python else []

    def _is_text(self, path: str) -> bool:
        """Whether a file is one of the program's own texts."""
        return any(_canonical(t.source.path) == _canonical(path) for t in self._texts)

    def _of_text(self, path: str, line: int) -> tuple[Source, Graph, Statement] | None:
        """The statement of a line, or the next one of the same graph."""
        entries = self._index(path)
        k = bisect_right(entries, line, key=lambda one: one.start)
        if k and line <= entries[k - 1].end:
            return entries[k - 1].found
        if k < len(entries) and entries[k].opens <= line:
            return entries[k].found
        return None

    def _index(self, path: str) -> list[_StatementLines]:
        """The statements of a file in the order of their lines; made once a text."""
        if path not in self._statement_lines:
            entries = []
            for source, graph, statement in self.statements(path):
                first, last = statement.span.start, max(statement.span.end - 1, 0)
                start, end = source.locate(first)[0], source.locate(max(first, last))[0]
                opens = source.locate(graph.span.start)[0]
                entries.append(_StatementLines(start, end, opens, (source, graph, statement)))
            self._statement_lines[path] = sorted(entries, key=lambda one: one.start)
        return self._statement_lines[path]

    # --- finding what they mean ---

    def _new(self, kind: str, request: Wanted) -> Breakpoint:
        new = Breakpoint(self._next, kind, request)
        self._next += 1
        try:
            new.condition = parse(request.condition) if request.condition else None
            new.hit_test = _hit_test(request.hits) if request.hits else None
            new.parts = _parts(request.log) if request.log else None
        except ExpressionError as error:
            new.verified, new.message, new.invalid = False, str(error), error
        return new

    def _resolve(self) -> None:
        for table in (self.by_statement, self.by_graph, self.by_op, self.by_value):
            table.clear()
        for path, found in self._lines.items():
            for one in found:
                if not one.invalid:
                    self._resolve_line(path, one)
        for one in self._functions:
            if not one.invalid:
                self._resolve_name(one)
        self.at_points = bool(self.by_statement or self.by_graph or self.by_op or self.by_value)

    def _resolve_line(self, path: str, one: Breakpoint) -> None:
        line, text = one.request.line, self._text(path)
        if text is not None and one.text is not None:
            line = mapped_line(line, one.text, text)
        one.python_line, one.levels, one.source, one.span = 0, {}, None, None
        found = self._of_text(path, line)
        if found is not None:
            one.source, _, statement = found
            one.verified, one.message, one.span = True, "", statement.span
            self.by_statement.setdefault(id(statement), []).append(one)
        elif not self._is_text(path) and (starts := self._of_python(path, line, one.request)):
            one.verified, one.message, one.python_line = True, "", starts[0].first
            one.request = one.request._replace(most=one.python_line)
            for start in starts:
                one.levels.setdefault(id(start.statement), start.level or 0)
                self.by_statement.setdefault(id(start.statement), []).append(one)
        else:
            one.verified, one.message = False, self._why_nowhere(path)

    def _of_python(self, path: str, line: int, request: Wanted) -> list[Start]:
        starts = self.at_line(path, line)
        passed = starts and request.most is not None and starts[0].first > request.most
        return [] if passed else starts

    def _why_nowhere(self, path: str) -> str:
        if self._is_text(path):
            return "there is no statement here"
        if self.python is not None and _canonical(path) in self.python.starts():
            return "no op came from this line"
        return "the program has no such file"

    def _text(self, path: str) -> str | None:
        """Of a file as it runs."""
        return next((t.source.text for t in self._texts if _canonical(t.source.path) == path), None)

    def _resolve_name(self, one: Breakpoint) -> None:
        name = one.request.name
        graphs = {g.name.text: (t.source, g) for t in self._texts for g in t.graphs}
        one.verified, one.message = True, ""
        if name in graphs:
            one.source, graph = graphs[name]
            one.span = graph.name.span
            self.by_graph.setdefault(name, []).append(one)
        elif name in OPS or is_foreign_name(name):
            self.by_op.setdefault(name, []).append(one)
            if all(statement.callee.text != name for _, statement in self._applied()):
                one.message = f"no op of this program is called {name}"
        elif name in self._values():
            self.by_value.setdefault(name, []).append(one)
        else:
            near = did_you_mean(name, [*graphs, *OPS])
            one.verified = False
            one.message = f"no graph, op or value is called {name}{f' ({near})' if near else ''}"

    def _values(self) -> set[str]:
        """``c`` and ``features.c`` for each value that a statement computes."""
        found = set()
        for graph, statement in self._applied():
            names = [r.name.text for r in statement.results]
            found.update(names, (f"{graph.name.text}.{n}" for n in names))
        return found

    def _applied(self) -> Iterable[tuple[Graph, Apply]]:
        """Each statement that calls an op or a graph, with its graph."""
        for graph in (g for t in self._texts for g in t.graphs):
            yield from ((graph, s) for s in graph.body if isinstance(s, Apply))

    def _is_tensor(self, name: str) -> bool:
        inputs = {
            f"{g.name.text}.{b.name.text}" for t in self._texts for g in t.graphs for b in g.inputs
        }
        return name == EVERY or name in self._values() | inputs | set(self.tensors)


def _hit_test(text: str) -> Callable[[int], bool]:
    """Whether a breakpoint that was reached so many times stops. Raises `ExpressionError`."""
    match = _HITS.match(text)
    if not match:
        raise ExpressionError(f"{text!r} counts no hits", 0, "write 3, >=3 or %10")
    sign, number = match[1] or "==", int(match[2])
    tests = {
        "==": lambda n: n == number, "=": lambda n: n == number, ">=": lambda n: n >= number,
        "<=": lambda n: n <= number, ">": lambda n: n > number, "<": lambda n: n < number,
        "%": lambda n: number > 0 and n % number == 0,
    }  # fmt: skip
    return tests[sign]


def _parts(text: str) -> list[str | Expression]:
    """A log message: words and, in braces, expressions; ``{{`` is a brace."""
    found: list[str | Expression] = []
    for k, part in enumerate(re.split(r"(?<!\{)\{([^{}]*)\}(?!\})", text)):
        if k % 2:
            found.append(parse(part))
        elif part:
            found.append(part.replace("{{", "{").replace("}}", "}"))
    return found
