"""Expressions over the past: they see copies, and may not act on the present."""

from __future__ import annotations

import ast
import builtins
import dis
import os
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from enum import Enum
from functools import cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from opstep.debuggee.past.rebuild import Absent, Then

_READ = "__opstep_read"  # stands for an attribute in an expression
_OF_FUNCTIONS = ("__closure__", "__defaults__", "__kwdefaults__")

# What asks a user, or changes what the whole process shares.
_REFUSED = (
    "open", "input", "exec", "eval", "compile", "__import__", "print", "breakpoint", "exit",
    "quit", "help", "setattr", "delattr", "globals", "locals", "vars",
)  # fmt: skip
_REFUSED_EVENTS = ("subprocess.", "shutil.", "socket.", "signal.", "os.exec", "os.spawn")
_REFUSED_CALLS = {
    f"os.{name}"
    for name in (
        "chdir", "chmod", "chown", "fork", "forkpty", "kill", "killpg", "link", "mkdir",
        "posix_spawn", "putenv", "remove", "rename", "rmdir", "symlink", "system", "truncate",
        "unsetenv", "utime",
    )
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_here = threading.local()


class Present(Exception):
    """An expression over the past would need the present, or act on it."""


def evaluate(
    expression: str, scopes: list[dict[str, Any]], then: Then, is_user: Callable[[str], bool]
) -> Any:
    """`scopes`: what names stand for, the innermost first."""
    try:
        tree = ast.parse(expression.strip(), "<past>", "eval")
    except SyntaxError:
        ast.parse(expression.strip(), "<past>", "exec")
        raise Present("the past cannot be changed: only an expression can be evaluated") from None
    code = compile(tree, "<past>", "eval")
    if _reads_gradients(code):
        raise Present("gradients are not kept with their tensors: give them a name in the script")
    known: dict[str, Any] = {"__builtins__": _builtins(), _READ: _reader(then, is_user)}
    for name in _names(code):
        for scope in scopes:
            if name in scope:
                known[name] = _usable(name, then.value(scope[name]))
                break
    read = ast.fix_missing_locations(_Attributes().visit(tree))
    with _guarded(is_user), _same_randomness():
        return eval(compile(read, "<past>", "eval"), known)


class _Attributes(ast.NodeTransformer):
    """Has attributes read by a function of ours."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        read = ast.Name(_READ, ast.Load())
        found = ast.Call(read, [node.value, ast.Constant(node.attr)], [])
        return ast.copy_location(found, node)


def _reader(then: Then, is_user: Callable[[str], bool]) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        found = getattr(value, name)
        if _is_shared(value, name, is_user):
            then.used_present()
        return found

    return read


def _is_shared(value: Any, name: str, is_user: Callable[[str], bool]) -> bool:
    """Whether an attribute is that of a function, a module or a class of the script: they are not
    copied, so it is the one of the present.
    """
    if isinstance(value, FunctionType):
        is_known = name in _OF_FUNCTIONS or name in vars(value)
        return is_known and is_user(value.__code__.co_filename)
    if name.startswith("__"):
        return False
    if isinstance(value, ModuleType):
        return name in vars(value) and is_user(getattr(value, "__file__", None) or "")
    t = value if isinstance(value, type) else type(value)
    if issubclass(t, Enum) or (t is not value and name in getattr(value, "__dict__", ())):
        return False
    owner = next((c for c in t.__mro__ if name in vars(c)), object)
    module = sys.modules.get(owner.__module__)
    is_data = not hasattr(type(vars(owner).get(name)), "__get__")  # nor a function, nor a property
    return is_data and is_user(getattr(module, "__file__", None) or "")


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _reads_gradients(code: CodeType) -> bool:
    """A copy of a tensor has none, whatever the tensor had."""
    reads = ("LOAD_ATTR", "LOAD_METHOD")
    here = ((i.opname, i.argval) for i in dis.get_instructions(code))
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    is_read = any(name in reads and value in ("grad", "grad_fn") for name, value in here)
    return is_read or any(map(_reads_gradients, inner))


def _usable(name: str, value: Any) -> Any:
    if type(value) is Absent:
        raise Present(f"{name} is {value!r}, which has no past")
    return value


def _builtins() -> dict[str, Any]:
    def refused(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            raise Present(f"{name} would act on the present")

        return call

    return {**vars(builtins), **{name: refused(name) for name in _REFUSED}}


@contextmanager
def _guarded(is_user: Callable[[str], bool]):
    """Refuses calls of the script's own functions, whose globals are those of the present, and
    what reaches out of the process.
    """

    def guard(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_filename != "<past>" and is_user(code.co_filename):
            raise Present(
                f"{code.co_name} is a function of the script: it would run in the present"
            )

    _audit()
    before, was_evaluating = sys.gettrace(), getattr(_here, "is_evaluating", False)
    _here.is_evaluating = True
    set_trace = _set_trace()
    set_trace(guard)
    try:
        yield
    finally:
        set_trace(before)
        _here.is_evaluating = was_evaluating


def _set_trace() -> Callable[[Any], None]:
    """pydevd puts a warning in the place of `sys.settrace`."""
    holder = getattr(sys.modules.get("pydevd_tracing"), "TracingFunctionHolder", None)
    return getattr(holder, "_original_tracing", None) or sys.settrace


@cache
def _audit() -> None:
    """A hook cannot be removed: it is there from the first expression on."""

    def hook(event: str, given: Any) -> None:
        if not getattr(_here, "is_evaluating", False):
            return
        is_write = event == "open" and bool((given[2] or 0) & _WRITES)
        if is_write or event in _REFUSED_CALLS or event.startswith(_REFUSED_EVENTS):
            raise Present(f"{event} would act on the present")

    sys.addaudithook(hook)


@contextmanager
def _same_randomness():
    """Draws of an expression leave the generators of random numbers as they are."""
    random, numpy, torch = map(sys.modules.get, ("random", "numpy.random", "torch"))
    before = random.getstate() if random else None
    of_numpy = numpy.get_state() if numpy else None
    of_torch = torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        if random:
            random.setstate(before)
        if numpy:
            numpy.set_state(of_numpy)
        if torch:
            torch.set_rng_state(of_torch)
