"""Runs random scripts and writes down all values at all lines, as JSON: `live`, by a plain trace
function at each line, or `past`, by the recorder once a script is done.

    python truth.py live|past OUT FIRST COUNT plain|tensors
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import tempfile
import types
import zlib
from collections import Counter
from typing import Any

from random_scripts import script

from opstep.debuggee.past import texts
from opstep.debuggee.past.past import Past

Value = list[Any]  # type, text, children, [marks]


def run(source: str, path: str) -> str:
    module = types.ModuleType("script")
    sys.modules["script"] = module
    random.seed(0)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, path, "exec"), module.__dict__)
    except Exception as error:
        return repr(error)
    return ""


def is_compared(name: str, value: Any) -> bool:
    code = (types.ModuleType, types.FunctionType, type)
    return not name.startswith(("__", ".")) and not isinstance(value, code)


def live_value(value: Any, depth: int = 2) -> Value:
    children = texts.children_of(value) if depth > 1 else []
    shown = [[n, live_value(v, depth - 1)] for n, v in children]
    return [texts.type_name(value), text_of(value), shown]


def text_of(value: Any) -> str:
    """Of a large tensor, with a digest of its elements."""
    text = texts.text_of(value)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.numel() <= texts.ELEMENTS:
        return text
    with torch.no_grad():
        return f"{text} {zlib.crc32(value.detach().clone().contiguous().numpy().tobytes()):x}"


def live(source: str, path: str) -> tuple[list[Any], str]:
    events: list[Any] = []

    def frames(frame: Any) -> list[Any]:
        found = []
        while frame is not None:
            if frame.f_code.co_filename == path:
                values = {n: live_value(v) for n, v in frame.f_locals.items() if is_compared(n, v)}
                found.append([frame.f_code.co_name, frame.f_lineno, values])
            frame = frame.f_back
        return found

    def on_line(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            events.append(frames(frame))
        return on_line

    sys.settrace(lambda f, *_: on_line if f.f_code.co_filename == path else None)
    try:
        error = run(source, path)
    finally:
        sys.settrace(None)
    return events, error


def past_value(past: Past, variable: dict[str, Any], depth: int = 2) -> Value:
    reference = variable["variablesReference"]
    children = past.variables(reference) if depth > 1 and reference else []
    shown = [[v["name"], past_value(past, v, depth - 1)] for v in children]
    return [variable["type"], variable["value"], shown, variable["marks"]]


def recorded(past: Past, after: int) -> list[Any]:
    events, position = [], past.move("reverseContinue", None, {}).position
    while position is not None:
        if position > after:
            frames = []
            for k, frame in enumerate(past.stack(position)):
                scope = past.scopes(position, k)[0]["variablesReference"]
                values = {v["name"]: past_value(past, v) for v in past.variables(scope)}
                frames.append([frame["name"], frame["line"], values])
            events.append(frames)
        position = past.move("stepIn", position, {}).position
    return events


def compared(lives: list[Any], pasts: list[Any]) -> tuple[Counter[str], list[str]]:
    """Counts of variables, and what is wrong of those without a mark."""
    counts: Counter[str] = Counter()
    wrong = []
    lines = [[[f[:2] for f in event] for event in events] for events in (lives, pasts)]
    if lines[0] != lines[1]:
        k = next(k for k, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1])
        return counts, [f"events differ: {lines[0][k]}, {lines[1][k]}"]
    for event, then in zip(lives, pasts, strict=True):
        for (name, line, values), (_, _, kept) in zip(event, then, strict=True):
            for variable in values:
                counts["variables"] += 1
                found = verdict(values[variable], kept.get(variable))
                counts[found] += 1
                if found == "wrong":
                    both = f"{values[variable]} {kept.get(variable)}"
                    wrong.append(f"{name}:{line} {variable} {both}")
            extra = [v for v in kept if v not in values and is_shown(kept[v])]
            counts["wrong"] += len(extra)
            wrong += [f"{name}:{line} {variable} was not there" for variable in extra]
    return counts, wrong


def is_shown(given: Value) -> bool:
    return given[0] not in ("function", "module", "type")


def verdict(live: Value, given: Value | None) -> str:
    """Of a variable: right, marked (and right or not), or wrong."""
    if given is None:
        return "wrong"
    if given[3]:
        return "marked"
    names = [[n for n, _ in each[2]] for each in (live, given)]
    if live[:2] != given[:2] or names[0] != names[1]:
        return "wrong"
    pairs = zip(live[2], given[2], strict=True)
    found = {verdict(a, b) for (_, a), (_, b) in pairs}
    return next((v for v in ("wrong", "marked") if v in found), "right")


def main(mode: str, out: str, first: str, count: str, kind: str) -> None:
    if kind == "tensors":
        from opstep.frontends.torch.eager import native

        native.build()
    past, found = None, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(int(first), int(first) + int(count)):
            source, path = script(seed, kind == "tensors"), os.path.join(folder, f"s{seed}.py")
            if mode == "live":
                found.append(live(source, path))
                continue
            past = Past.begin([folder])
            past.text_of = text_of
            if kind == "tensors":
                past.watch_writes()
            after = last_position(past)
            error = run(source, path)
            past.end()
            found.append((recorded(past, after), error))
    with open(out, "w") as file:
        json.dump(found, file)


def last_position(past: Past) -> int:
    return past.move("stepBack", None, {}).position or 0


if __name__ == "__main__":
    main(*sys.argv[1:])
