"""Commands that say where the run stops."""

from __future__ import annotations

from functools import partial

from opstep.cli.debug.locations import locate, stopping
from opstep.cli.debug.points import KINDS, Entry, Location
from opstep.cli.debug.registry import GRAPHS, Refused
from opstep.cli.debug.session import Session
from opstep.cli.debug.words import count, numbers, split_if
from opstep.runtime.ir.diagnostics import visible
from opstep.runtime.ir.lexer import bare_name, is_tensor_name

command = partial(GRAPHS.command, section="breakpoints", repeats=False)


def added(session: Session, kind: str, what: str, **details) -> Entry:
    entry = session.points.add(session.debugger.breakpoints, kind, what, **details)
    session.say(f"{entry.title.capitalize()} {entry.number}{about(entry)}")
    if entry.core is not None and entry.core.message:
        session.say(f"{session.paint('warning:', 'yellow')} {entry.core.message}")
    return entry


def about(entry: Entry) -> str:
    """``at lenet.opg:19``, ``on op conv2d``, ``: nan(loss)``"""
    if entry.kind in ("watch", "catch"):
        return f": {visible(entry.what)}"
    if entry.location.name:
        return f" on {entry.location.name}"
    line = entry.core.line if entry.core else entry.location.line
    return f" at {Location(entry.location.path, line)}"


def set_break(session: Session, text: str, temporary: bool) -> None:
    where, condition = split_if(text)
    added(
        session, "break", where, location=stopping(session, locate(session, where)),
        condition=condition, temporary=temporary,
    )  # fmt: skip


@command("break [LOCATION] [if EXPR]", "b", "br", "brea", completes="place")
def break_(session: Session, text: str) -> None:
    """Stop before a line, at the start of a graph, or before each op of a name.

    LOCATION is LINE, FILE:LINE, a graph, an op (conv2d), a value (c1, features.c1) or a function of
    Python (Net.forward); the default is the current line. With a condition, stop only where it is
    true: break linear if max(abs(x)) > 100. The condition sees the values from before the op.
    """
    set_break(session, text, temporary=False)


@command("tbreak [LOCATION] [if EXPR]", "tb", completes="place")
def tbreak(session: Session, text: str) -> None:
    """Like break, but the breakpoint is deleted after its first stop."""
    set_break(session, text, temporary=True)


@command("dprintf LOCATION, MESSAGE", completes="place")
def dprintf(session: Session, text: str) -> None:
    """Print a message at a location, and continue.

    Expressions in braces are evaluated: dprintf 12, loss is {loss}, at most {max(x)}
    """
    where, comma, message = text.partition(",")
    message = message.strip()
    if len(message) > 1 and message[0] == message[-1] == '"':
        message = message[1:-1]
    if not comma or not message:
        raise Refused("a message is missing", "dprintf 12, loss is {loss}")
    added(session, "log", where.strip(), location=stopping(session, locate(session, where)),
          log=message)  # fmt: skip


@command("watch EXPR", completes="expression")
def watch(session: Session, text: str) -> None:
    """Stop after the op that changes a tensor or makes a predicate true: a data breakpoint.

    watch loss: when loss changes. watch nan(c1), watch max(abs(h)) > 1e4: when it becomes true.
    watch nan(value) tests every result, under the name value; watch * if EXPR is the same.
    watch loss if EXPR tests loss only.
    """
    from opstep.runtime.expressions import parse

    text = text.strip()
    if not text:
        raise Refused("an expression is missing", "watch nan(loss)")
    name, condition = split_if(text)
    if condition is None:
        mentioned = parse(text).names
        if not mentioned:
            raise Refused("a constant cannot be watched", "watch nan(loss)")
        names = [n for n in mentioned if n != "value"]
        if is_tensor_name(text):
            name, condition = bare_name(text), None
        else:
            name, condition = computed_last(session, names), text
    check_computed(session, name)
    added(session, "watch", text, name=name, condition=condition)


def check_computed(session: Session, name: str) -> None:
    """Complains of a name that no op computes, only calls of graphs give: it is watched under the
    name that it has where it is computed. Raises `Refused`.
    """
    from opstep.runtime.ir.graph import Apply, Return
    from opstep.runtime.ir.op import OPS

    texts = session.debugger.host.texts()
    graphs = {g.name.text: g for t in texts for g in t.graphs}
    hint = ""
    for graph in graphs.values():
        value = name.removeprefix(f"{graph.name.text}.")
        for one in graph.body:
            results = [r.name.text for r in one.results] if isinstance(one, Apply) else []
            if value not in results or not isinstance(one, Apply):
                continue
            called = graphs.get(one.callee.text)
            op = OPS.get(one.callee.text)
            if called is None and (op is None or not op.traits.host):
                return
            hint = f"watch a value of a graph that {one.callee.text} calls"
            if called is not None and called.body and isinstance(called.body[-1], Return):
                inner = called.body[-1].values[results.index(value)].text
                hint = f"watch {called.name.text}.{inner}, or that if EXPR, which calls it value"
    if hint:
        raise Refused(f"{name} is what a call of a graph gives", hint)


def computed_last(session: Session, names: list[str]) -> str:
    """Of the names in a predicate the one that is computed last: then the others are there. ``*``
    where there are none.
    """
    if not names:
        return "*"
    order: dict[str, int] = {}
    for text in session.debugger.host.texts():
        for graph in text.graphs:
            for k, statement in enumerate(graph.body):
                for result in getattr(statement, "results", ()):
                    order[result.name.text] = k
                    order[f"{graph.name.text}.{result.name.text}"] = k
    return max(names, key=lambda n: order.get(n, -1))


@command("catch KIND [origin] [if EXPR]", completes="filter")
def catch(session: Session, text: str) -> None:
    """Stop when an op goes wrong: nan, inf, uninitialised, assert or device.

    The stop is after the op and shows its result. origin: only if the op's operands have no NaNs
    or infinities. In a condition, value is the result: catch inf if size(value) > 1.
    uninitialised needs fill=nan and sync=op, as in debug mode.
    """
    from opstep.runtime.debugger.breakpoints import FILTERS

    head, condition = split_if(text)
    words = head.split()
    origin = "origin" in words[1:]
    words = [w for k, w in enumerate(words) if not (k and w == "origin")]
    if not words:
        raise Refused("what is to be caught is missing", f"there are: {', '.join(FILTERS)}")
    kinds = [filter_named(word) for word in words]
    for kind in kinds:
        what = f"{kind}{' origin' if origin else ''}"
        added(session, "catch", what, name=kind, condition=condition, origin=origin)
        policy = session.debugger.machine.policy
        if kind == "uninitialised" and (policy.fill, policy.sync) != ("nan", "op"):
            session.say("note: it sees nothing without --fill nan and --sync op")


def filter_named(word: str) -> str:
    """A kind of trouble, or how its name begins. Raises `Refused`."""
    from opstep.runtime.debugger.breakpoints import FILTERS

    word = {"uninitialized": "uninitialised"}.get(word, word)
    found = [name for name in FILTERS if name.startswith(word)]
    if len(found) != 1:
        raise Refused(
            f"{visible(word[:40])} is not a kind of trouble", f"there are: {', '.join(FILTERS)}"
        )
    return found[0]


# --- changing them ---


@command("condition N [EXPR]", completes="breakpoint expression")
def condition(session: Session, text: str) -> None:
    """Set the condition of breakpoint N, or remove it."""
    from opstep.runtime.expressions import parse

    word, _, expression = text.partition(" ")
    entry = one(session, word)
    expression = expression.strip()
    if entry.kind == "watch" and not expression and entry.name == "*":
        raise Refused("a watchpoint on all tensors needs a condition")
    if expression:
        parse(expression)
    entry.condition = expression or None
    if entry.kind in ("watch", "catch"):
        entry.what = f"{entry.name}{f' if {expression}' if expression else ''}"
    session.changed()
    if not expression:
        session.say(f"Breakpoint {entry.number} now unconditional.")


def one(session: Session, text: str) -> Entry:
    found = numbers(text)
    if len(found) != 1:
        raise Refused("the number of a breakpoint is missing", "info breakpoints has them")
    return session.points.get(found[0])


@command("ignore N COUNT", completes="breakpoint")
def ignore(session: Session, text: str) -> None:
    """Skip the next COUNT stops of breakpoint N."""
    words = text.split()
    if len(words) != 2:
        raise Refused("it takes the number of a breakpoint and a count", "ignore 1 100")
    entry = one(session, words[0])
    if entry.kind not in ("break", "watch"):
        raise Refused(f"a {KINDS[entry.kind]} cannot be ignored", "give it a condition")
    entry.settle()
    entry.ignore = count(words[1])
    session.changed()
    session.say(f"Will ignore next {entry.ignore} hits of breakpoint {entry.number}.")


@command("clear [LOCATION]", completes="place")
def clear(session: Session, text: str) -> None:
    """Delete the breakpoints at a location, by default the current line."""
    where = locate(session, text)
    entries = session.points.of("break", "log")
    lines = {e.core.line if e.core else e.location.line: e for e in entries}
    cleared = [e.number for e in entries if e.location == where]
    if not cleared and where.line in lines and lines[where.line].location.path == where.path:
        cleared = [lines[where.line].number]
    if not cleared:
        raise Refused(f"there is no breakpoint at {where}")
    for number in cleared:
        del session.points.entries[number]
    session.changed()
    session.say(f"Deleted breakpoint {' '.join(map(str, cleared))}")


@command("commands [N]", completes="breakpoint")
def commands(session: Session, text: str) -> None:
    """Set the commands that run when breakpoint N (by default the last) stops.

    The commands follow, one a line, up to a line that says end. silent as the first hides the
    stop itself; continue as the last continues the run.
    """
    entries = session.points.entries
    if not entries:
        raise Refused("there are no breakpoints")
    entry = one(session, text) if text.strip() else entries[max(entries)]
    if session.interactive:
        session.say(f"Commands for breakpoint {entry.number}, one a line; finish with end.")
    lines: list[str] = []
    while True:
        line = session.read(">")
        if line is None or line.strip() == "end":
            break
        lines.append(line.strip())
    entry.commands = [line for line in lines if line]
