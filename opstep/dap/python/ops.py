"""Stops that debugpy has not, in a session on a Python script: function breakpoints on ``op NAME``,
``module PATH`` and ``Class.method``, and steps of the granularity ``instruction``, from op to op.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opstep.dap.python.channel import Refused, Unreachable

if TYPE_CHECKING:
    from opstep.dap.python.proxy import Proxy

Message = dict[str, Any]

IDS = 1 << 28  # of our breakpoints begin here; debugpy counts from 0
STOPPED_AT = "AtOp"  # `opstep.frontends.torch.debugging.stops` calls it so
VALUES = "__import__('opstep.frontends.torch.debugging.asking', None, None, ['x']).shown()"
_STEP = "__import__('opstep.debuggee.stops.op_stops', None, None, ['x']).step({over})"
_CALL = "__import__('opstep.debuggee.stops.calls', None, None, ['x']).stops({name!r})"
OPS, CALLS, DEBUGPYS = "ops", "calls", ""  # who stops at a function breakpoint


def kind_of(name: str) -> str:
    name = name.strip()
    if name.startswith(("op ", "module ")) or "::" in name:
        return OPS
    return CALLS if "." in name else DEBUGPYS


class OpStops:
    def __init__(self, proxy: Proxy):
        self._proxy = proxy
        self._next = IDS
        self._merged: set[int] = set()  # debugpy's numbers of those that stand for ours
        self._steps = False  # to the next op

    # --- breakpoints ---

    def set(self, message: Message, arguments: Message) -> None:
        """All function breakpoints: some are debugpy's, or of several of ours one is."""
        given = [b | {"name": str(b.get("name"))} for b in arguments.get("breakpoints") or []]
        kinds = [kind_of(b["name"]) for b in given]
        dotted = {_bare(b) for b, kind in zip(given, kinds, strict=True) if kind == CALLS}
        kinds = [CALLS if _bare(b) in dotted and k != OPS else k
                 for b, k in zip(given, kinds, strict=True)]  # fmt: skip
        by_kind = {k: [b for b, one in zip(given, kinds, strict=True) if one == k] for k in kinds}
        answers = {
            OPS: iter(self._set(by_kind.get(OPS, []), self._set_ops)),
            CALLS: iter(self._set(by_kind.get(CALLS, []), self._set_calls)),
        }
        theirs = by_kind.get(DEBUGPYS, [])
        merged = [{"name": n, "condition": _CALL.format(name=n)} for n in sorted(dotted)]

        def merge(body: Message, arguments: Message) -> None:
            found = body.get("breakpoints") or []
            answers[DEBUGPYS] = iter(found)
            self._merged = {b["id"] for b in found[len(theirs) :]}
            body["breakpoints"] = [next(answers[kind]) for kind in kinds]

        self._proxy.pass_on(message, arguments | {"breakpoints": theirs + merged}, merge)

    def _set(self, given: list[Message], setter: Any) -> list[Message]:
        first, self._next = self._next, self._next + len(given)
        wanted = [b | {"id": first + k} for k, b in enumerate(given)]
        try:
            complaints = setter(wanted)
        except (Refused, Unreachable) as error:
            complaints = [str(error)] * len(wanted)
        return [
            {"id": b["id"], "verified": not text, **({"message": text} if text else {})}
            for b, text in zip(wanted, complaints, strict=True)
        ]

    def _set_ops(self, wanted: list[Message]) -> list[str]:
        for one in wanted:
            one["name"] = one["name"].strip().removeprefix("op ")
        return self._call(OPS, "set", breakpoints=wanted)

    def _set_calls(self, wanted: list[Message]) -> list[str]:
        return self._call(CALLS, "set_calls", breakpoints=wanted)

    # --- steps ---

    def step(self, message: Message, arguments: Message) -> None:
        """The program goes on, and stops after the next op of the thread. The response comes when
        it goes on.
        """
        thread = arguments.get("threadId")
        command = message["command"]
        over = command == "next"
        self._steps = True

        def answer(response: Message) -> None:
            self._proxy.answer(message, response | {"command": command, "body": {}})

        def begin(response: Message) -> None:
            if not response.get("success"):
                self._proxy.refuse(message, str(response.get("message")))
                return
            self._proxy.ask("continue", {"threadId": thread}, answer)

        self._proxy.evaluate_in_thread(thread, _STEP.format(over=over), begin)

    # --- stops ---

    def stopped(self, body: Message) -> Message:
        """At an op: what is known of it. A step by ops is over at any stop."""
        is_ours = body.get("reason") == "exception" and STOPPED_AT in str(body.get("text"))
        is_call = not self._merged.isdisjoint(body.get("hitBreakpointIds") or ())
        found: Message = {}
        with suppress(Refused, Unreachable):
            if is_ours:
                found = self._call(OPS, "stop")
            elif self._steps:
                self._call(OPS, "cancel")
            if is_call:
                self._rewrite(body, self._call(CALLS, "latest"))
        self._steps = False
        if found:
            self._rewrite(body, found)
        return found

    def _rewrite(self, body: Message, found: Message) -> None:
        body.update({k: found[k] for k in ("reason", "text", "description") if found.get(k)})
        if found["ids"]:
            body["hitBreakpointIds"] = found["ids"]

    def _call(self, part: str, name: str, **given: Any) -> Any:
        return self._proxy.helper(part, name=name, given=given)


def _bare(breakpoint: Message) -> str:
    return breakpoint["name"].strip().rpartition(".")[2]
