"""The text form of a plan: one line a frame, a buffer, an instruction. `docs/plan.md` describes it.

What stands behind ``#`` in lines of buffers and memory is for the reader only. `parse_plan` reads
the rest back, and the hazard checker takes what it gives, so that a plan can be kept, changed by
hand and checked again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Source, Span
from opstep.runtime.plan.listing import (
    NOTHING,
    Access,
    BufferRow,
    FrameRow,
    Listing,
    StepRow,
    listing,
)
from opstep.runtime.plan.plan import (
    Alloc,
    Call,
    Fill,
    Free,
    Instruction,
    Plan,
    Policy,
    Record,
    Run,
    Sync,
    Wait,
)

_WIDEST_LABEL = 60  # columns; longer ones push their line's rest to the right


def format_plan(plan: Plan | Listing) -> str:
    """The text form. `parse_plan` of it equals `listing(plan)`."""
    p = plan if isinstance(plan, Listing) else listing(plan)
    q = p.policy
    lines = [
        f"plan     {p.graph}",
        f"source   {p.source}".rstrip(),
        f"policy   streams={q.streams} alloc={q.alloc} fill={q.fill} sync={q.sync}",
        f"streams  {p.streams}  start={_numbers(p.start)} finish={_numbers(p.finish)}",
        f"size     steps={len(p.steps)} events={p.events} arena={p.arena} peak={p.peak}",
        "",
        "frames",
        *_table([f"f{k}", f.graph, _parent(f), f.where] for k, f in enumerate(p.frames)),
        "",
        "buffers",
        *_table(_buffer_cells(p)),
        "",
        "instructions",
        *_instruction_lines(p),
        "",
        f"outputs  {_accesses(p.outputs)}",
    ]
    return "\n".join(lines) + "\n"


def _parent(frame: FrameRow) -> str:
    return "-" if frame.parent < 0 else f"f{frame.parent}"


def _numbers(streams: Iterable[int]) -> str:
    return ",".join(map(str, streams)) or "none"


def _range(row: BufferRow) -> str:
    return "own" if row.offset < 0 else f"{row.offset}..{row.offset + row.nbytes}"


def _buffer_cells(p: Listing) -> Iterable[list[str]]:
    """Columns of the table of buffers; behind ``#`` the names of the values that live there."""
    names: dict[int, dict[str, None]] = {}
    for step in p.steps:
        results = step.label.partition(" = ")[0].split(", ") if " = " in step.label else []
        for name, access in zip(results, step.writes, strict=False):
            names.setdefault(access.buffer, {})[name] = None
    for b, row in enumerate(p.buffers):
        holds = "-" if row.holds == NOTHING else f"v{row.holds}"
        cells = [f"b{b}", row.kind, str(row.nbytes), _range(row), holds, row.label or "-"]
        if row.kind == "temp":
            cells.append("# " + ", ".join(names.get(b, {"workspace": None})))
        yield cells


def _table(rows: Iterable[list[str]]) -> list[str]:
    """Lines of aligned columns; the last column is not padded."""
    rows = [list(r) for r in rows]
    widths = [
        max((len(r[k]) for r in rows if k < len(r) - 1), default=0)
        for k in range(max(map(len, rows), default=0))
    ]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=False)).rstrip() for r in rows
    ]


def _access(a: Access) -> str:
    return f"b{a.buffer}" if a.value == NOTHING else f"b{a.buffer}:v{a.value}"


def _accesses(accesses: Iterable[Access]) -> str:
    return " ".join(map(_access, accesses)) or "-"


def _instruction_lines(p: Listing) -> Iterable[str]:
    width = min(max((len(s.label) for s in p.steps), default=0), _WIDEST_LABEL)
    effects = [f"{_accesses(s.reads)} -> {_accesses(s.writes)}" for s in p.steps]
    effect_width = min(max(map(len, effects), default=0), _WIDEST_LABEL)
    digits = len(str(max(len(p.steps) - 1, 0)))
    for i in p.instructions:
        name = type(i).__name__.lower()
        head = f"  {name:<6}  s{i.stream}  "
        if isinstance(i, (Run, Call)):
            row = p.steps[i.step]
            effect = effects[i.step].ljust(effect_width)
            label = f"@{i.step:<{digits}}  {row.label:<{width}}"
            yield f"{head}{label}  |  {effect}  |  f{row.frame} {row.where}"
        elif isinstance(i, (Record, Wait)):
            yield f"{head}e{i.event}"
        elif isinstance(i, Sync):
            yield head.rstrip()
        else:
            comment = f"  # {_range(p.buffers[i.buffer])}" if isinstance(i, Alloc) else ""
            yield f"{head}b{i.buffer}{comment}"


# --- reading --------------------------------------------------------------------------------------


def parse_plan(text: str, path: str = "<plan>") -> Listing:
    """Reads the text form. Raises `OpstepError` at the first line that it cannot read."""
    return _Parser(text, path).parse()


_N, _S = r"\d{1,18}", r"\d{1,3}"  # a number, and that of a stream
_HEADER = {
    "plan": r"plan +(?P<graph>\S+)",
    "source": r"source *(?P<source>.*)",
    "policy": rf"policy +streams=(?P<limit>{_S}) alloc=(?P<alloc>reuse|fresh) "
    r"fill=(?P<fill>none|nan) sync=(?P<sync>none|op)",
    "streams": rf"streams +(?P<streams>{_S}) +start=(?P<start>none|{_S}(,{_S})*) "
    rf"finish=(?P<finish>none|{_S}(,{_S})*)",
    "size": rf"size +steps=(?P<steps>{_N}) events=(?P<events>{_N}) arena=(?P<arena>{_N}) "
    rf"peak=(?P<peak>{_N})",
}
_FRAME = re.compile(rf"f({_N}) +(\S+) +(-|f{_N})(?: +(\S.*))?$")
_BUFFER = re.compile(
    rf"b({_N}) +(input|const|param|temp|status) +({_N}) +(own|{_N}\.\.{_N}) +(-|v{_N})"
    r" +(`[^`]*`|\S+)"
)
_RUN = re.compile(rf"(run|call) +s({_S}) +@({_N}) +(\S.*)$")
_PLACE = re.compile(rf"f({_N}) (.*)$")
_OTHER = re.compile(rf"(alloc|free|fill|record|wait|sync) +s({_S})(?: +([be])({_N}))?$")
_ACCESS = re.compile(rf"b({_N})(?::v({_N}))?$")
_MAKERS: dict[str, tuple[str | None, Callable[..., Instruction]]] = {
    "alloc": ("b", Alloc),
    "free": ("b", Free),
    "fill": ("b", Fill),
    "record": ("e", Record),
    "wait": ("e", Wait),
    "sync": (None, Sync),
}


class _Parser:
    def __init__(self, text: str, path: str):
        self.source = Source(text, path)
        self.lines: list[tuple[int, str]] = []  # (offset, line)
        offset = 0
        for line in text.split("\n"):
            self.lines.append((offset, line))
            offset += len(line) + 1
        self.at = 0

    def parse(self) -> Listing:
        header: dict[str, str] = {}
        for name, pattern in _HEADER.items():
            line = self._next(f"a line `{name} …`")
            match = re.fullmatch(pattern, line)
            if match is None:
                raise self._error(f"expected a line `{name} …` as `opstep plan` writes it")
            header |= match.groupdict()
        frames = [self._frame(k, line) for k, line in enumerate(self._section("frames"))]
        buffers = [self._buffer(k, line) for k, line in enumerate(self._section("buffers"))]
        steps, instructions = self._instructions(int(header["steps"]), len(buffers), len(frames))
        outputs = self._outputs(len(buffers))
        return Listing(
            graph=header["graph"],
            source=header["source"],
            policy=Policy(int(header["limit"]), header["alloc"], header["fill"], header["sync"]),
            streams=int(header["streams"]),
            events=int(header["events"]),
            arena=int(header["arena"]),
            peak=int(header["peak"]),
            start=_streams(header["start"]),
            finish=_streams(header["finish"]),
            frames=frames,
            buffers=buffers,
            steps=steps,
            outputs=outputs,
            instructions=instructions,
        )

    # --- lines ---

    def _next(self, expected: str) -> str:
        """The next line that is not blank."""
        while self.at < len(self.lines):
            self.at += 1
            line = self.lines[self.at - 1][1]
            if line.strip():
                return line.rstrip()
        raise self._error(f"expected {expected}, not the end of the text")

    def _section(self, name: str) -> Iterable[str]:
        """The lines of a section, to the next blank line."""
        if self._next(f"the section {name}") != name:
            raise self._error(f"expected the section {name}")
        while self.at < len(self.lines) and self.lines[self.at][1].strip():
            self.at += 1
            yield self.lines[self.at - 1][1].strip()

    def _error(self, message: str) -> OpstepError:
        offset, line = self.lines[max(0, min(self.at, len(self.lines)) - 1)]
        span = Span(offset + len(line) - len(line.lstrip()), offset + len(line.rstrip()))
        return OpstepError(message, span=span, source=self.source)

    # --- rows ---

    def _frame(self, k: int, line: str) -> FrameRow:
        match = _FRAME.match(line)
        if match is None or int(match[1]) != k:
            raise self._error(
                f"expected frame f{k}: its graph, its parent and the line of the call"
            )
        parent = -1 if match[3] == "-" else int(match[3][1:])
        return FrameRow(match[2], parent, match[4] or "")

    def _buffer(self, k: int, line: str) -> BufferRow:
        match = _BUFFER.match(line)
        if match is None or int(match[1]) != k:
            raise self._error(f"expected buffer b{k}: kind, bytes, place, first value and name")
        nbytes, offset = int(match[3]), -1
        if match[4] != "own":
            offset, end = map(int, match[4].split(".."))
            if end - offset != nbytes:
                raise self._error(f"{match[4]} is not {nbytes} bytes")
        holds = NOTHING if match[5] == "-" else int(match[5][1:])
        return BufferRow(match[2], nbytes, offset, "" if match[6] == "-" else match[6], holds)

    def _instructions(self, count: int, buffers: int, frames: int):
        rows: dict[int, StepRow] = {}
        instructions: list[Instruction] = []
        for line in self._section("instructions"):
            if line.startswith(("run ", "call ")):
                instruction, row = self._op(line, count, buffers, frames)
                rows[instruction.step] = row
                instructions.append(instruction)
            else:
                instructions.append(self._other(line, buffers))
        if count > 10 + 2 * len(instructions):
            raise self._error(f"{len(instructions)} instructions cannot be those of {count} steps")
        absent = StepRow("a step that no line shows", 0, "no line", (), ())
        return [rows.get(k, absent) for k in range(count)], instructions

    def _op(self, line: str, count: int, buffers: int, frames: int) -> tuple[Run | Call, StepRow]:
        """A line that issues a step. Only the last column, a path, may have bars of its own."""
        head, *columns = [c.strip() for c in line.split("|", 2)]
        match = _RUN.match(head)
        location = _PLACE.match(columns[1]) if len(columns) == 2 else None
        if match is None or location is None or " -> " not in columns[0]:
            raise self._error("expected a step, its label | what it reads -> writes | its place")
        name, stream, step, label = match.groups()
        if int(step) >= count or int(location[1]) >= frames:
            raise self._error(f"there are {count} steps and {frames} frames")
        reads, _, writes = columns[0].partition(" -> ")
        accesses = (self._accesses(reads, buffers), self._accesses(writes, buffers))
        row = StepRow(label, int(location[1]), location[2], *accesses)
        return (Run if name == "run" else Call)(int(step), int(stream)), row

    def _other(self, line: str, buffers: int) -> Instruction:
        match = _OTHER.match(line.partition("#")[0].rstrip())
        if match is None or _MAKERS[match[1]][0] != match[3]:
            raise self._error("expected an instruction")
        make = _MAKERS[match[1]][1]
        if match[3] is None:
            return make(int(match[2]))
        if match[3] == "b" and int(match[4]) >= buffers:
            raise self._error(f"there is no buffer b{match[4]}")
        return make(int(match[4]), int(match[2]))

    def _accesses(self, text: str, buffers: int) -> tuple[Access, ...]:
        found = []
        for word in text.split() if text.strip() != "-" else ():
            match = _ACCESS.match(word)
            if match is None:
                raise self._error(f"expected a buffer and its value such as b3:v5, not {word}")
            if int(match[1]) >= buffers:
                raise self._error(f"there is no buffer b{match[1]}")
            found.append(Access(int(match[1]), NOTHING if match[2] is None else int(match[2])))
        return tuple(found)

    def _outputs(self, buffers: int) -> tuple[Access, ...]:
        line = self._next("a line `outputs …`")
        if not line.startswith("outputs"):
            raise self._error("expected a line `outputs …`")
        return self._accesses(line.removeprefix("outputs").strip(), buffers)


def _streams(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(map(int, text.split(",")))
