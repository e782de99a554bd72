"""Requests of the editor's views in sessions on Python scripts: those that graphs have, answered
by `opstep.debuggee.viewing`.

An expression is evaluated by debugpy in the script's thread, as a watch is, and what it gives is
kept there for the helper; an index is taken by the helper, so that no mode of the script's sees it.
"""

from __future__ import annotations

import ast
import itertools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from opstep.dap.checking import Mismatch, plain
from opstep.dap.python.channel import Refused, Unreachable
from opstep.dap.python.travel import FRAMES, MARKED, REFERENCES, Travel
from opstep.dap.registry import HistogramArguments, TensorArguments, arguments_of, checked
from opstep.dap.styling import coloured

if TYPE_CHECKING:
    from opstep.dap.python.proxy import Proxy

Message = dict[str, Any]

KEEP = "__import__('opstep.debuggee.viewing', None, None, ['x']).keep"
_GRAPH = "__import__('opstep.frontends.torch.debugging.graph', None, None, ['x'])"
HERE = f"{_GRAPH}.here() if 'torch' in __import__('sys').modules else None"
TENSORS = ("Tensor", "Parameter", "Buffer", "ndarray")  # types whose variables can be viewed
_TEXT = re.compile(r"\w+\[[\d, ]*\]  ")  # of a subclass
PREFIX = "opstep/"
COMMANDS = (
    "tensorType", "tensorSlice", "statistics", "histogram", "values", "nanReport", "graph", "goToOp"
)  # fmt: skip


@dataclass(frozen=True)
class Slice(TensorArguments):
    """`max_elements`: it is thinned out until it has no more. `places`: in place of elements, the
    places of `count` that are not finite, from number `first` on.
    """

    max_elements: int | None = None
    places: Literal["nan", "posinf", "neginf", "any"] | None = None
    first: int = 0
    count: int = 4096


class Views:
    """`is_at_nan`: whether the script stopped last where a NaN or an infinity was born;
    `is_styled`: the client shows colours in values.
    """

    def __init__(self, proxy: Proxy, travel: Travel, is_at_nan: Callable[[], bool]):
        self._proxy, self._travel, self._is_at_nan = proxy, travel, is_at_nan
        self.is_styled = False
        self._numbers = itertools.count(1)
        self.operands = 0  # reference of what the op was given that made a NaN

    def handle(self, message: Message) -> None:
        """Raises `Refused`, `Unreachable`."""
        command = str(message["command"]).removeprefix(PREFIX)
        if command not in COMMANDS:
            raise Refused(f"{command} is a request of sessions on graphs")
        handler = getattr(self, f"_{command}")
        try:
            given = checked(*arguments_of(handler), message.get("arguments"))
        except Mismatch as error:
            raise Refused(str(error)) from None
        handler(message, **given)

    # --- the requests ---

    def _tensorType(self, message: Message, arguments: TensorArguments) -> None:  # noqa: N802
        self._of(message, arguments, "type", {})

    def _tensorSlice(self, message: Message, arguments: Slice) -> None:  # noqa: N802
        if arguments.max_elements is not None and arguments.max_elements < 1:
            raise Refused("maxElements is at least 1")
        if arguments.places is None:
            self._of(message, arguments, "slice", {"most": arguments.max_elements})
            return
        more = {"kind": arguments.places, "first": arguments.first, "count": arguments.count}
        self._of(message, arguments, "places", more)

    def _statistics(self, message: Message, arguments: TensorArguments) -> None:
        self._of(message, arguments, "statistics", {})

    def _histogram(self, message: Message, arguments: HistogramArguments) -> None:
        more = {name: getattr(arguments, name) for name in ("bins", "low", "high")}
        if not 1 <= arguments.bins <= 4096:
            raise Refused("bins is 1 to 4096")
        self._of(message, arguments, "histogram", more)

    def _values(
        self, message: Message, frame_id: int | None = None, names: list[str] | None = None,
        most: int = 20_000, start: int = 0, count: int = 0,
    ) -> None:  # fmt: skip
        """`names`: of these, figures are taken as far as time allows; else the last `most` rows,
        of which `count` (0: all) from `start` on.
        """
        more = {"names": names, "most": most, "start": start, "count": count}
        past = self._past(frame_id)
        if past is not None:
            self._answer(message, "values", {"pastNames": past}, more)
        else:
            self._evaluated(message, "locals()", frame_id, "values", more)

    def _graph(
        self, message: Message, graph: str | None = None, frame_id: int | None = None
    ) -> None:
        """`graph`: of a call of a module; the whole if none is named."""
        if self._travel.position is not None:
            raise Refused("the graph is that of the present: go forward to it first")
        self._evaluated(message, HERE, frame_id, "graph", {"graph": graph})

    def _goToOp(self, message: Message, path: str, line: int) -> None:  # noqa: N802
        """To a line of a file, from 1: of an op that a report names."""
        self._travel.go_back(message, path, line)

    def _nanReport(  # noqa: N802
        self, message: Message, name: str | None = None, frame_id: int | None = None,
        memory_reference: str | None = None,
    ) -> None:  # fmt: skip
        """`name`: an expression. Without it and a reference, the NaN that stopped the script."""
        if self._travel.position is not None:
            raise Refused("NaNs are followed in the present: go forward to it first")
        if name is None and memory_reference is None:
            if not self._is_at_nan():
                raise Refused("the program is not stopped at a NaN: which tensor?")
            self._proxy.respond(message, plain(self._proxy.helper("nan_report")))
            return
        of = TensorArguments(name or "value", frame_id, memory_reference)
        self._of(message, of, "nanReport", {})

    # --- which tensor ---

    def _of(self, message: Message, given: TensorArguments, name: str, more: Message) -> None:
        """Of a tensor; a memory reference is one of a variable that has no expression, or of an
        operand of the op that made a NaN.
        """
        reference = given.memory_reference
        if reference is not None:
            more = more | {"part": given.expression}
            self._answer(message, name, _place(reference), more)
            return
        base, part = split(given.expression)
        more = more | {"part": part}
        past = self._past(given.frame_id)
        if past is not None:
            self._answer(message, name, {"past": past | {"expression": base}}, more)
        else:
            self._evaluated(message, base, given.frame_id, name, more)

    def _past(self, frame: int | None) -> Message | None:
        """The place of a frame of the past."""
        position = self._travel.position
        if frame is not None and FRAMES <= frame < REFERENCES - 1 and position is not None:
            return {"position": position, "frame": frame - FRAMES}
        return None if frame is not None or position is None else {"position": position, "frame": 0}

    def _evaluated(
        self, message: Message, expression: str, frame: int | None, name: str, more: Message
    ) -> None:
        """In a frame that the script stands in; then `name` of what it gives."""
        number = next(self._numbers)
        text = f"{KEEP}({number}, (\n{expression}\n))"

        def kept(response: Message) -> None:
            if not response.get("success"):
                self._proxy.refuse(message, _reason(response))
                return
            of = {"kept": number}
            call = lambda: self._answer(message, name, of, more)  # noqa: E731
            threading.Thread(target=call, name="opstep view", daemon=True).start()

        self._proxy.evaluate_in(frame, text, kept)

    def _answer(self, message: Message, name: str, of: Message, more: Message) -> None:
        try:
            body = self._proxy.helper("view", name=name, of=of, given=more)
        except (Refused, Unreachable) as error:
            self._proxy.refuse(message, str(error))
            return
        marks = body.pop("marks", None) or []
        if marks:
            body["note"] = "; ".join(str(MARKED.get(mark, mark)) for mark in marks)
        self._proxy.respond(message, plain(body))

    # --- variables ---

    def mark(self, variables: list[Message], reference: int) -> None:
        """Tensors among variables can be opened: by an expression, else by where they are."""
        if reference == self.operands:  # of the namespace that holds them
            variables[:] = [v for v in variables if v["name"] != "special variables"]
        for found in variables:
            self._colour(found, "value")
            if not _is_tensor(found, "value"):
                continue
            if reference == self.operands:
                found.pop("evaluateName", None)  # at another stop it would be another op's
            if not found.get("evaluateName"):
                found["memoryReference"] = f"{reference}:{found['name']}"
            found["__vscodeVariableMenuContext"] = "tensor"

    def colour_result(self, body: Message, arguments: Message) -> None:
        """In hovers, of which nothing is edited or copied, and for values at the ends of lines."""
        if arguments.get("context") == "hover":
            self._colour(body, "result")

    def _colour(self, found: Message, key: str) -> None:
        if self.is_styled and (_is_tensor(found, key) or found.get("type") == "float"):
            found[key] = coloured(found.get(key, ""))


def _is_tensor(found: Message, key: str) -> bool:
    return found.get("type") in TENSORS or _TEXT.match(found.get(key, "")) is not None


def split(expression: str) -> tuple[str, str]:
    """``(x + y)[0, ::2]`` as what is indexed and the index, taken of ``value``."""
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return expression, "value"  # debugpy says what is wrong with it
    if not isinstance(tree, ast.Subscript) or not _is_constant(tree.slice):
        return expression, "value"
    part = ast.Subscript(ast.Name("value", ast.Load()), tree.slice, ast.Load())
    return ast.unparse(tree.value), ast.unparse(part)


def _is_constant(index: ast.expr) -> bool:
    allowed = ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.USub, ast.Load
    return all(isinstance(node, allowed) for node in ast.walk(index))


def _place(reference: str) -> Message:
    """The place that a memory reference stands for."""
    number, _, name = reference.partition(":")
    order, _, operand = name.partition(".")
    if number == "operand" and order.isdigit() and operand.isdigit():
        return {"operand": [int(order), int(operand)]}
    if not number.isdigit():
        raise Refused(f"{reference[:80]} is not a memory reference of this session")
    kind = "pastVariable" if int(number) >= REFERENCES else "variable"
    return {kind: [int(number), name]}


def _reason(response: Message) -> str:
    """The last line of what Python says of an expression."""
    lines = str(response.get("message") or "it cannot be evaluated").strip().splitlines()
    return lines[-1].strip()
