"""What all commands share: how help looks, exit codes, how messages and JSON are written."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from opstep.runtime.ir.amounts import size as size
from opstep.runtime.ir.wording import Argument

if TYPE_CHECKING:
    from rich.console import Console

OK, PROGRAM, COMMAND, MACHINE, UNRECORDED, FOUND, BUG = 0, 1, 2, 3, 4, 5, 70
INTERRUPTED, TERMINATED = 130, 143
FINDINGS = "OPSTEP_FINDINGS"  # in the environment: the file that an editor reads findings from
ON_SIGTERM = "terminated"  # what a command says that it ends
OTHERS_RTOL = "--rtol 1e-5"  # beside runs of another library, whose sums are in another order

EXIT_CODES = {
    OK: "success",
    PROGRAM: "the program is at fault: errors in its text, a failed assert, a loop past its limit",
    COMMAND: "the command is at fault: usage, or a file or input that is missing, damaged or unfit",
    MACHINE: "the machine is at fault: out of memory, no such device",
    UNRECORDED: "the run succeeded, but its recording, or a checkpoint, could not be written",
    FOUND: "found: a NaN, an infinity, or an element that an op left unwritten",
    BUG: "a bug in opstep: please report it; --traceback shows where",
    INTERRUPTED: "interrupted with Ctrl-C",
    TERMINATED: "ended by SIGTERM",
}


class Settings:
    """What holds for one invocation, set by options that every command has."""

    def __init__(self) -> None:
        self.traceback = False


class FloatRange(click.FloatRange):
    """click's, without NaN: it is below no bound and above none."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not a number to compare with.", param, ctx)
        return number


class Command(click.Command):
    """A command whose help shows examples and exit codes as they are written here.

    `examples`: (command line, what it does). `codes`: exit codes that mean something special here.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        codes: dict[int, str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.short_help = " ".join((self.help or "").partition("\n\n")[0].split())
        self.examples = tuple(examples)
        special = codes or {}
        common = {k: t for k, t in EXIT_CODES.items() if k < INTERRUPTED}
        self.codes = {k: special.get(k, t) for k, t in common.items() if k != FOUND or k in special}
        self.params.append(traceback_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Text that begins with a comment of SQL is not an option."""
        is_text = [a.startswith("--") and len(a.partition("=")[0].split()) > 1 for a in args]
        args = [f" {a}" if is_one else a for a, is_one in zip(args, is_text, strict=True)]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            extra = re.search(r"unexpected extra arguments? \(([^\s)]+)", error.message)
            if not extra or not self.takes("--input"):
                raise
            hint = f"{error.message}. Did you mean --input {extra[1]}?"
            raise click.UsageError(hint, ctx) from None

    def takes(self, option: str) -> bool:
        return any(option in one.opts for one in self.params)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for line, what in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}# {what}\n")
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(k), text) for k, text in self.codes.items()])


def traceback_option() -> click.Option:
    """``--traceback``, which every command takes."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(Settings).traceback = True

    return click.Option(
        ["--traceback"],
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show the Python traceback of errors inside opstep.",
    )


def command(
    name: str, cls: type[Any] = Command, **kwargs: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Declares the function below as the command `name`; see `Command` for the arguments."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.command(name, cls=cls, context_settings=settings, **kwargs)  # pyright: ignore


def is_explicit(name: str) -> bool:
    """Whether an option of the command that runs was written."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(spec: str, help: str, kind: Any = None, *, to: str = "", **more: Any) -> Decorator:
    """Declares an option of a command.

    `spec`: its flags and what it takes, as help shows them: ``--input -i NAME=SOURCE``, with … at
    the end where it can be given several times. Without such a word and a `kind`, which is a type
    of click's, it is a switch. `to`: its parameter, if that is not called like the flag. `more`: of
    `click.option`; help shows a default that is not empty.
    """
    words = spec.split()
    flags = [word for word in words if word.startswith("-")]
    taken = "".join(words[len(flags) :])
    several = taken.endswith("…")
    how: dict[str, Any] = {"multiple": several, "metavar": taken.removesuffix("…") or None}
    if not taken and kind is None and "/" not in spec:
        how["is_flag"] = True
    how["show_default"] = bool(more.get("default")) or None
    return click.option(*flags, *([to] if to else []), type=kind, help=help, **how | more)


def grouped(*declared: Decorator) -> Decorator:
    """Declares all of these options, in this order."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(declared):
            function = one(function)
        return function

    return declare


json_option = option("--json", "Print JSON.", to="as_json")


def emit_json(value: Any) -> None:
    """Writes JSON to standard output; floats that JSON has no word for become strings."""
    click.echo(json_text(value))


def present(
    found: Any, record: Callable[[Any], Any], show: Callable[[Any], None], as_json: bool
) -> None:
    """Prints the findings of a command, as JSON or for people."""
    if as_json:
        emit_json(record(found))
    else:
        show(found)


def json_text(value: Any) -> str:
    """The same as a text."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


def console(stderr: bool = False, markup: bool = False) -> Console:
    """A terminal or a pipe, whichever is there; nothing is wrapped or coloured for a pipe. Control
    characters of what is shown, such as names from a file, do not reach the terminal. `markup`:
    ``[bold]`` and the like have a meaning; not where names are shown, which may look like that.
    """
    from rich.console import Console
    from rich.segment import Segment

    from opstep.runtime.ir.diagnostics import visible

    class Harmless(Console):
        def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
            for part in super().render(*args, **kwargs):
                if part.control or part.text == "\n" or part.text.isprintable():
                    yield part
                else:
                    text = "\n".join(map(visible, part.text.split("\n")))
                    yield Segment(text, part.style)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    wraps = stream.isatty()
    file: Any = stream if wraps else Trimmed(stream)
    return Harmless(file=file, width=width, highlight=False, markup=markup, soft_wrap=not wraps)


class Trimmed:
    """A pipe, without the blanks that fill the lines of tables."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(" +\n", "\n", text))


def colors(stream: Any) -> bool:
    """Whether messages on this stream may be coloured."""
    import os

    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


ADD_BREAK = "add --break to open the debugger at that op"
PROGRESS = "OPSTEP_PROGRESS"  # in the environment of an editor that reads standard error


def say(text: str) -> None:
    """One message on standard error. Work goes on where that cannot be written."""
    with suppress(OSError):
        click.echo(text, err=True)


def say_report(text: str, to: Any = None) -> None:
    """A report of several lines, which may hold names from a file, on standard output."""
    from opstep.runtime.ir.diagnostics import visible

    for line in text.split("\n"):
        click.echo(visible(line), file=to)


def amount(count: int, noun: str) -> str:
    """``1 error``, ``2 errors``"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """``12 µs``, ``3.4 ms``, ``1.2 s``"""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError("unreachable")


@contextmanager
def ended_in_order() -> Iterator[None]:
    """While a command runs graphs, SIGTERM ends it as Ctrl-C does."""
    from opstep.runtime.interrupts import EndedBySigterm, Terminated

    with EndedBySigterm(Terminated("SIGTERM")):
        yield


def is_watched() -> bool:
    """Whether somebody reads on standard error what takes long."""
    return sys.stderr.isatty() or bool(os.environ.get(PROGRESS))


@contextmanager
def watch_compiler() -> Iterator[None]:
    """Shows on a terminal which kernel is being compiled, and for which op they are being tried. An
    editor that sets OPSTEP_PROGRESS gets a line for each kernel.
    """
    from opstep.runtime.device.cache import Compiler

    before = Compiler.on_compile, Compiler.on_tune
    if not sys.stderr.isatty():
        if os.environ.get(PROGRESS):
            Compiler.on_compile = lambda kernel: say(
                f"compiling kernel {Compiler.count()}: {kernel}"
            )
        try:
            yield
        finally:
            Compiler.on_compile = before[0]
        return
    from rich.status import Status

    status = Status("", console=console(stderr=True))
    lock = threading.Lock()

    def show_kernel(kernel: str) -> None:
        with lock:
            status.update(f"compiling kernel {Compiler.count()}: {kernel} (once: they are kept)")
            status.start()

    def show_tuning(op: str) -> None:
        with lock:
            status.update(f"trying kernels for {op} (once: the fastest is kept)")
            status.start()

    Compiler.on_compile, Compiler.on_tune = show_kernel, show_tuning
    try:
        yield
    finally:
        Compiler.on_compile, Compiler.on_tune = before
        status.stop()


CALLED = {"symbols": "symbol", "inputs": "input", "patience": "timeout"}


def in_switches(argument: Argument) -> str:
    """As it is given to a command; several values are as many switches."""
    name, value = argument
    switch = f"--{CALLED.get(name, name).replace('_', '-')}"
    if value in (None, True, ""):
        return switch
    if name == "params":
        return f"{switch} FILE.safetensors"
    if isinstance(value, Mapping):
        value = [f"{k}={v}" for k, v in value.items()]
    return " ".join(f"{switch} {v}" for v in (value if isinstance(value, list) else [value]))
