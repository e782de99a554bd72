"""What a session shows of Python's variables, beside what Python has in them at the same line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
import variables
import variables_in_place
import variables_of_calls
import variables_of_modules

from opstep.api import program as programs
from opstep.api.debugging import Debugger
from opstep.runtime.debugger.python.files import python_file

MODULES = (variables, variables_in_place, variables_of_calls)
FUNCTIONS = [function for module in MODULES for function in module.FUNCTIONS]
FILES = {module.__file__ for module in (*MODULES, variables_of_modules)}
Stack = tuple[tuple[str, int], ...]  # names of functions and lines, innermost first
Values = list[dict[str, Any]]  # of each of these frames


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.rand(4, 4, generator=generator) * 2 - 0.7 for _ in range(2)]


# --- what Python has ------------------------------------------------------------------------------


def snapshot(value: Any) -> Any:
    return value.detach().clone().numpy() if isinstance(value, torch.Tensor) else None


def observed(function: Callable) -> list[tuple[Stack, Values]]:
    """The lines that Python executes, with the variables of all frames before each."""
    found: list[tuple[Stack, Values]] = []

    def on_line(frame, event, argument):
        if event == "line" and name_of(frame):
            stack, values = [], []
            at = frame
            while at is not None:
                name = name_of(at)
                if at.f_code.co_filename in FILES and name:
                    stack.append((name, first_line(at.f_code.co_filename, at.f_lineno)))
                    values.append({n: snapshot(v) for n, v in at.f_locals.items()})
                at = at.f_back
            found.append((tuple(stack), values))
        return on_line

    def on_call(frame, event, argument):
        return on_line if frame.f_code.co_filename in FILES else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        function(*inputs())
    finally:
        sys.settrace(before)
    return found


def name_of(frame: FrameType) -> str:
    """The function that a frame is of; "" for a comprehension, which is part of its line."""
    name = frame.f_code.co_name
    if name == "<lambda>":
        return frame.f_code.co_qualname.split(".")[-3]
    return "" if name.startswith("<") else name


def first_line(path: str, line: int) -> int:
    file = python_file(path)
    assert file is not None
    return file.statement(line).first


# --- what a session shows -------------------------------------------------------------------------


def shown(function: Callable, granularity: str, trains: bool) -> list[tuple[Stack, Values]]:
    found: list[tuple[Stack, Values]] = []

    def debugged(program, graph, given, settings):
        if graph != "backward":
            found.extend(stops(Debugger(program, graph, given, stop_on_entry=True), granularity))

    torch._dynamo.reset()
    programs.interposed = debugged
    try:
        given = [t.requires_grad_(trains) for t in inputs()]
        torch.compile(function, backend="opstep")(*[t * 1 for t in given] if trains else given)
    finally:
        programs.interposed = None
        torch._dynamo.reset()
    return found


def stops(debugger: Debugger, granularity: str) -> Iterator[tuple[Stack, Values]]:
    debugger.view = "auto"
    stop = debugger.start()
    while stop.reason != "end":
        frames = [f for f in debugger.stack() if f.python and f.path in FILES]
        stack = tuple((f.python.function.name.split(".")[-1], f.python.at.first)  # pyright: ignore
                      for f in frames)  # fmt: skip
        yield stack, [values_of(debugger, frame) for frame in frames]
        stop = debugger.go("in", granularity=granularity)


def values_of(debugger: Debugger, frame: Any) -> dict[str, np.ndarray]:
    found = {}
    for name, value in debugger.stop_point.names.of(frame).items():
        if value is not None:
            handle = debugger.scope(frame).lookup(name)
            assert handle is not None
            found[name] = handle.array()  # pyright: ignore
    return found


# --- both -----------------------------------------------------------------------------------------


def compare(function: Callable, granularity: str, trains: bool) -> set[str]:
    """The names that were shown; fails where one is not what Python has, at any moment that could
    be meant: the stops are in the order of Python's lines.
    """
    events, names, k = observed(deepcopy(function)), set(), 0
    for stack, values in shown(deepcopy(function), granularity, trains):
        there = [j for j, (at, _) in enumerate(events) if at == stack]
        possible = [j for j in there if j >= k] or there[-1:]  # a line that a call returned to
        assert possible, f"Python is never at {stack}"
        found = [j for j in possible if not wrong(values, events[j][1])]
        assert found, f"{stack}: {wrong(values, events[possible[0]][1])}"
        k = max(k, found[0])
        names |= {name for frame in values for name in frame}
    return names


def wrong(shown: Values, has: Values) -> list[str]:
    pairs = [(n, v, b.get(n)) for a, b in zip(shown, has, strict=True) for n, v in a.items()]
    return [f"{n} is {w}, not {v}" for n, v, w in pairs if not same(v, w)]


def same(a: np.ndarray, b: Any) -> bool:
    return b is not None and a.shape == b.shape and np.allclose(a, b, 1e-4, 1e-5, equal_nan=True)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_variables_of_functions_are_pythons(function, trains):
    if function is variables_in_place.out_argument and trains:
        pytest.skip("PyTorch refuses it")
    names = compare(function, "statement", trains)
    assert names >= set((function.__doc__ or "").split())


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("kind", variables_of_modules.MODULES, ids=lambda kind: kind.__name__)
def test_variables_of_modules_are_pythons(kind, trains):
    torch.manual_seed(3)
    module = kind().train(trains)
    names = compare(module, "statement", trains)
    assert names >= set((kind.__doc__ or "").split())


@pytest.mark.parametrize("function", FUNCTIONS[::3], ids=lambda f: f.__name__)
def test_between_the_ops_of_a_line(function):
    compare(function, "instruction", False)


# --- a backward's values --------------------------------------------------------------------------


def gradients(function: Callable) -> tuple[dict[str, np.ndarray], list[str]]:
    """The values of a backward that are called gradients, and all that it computes."""
    found: dict[str, np.ndarray] = {}
    names: list[str] = []

    def debugged(program, graph, given, settings):
        if graph == "backward":
            debugger = Debugger(program, graph, given, stop_on_entry=True)
            debugger.start()
            while (frames := debugger.stack()) and debugger.go("in").reason != "end":
                for frame in frames:
                    names.extend(r.name.text for s in frame.graph.body for r in results(s))
                    for name in frame.names():
                        handle = debugger.scope(frame).lookup(name)
                        if name.startswith("grad_") and handle is not None:
                            found[name] = handle.array()  # pyright: ignore

    torch._dynamo.reset()
    programs.interposed = debugged
    try:
        given = [t.requires_grad_() for t in inputs()]
        torch.compile(function, backend="opstep")(*given).sin().sum().backward()
    finally:
        programs.interposed = None
        torch._dynamo.reset()
    return found, names


def results(statement: Any) -> tuple[Any, ...]:
    return getattr(statement, "results", ())


def retained(function: Callable) -> dict[str, list[np.ndarray]]:
    """The gradients of all that a function's variables have been, and those of its parameters."""
    tensors: dict[str, dict[int, torch.Tensor]] = {}

    def on_call(frame, event, argument):
        if frame.f_code.co_filename not in FILES:
            return None
        for name, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.retain_grad()
                tensors.setdefault(name, {})[id(value)] = value
        return on_call

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        result = function(*[t.requires_grad_() for t in inputs()])
    finally:
        sys.settrace(before)
    result.sin().sum().backward()
    return {
        name: [t.grad.numpy() for t in found.values() if t.grad is not None]
        for name, found in tensors.items()
    }


@pytest.mark.parametrize("function", variables_of_modules.DIFFERENTIATED,
                         ids=lambda f: f.__name__)  # fmt: skip
def test_values_of_a_backward_are_called_gradients_of_what_they_are(function):
    torch.manual_seed(3)
    model = function() if isinstance(function, type) else function
    theirs = retained(deepcopy(model))
    shown, names = gradients(deepcopy(model))
    checked = {}
    for name, value in shown.items():
        of = re.sub(r"_\d+$", "", name.removeprefix("grad_"))
        if of in theirs:
            checked[of] = value
            assert any(same(value, grad) for grad in theirs[of]), name
    assert checked.keys() >= set((function.__doc__ or "").split())
    assert not {re.sub(r"_\d+$", "", name) for name in names} & theirs.keys()
