"""Commands that say where a script stops."""

from __future__ import annotations

from functools import partial

from opstep.cli.debug.python.places import locate
from opstep.cli.debug.python.points import Entry
from opstep.cli.debug.python.session import PythonSession
from opstep.cli.debug.registry import PYTHON, Refused
from opstep.cli.debug.words import numbers, split_if
from opstep.runtime.ir.diagnostics import did_you_mean, visible

command = partial(PYTHON.command, section="breakpoints", repeats=False)
_CATCHES = {"nan": "nan-origin", "inf": "inf-origin"}  # our words for filters


def set_break(session: PythonSession, text: str, temporary: bool) -> None:
    where, condition = split_if(text)
    place = locate(session, where)
    entry = session.points.add(
        place.path, place.line, function=place.function, condition=condition, temporary=temporary
    )
    session.say(f"{entry.title} {entry.number} {at(entry)}")
    session.warn(entry)


def at(entry: Entry) -> str:
    """``at net.py:12``, ``on forward, in any module``"""
    if entry.path:
        return f"at {entry.place}"
    is_function = " " not in entry.place
    return f"on {entry.place}" + ", in any module" * is_function


@command("break [LOCATION] [if EXPR]", "b", "br", completes="place")
def break_(session: PythonSession, text: str) -> None:
    """Stop before a line, at the start of a function, or after an op of PyTorch.

    break 12, break net.py:12, break Net.forward, break net.py:Net.forward, break relu: a function
    of that name in any module. break op softmax: after each op of that name, also in a backward;
    break module encoder.0: where that module is called. With a condition in Python, stop only where
    it is true: break 12 if loss > 3, break op softmax if op.isnan(result). Without a location: the
    current line.
    """
    set_break(session, text, temporary=False)


@command("tbreak [LOCATION] [if EXPR]", "tb", completes="place")
def tbreak(session: PythonSession, text: str) -> None:
    """Like break, but the breakpoint is deleted after its first stop."""
    set_break(session, text, temporary=True)


@command("watch EXPR [if EXPR]", completes="expression")
def watch(session: PythonSession, text: str) -> None:
    """Stop where a variable has another value, or where an expression turns true.

    watch h, watch self.w: before the next line of this function where another value is there, and
    after an op, of any function, that writes into the tensor. watch op.absmax(h) > 100: before the
    next line of this function where it is true and was not before.
    """
    expression, condition = split_if(text)
    if not expression:
        raise Refused("an expression is missing", "watch op.isnan(h)")
    request, frame = session.alive().client.request, session.frame()
    info = request("dataBreakpointInfo", name=expression, frameId=frame.id)
    if not info.get("dataId"):
        raise Refused(str(info.get("description") or "it cannot be watched"))
    entry = session.points.add(
        "", 0, function=expression, data=info["dataId"], condition=condition
    )  # fmt: skip
    if entry.message:
        session.points.remove([entry])
        raise Refused(entry.message)
    session.say(visible(f"{entry.title} {entry.number}: {expression}"))


@command("clear [LOCATION]", completes="place")
def clear(session: PythonSession, text: str) -> None:
    """Delete the breakpoints at a location, by default the current line."""
    place = locate(session, text)
    entries = session.points.entries.values()
    found = [e for e in entries if (e.path, e.line, e.function) == tuple(place)]
    if not found:
        raise Refused("there is no breakpoint there", "info breakpoints lists them")
    session.points.remove(found)
    session.say(f"Deleted {', '.join(str(e.number) for e in found)}.")


@command("condition N [EXPR]", completes="breakpoint expression")
def condition(session: PythonSession, text: str) -> None:
    """Set the condition of breakpoint N, or remove it."""
    word, _, expression = text.strip().partition(" ")
    found = numbers(word)
    if len(found) != 1:
        raise Refused("the number of a breakpoint is missing", "condition 1 loss > 3")
    entry = session.points.get(found[0])
    entry.condition = expression.strip() or None
    session.points.send([entry])


@command("catch [KIND] [off]", completes="filter")
def catch(session: PythonSession, text: str) -> None:
    """Stop at exceptions, NaNs or infinities; alone: list what can be caught.

    catch raised: where an exception is raised, caught or not. catch uncaught: where one ends the
    script, as at the beginning. catch nan, catch inf: after the op that made one, if the debug
    adapter looks for them; nan is on at the beginning. catch nan off: no longer.
    """
    word, _, rest = text.strip().partition(" ")
    if not word:
        listed(session)
        return
    offered, name = session.offered(), _CATCHES.get(word, word)
    if name not in offered:
        names = [ours(found) for found in offered]
        hint = did_you_mean(word, names) or f"there are {', '.join(names)}"
        raise Refused(f"this debug adapter does not catch {visible(word[:60])}", hint)
    if rest.strip() not in ("", "off"):
        raise Refused(f"{visible(rest[:60])} is not for catch", f"catch {word} off")
    is_on = not rest.strip()
    session.filters = session.filters | {name} if is_on else session.filters - {name}
    session.send_filters()
    session.say(f"{'Catches' if is_on else 'No longer catches'} {ours(name)}.")


def ours(name: str) -> str:
    """Our word for a filter of the adapter."""
    return next((word for word, theirs in _CATCHES.items() if theirs == name), name)


def listed(session: PythonSession) -> None:
    """Lists the filters, and which are on."""
    for name, label in session.offered().items():
        state = "on" if name in session.filters else "off"
        session.say(f"{ours(name):<14} {state:<4} {visible(label)}")
