"""Commands that choose between threads: streams, and ranks that are debugged as one."""

from __future__ import annotations

from opstep.cli.debug.rank_session import RankSession
from opstep.cli.debug.registry import Refused, command, find, split
from opstep.cli.debug.session import Session
from opstep.cli.debug.words import count, numbers


@command("thread [N|off|apply …]", "t", section="stack", repeats=False)
def thread(session: Session, text: str) -> None:
    """Select stream N, or rank N, and show its next op, or its last one. Steps follow its ops.

    off: the order in which ops are issued, as at the beginning. thread apply all print loss, thread
    apply 0 2-3 info locals: the command on each of these.
    """
    word = text.strip()
    if word.split()[:1] == ["apply"]:
        apply(session, word.removeprefix("apply").strip())
        return
    threads = dict(session.debugger.threads())
    if word == "off":
        session.choose(None)
    elif word:
        number, kind = count(word), threads[0].partition(" ")[0]
        if number not in threads:
            few = len(threads) == 1
            hint = f"there is only {kind} 0" if few else f"there are 0 to {len(threads) - 1}"
            raise Refused(f"there is no {kind} {number}", hint)
        session.choose(number)
    frame = session.select(0)
    session.say(f"[{session.whose}]")
    session.show_frame(frame)


def of_ranks(session: Session) -> RankSession:
    """Raises `Refused` where one rank is debugged."""
    if isinstance(session, RankSession):
        return session
    raise Refused("one rank is debugged", "opstep debug FILE --ranks N debugs several")


@command("rank [N]", section="stack", repeats=False)
def rank(session: Session, text: str) -> None:
    """Select rank N of several, and show where it stands."""
    session = of_ranks(session)
    number = count(text, session.rank)
    if number >= len(session.group.members):
        raise Refused(f"there is no rank {number}", session.group.world.which)
    session.choose(session.group.thread(number))
    frame = session.select(0)
    session.say(f"[{session.whose}]")
    session.show_frame(frame)


def apply(session: Session, text: str) -> None:
    """``thread apply all|N … COMMAND``"""
    threads = [number for number, _ in session.debugger.threads()]
    words = text.split(None, 1)
    if words[:1] == ["all"]:
        chosen, line = threads, words[1] if len(words) > 1 else ""
    else:
        found = []
        while words and words[0][:1].isdigit():
            found.append(words[0])
            words = words[1].split(None, 1) if len(words) > 1 else []
        chosen, line = numbers(" ".join(found)), " ".join(words)
    if not chosen or not line:
        raise Refused("threads and a command are missing", "thread apply all print loss")
    unknown = [n for n in chosen if n not in threads]
    if unknown:
        raise Refused(f"there is no thread {unknown[0]}", f"there are 0 to {len(threads) - 1}")
    wanted = find(split(line)[0])
    if wanted.section in ("running", "backwards") or wanted.names[0] in ("thread", "rank"):
        raise Refused(f"{wanted.names[0]} is not for threads apart",
                      "set scheduler-locking on: then commands move one rank")  # fmt: skip
    names = dict(session.debugger.threads())
    before = back = session.thread
    if isinstance(session, RankSession):
        back = session.group.thread(session.rank)
    try:
        for number in chosen:
            session.choose(number)
            session.select(0)
            session.say(session.paint(f"[{names[number]}]", "bold"))
            wanted.function(session, split(line)[1])
    finally:
        session.choose(back)
        session.thread = before
        if session.frames():
            session.select(0)


def lock(session: Session, word: str) -> None:
    """``set scheduler-locking on|off``"""
    session = of_ranks(session)
    if word not in ("on", "off"):
        raise Refused("it is on or off", "on: commands move the selected rank alone")
    session.group.alone = word == "on"
    session.look_for_end()
