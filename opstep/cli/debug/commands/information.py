"""``info``: what is there at a stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from opstep.cli.common import amount, size
from opstep.cli.debug import showing
from opstep.cli.debug.commands.stack import backtrace
from opstep.cli.debug.points import KINDS
from opstep.cli.debug.rank_session import RankSession
from opstep.cli.debug.registry import Refused, command
from opstep.cli.debug.session import Session
from opstep.cli.debug.values import named_line
from opstep.runtime.ir.diagnostics import did_you_mean, visible

MOST = 400  # lines of a plan

TOPICS: dict[str, Callable[[Session, str], None]] = {}
SHORT = {"b": "breakpoints", "s": "stack", "f": "frame"}


@command("info TOPIC", "i", section="data", completes="topic")
def info(session: Session, text: str) -> None:
    """Show information about the selected frame, the run or the session.

    args: the graph's inputs. locals: values computed so far. params: named tensors, as they are
    now. op: the next op, its operands and kernels. memory: bytes and addresses. streams:
    what each is doing. ranks: likewise. plan: how the graph runs. Also stack, frame, source,
    graphs, breakpoints, display and history.
    args, locals and params accept names: info params conv1.*
    """
    word, _, rest = text.partition(" ")
    if not word:
        raise Refused("a topic is missing", f"there are: {', '.join(TOPICS)}")
    found = [name for name in TOPICS if name.startswith(word)]
    if word in TOPICS:
        found = [word]
    found = [SHORT[word]] if word in SHORT else found
    if len(found) != 1:
        hint = did_you_mean(word, TOPICS) or f"there are: {', '.join(TOPICS)}"
        raise Refused(f"{visible(word[:40])} is not a topic, or may be several", hint)
    TOPICS[found[0]](session, rest.strip())


def topic(name: str):
    def register(function: Callable[[Session, str], None]):
        TOPICS[name] = function
        return function

    return register


# --- values ---


def show_values(session: Session, nodes: dict, pattern: str, none: str) -> None:
    from fnmatch import fnmatchcase

    frame = session.frame()
    chosen = {n: v for n, v in nodes.items() if not pattern or fnmatchcase(n, pattern)}
    for name, node in chosen.items():
        session.say(named_line(session.paint, frame, name, node))
    if not chosen:
        session.say(none)


@topic("args")
def args(session: Session, text: str) -> None:
    frame = session.frame()
    if frame.python is None:
        show_values(session, frame.inputs(), text, "No arguments.")
    else:
        function = frame.python.function
        show_variables(session, text, function.arguments if function else (), "No arguments.")


@topic("locals")
def locals_(session: Session, text: str) -> None:
    frame = session.frame()
    if frame.python is not None:
        show_variables(session, text, None, "No locals.")
        return
    inputs = frame.inputs()
    found = {n: v for n, v in frame.names().items() if n not in inputs}
    show_values(session, found, text, "No locals.")


def show_variables(session: Session, pattern: str, only: Collection[str] | None, none: str) -> None:
    """Python's variables, or `only` some of them, and which ones are not known."""
    frame, names = session.frame(), session.debugger.stop_point.names
    known = {n: v for n, v in names.of(frame).items() if only is None or n in only}
    found = {n: node for n, v in known.items() if v and (node := frame.lookup(v))}
    others = [n for n in names.unknown(frame) if only is None or n in only]
    show_values(session, found, pattern, none)
    if others and not pattern:
        session.say(session.paint(f"not known here: {', '.join(others)}", "dim"))


@topic("params")
def params(session: Session, text: str) -> None:
    show_values(session, session.frame().params(), text, "No params.")


# --- the op ---


@topic("op")
def op(session: Session, text: str) -> None:
    from opstep.runtime.ir.foreign import foreign_op, is_foreign_name
    from opstep.runtime.ir.graph import Apply
    from opstep.runtime.ir.op import OPS

    frame = session.frame()
    statement = frame.statement
    if not isinstance(statement, Apply):
        session.say("No op is next: the graph returns, or updates and asserts.")
        return
    source = frame.source
    if source is not None:
        code = source.text[statement.span.start : statement.span.end]
        session.say(session.paint.source(" ".join(code.split())))
    name = statement.callee.text
    declared = foreign_op(name) if is_foreign_name(name) else OPS.get(name)
    session.say(f"{session.paint(name, 'bold')}: {declared.signature if declared else 'a graph'}")
    if declared:
        session.say(f"  {(declared.__doc__ or '').strip().partition(chr(10))[0]}")
    for what, found in (("operand", operands(statement)), ("result", results(statement))):
        for each in found:
            node = frame.lookup(each)
            if node is not None:
                session.say(f"  {what} {named_line(session.paint, frame, each, node)}")
    for line in kernels(session, frame):
        session.say(f"  {line}")


def operands(statement) -> Iterable[str]:
    from opstep.runtime.ir.graph import Name

    return dict.fromkeys(o.text for o in statement.operands if isinstance(o, Name))


def results(statement) -> Iterable[str]:
    return [r.name.text for r in statement.results]


def kernels(session: Session, frame) -> Iterable[str]:
    """What a device launches for the statement, and where."""
    from opstep.runtime.debugger.kernel.launches import kernel_launches

    plan = frame.activation.plan
    for point in frame.activation.points.points:
        if point.statement is not frame.statement or point.frame != frame.frame or point.step < 0:
            continue
        step = plan.steps[point.step]
        events = event_list("waits for", point.waits) + event_list("records", point.records)
        yield f"stream {point.stream}{events}"
        ids = (*step.operands, *step.results)
        types = tuple(None if v is None else plan.values[v].type for v in ids)
        target = session.debugger.host.device.kernels
        for launch in kernel_launches(step, types, target):
            size = amount(launch.units, "unit") if target == "cpu" else f"grid {launch.grid}"
            path, line = launch.definition
            yield f"kernel {launch.function.__name__}, {size}, {showing.shown_path(path)}:{line}"
        return


def event_list(what: str, events: tuple[int, ...]) -> str:
    return f", {what} {', '.join(f'e{e}' for e in events)}" if events else ""


# --- memory, streams, the plan ---


@topic("memory")
def memory(session: Session, text: str) -> None:
    executor, frame = session.debugger.machine.executor, session.frame()
    session.say(
        f"results that are kept: {size(executor.bytes_held)} of {size(executor.budget)}; "
        f"{amount(executor.computed, 'op')} run so far"
    )
    rows: list[tuple[str, str, str]] = []
    for name, node in frame.names().items():
        nbytes: Any = node.type.nbytes  # concrete here
        at = f"{node.address:#x}" if node.present else "dropped: computed again when looked at"
        rows.append((visible(name), size(nbytes), at))
    first, second = (max((len(row[k]) for row in rows), default=0) for k in (0, 1))
    for name, nbytes, at in rows:
        session.say(f"{session.paint(f'{name:<{first}}', 'bold')}  {nbytes:>{second}}  {at}")


@topic("streams")
def streams(session: Session, text: str) -> None:
    if isinstance(session, RankSession):
        TOPICS["ranks"](session, text)
        return
    debugger = session.debugger
    current = debugger.stack()
    for number, name in debugger.threads():
        frames = debugger.stack(number)
        marker = "*" if session.thread == number else " "
        if not frames:
            session.say(f"{marker} {name}")
            continue
        marker_text = " (next)" if current and frames[0].span == current[0].span else ""
        line = showing.frame_line(session.paint, frames[0])
        session.say(f"{marker} {name}  {line}{marker_text}")
    if session.thread is None:
        session.say("`thread N`: step in stream N only")


TOPICS["threads"] = streams


@topic("plan")
def plan(session: Session, text: str) -> None:
    from opstep.runtime.plan.text import format_plan

    lines = format_plan(session.frame().activation.plan).splitlines()
    for line in lines[:MOST]:
        session.say(visible(line))
    if len(lines) > MOST:
        session.say(f"… {amount(len(lines) - MOST, 'line')} more; opstep plan FILE shows all")


# --- the session ---

TOPICS["stack"] = backtrace


@topic("frame")
def frame(session: Session, text: str) -> None:
    frame = session.frame()
    session.say(
        f"#{frame.number}  " + showing.frame_line(session.paint, frame, showing.arguments_of(frame))
    )
    values, points = amount(len(frame.names()), "value"), amount(session.debugger.position, "point")
    session.say(f"  {values}; {points} into the run")


@topic("source")
def source(session: Session, text: str) -> None:
    for text_ in session.debugger.host.texts():
        lines = text_.source.text.count("\n")
        path = showing.shown_path(text_.source.path)
        session.say(f"{path}: {amount(lines, 'line')}, {amount(len(text_.graphs), 'graph')}")


@topic("graphs")
def graphs(session: Session, text: str) -> None:
    for text_ in session.debugger.host.texts():
        for graph in text_.graphs:
            line = text_.source.locate(graph.span.start)[0]
            code = text_.source.text.splitlines()[line - 1].rstrip(" {")
            session.say(f"{line:>5}  {session.paint.source(code)}")


@topic("history")
def history(session: Session, text: str) -> None:
    points = session.debugger.machine.history
    back, ahead = points.cursor - points.base, points.frontier - points.cursor
    session.say(f"{back:,} points back, {ahead:,} ahead that have been run")


@topic("display")
def display(session: Session, text: str) -> None:
    for number, (form, expression) in session.displays.items():
        session.say(f"{number}: {f'/{form} ' if form else ''}{visible(expression)}")
    if not session.displays:
        session.say("No displays.")


@topic("breakpoints")
def breakpoints(session: Session, text: str) -> None:
    entries = session.points.entries.values()
    if not entries:
        session.say("No breakpoints.")
        return
    session.say(session.paint("Num  Type         Disp  Enb  What", "dim"))
    for e in entries:
        kind, disp = KINDS[e.kind], "del" if e.temporary else "keep"
        where = str(e.location) if e.kind in ("break", "log") else e.what
        if e.core is not None and e.location.line and e.core.line != e.location.line:
            where += f" (line {e.core.line})"
        session.say(
            f"{e.number:<4} {kind:<12} {disp:<5} {'y' if e.enabled else 'n':<4} {visible(where)}"
        )
        about = (
            [f"stop only if {visible(e.condition)}"] if e.condition and e.kind != "watch" else []
        )
        about += [f"write {visible(e.log)}"] if e.log else []
        about += [e.note] if e.note else []
        about += [f"already hit {amount(e.hits, 'time')}"] if e.hits else []
        about += [f"ignore next {amount(e.left, 'hit')}"] if e.left else []
        for line in [*about, *(f"  {visible(c)}" for c in e.commands)]:
            session.say(f"     {line}")
