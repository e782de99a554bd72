"""``opstep``: finds the command, runs it, turns what goes wrong into a message and an exit code.

A command is one file beside this one; it is imported when it is called and not before, so that
``opstep --help`` stays quick.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from opstep.cli.common import (
    BUG,
    COMMAND,
    EXIT_CODES,
    FOUND,
    INTERRUPTED,
    MACHINE,
    OK,
    ON_SIGTERM,
    PROGRAM,
    TERMINATED,
    Settings,
    colors,
    say,
    traceback_option,
)

# Name and help of each command, in the order that help lists them; the module has the same name, or
# that in `MODULES`.
COMMANDS = {
    "run": "Run a graph on inputs, and show or save its results.",
    "train": "Train the params of a graph on data.",
    "import": "Translate a PyTorch or ONNX model to a program, with its weights beside it.",
    "export": "Write a graph as a model of ONNX.",
    "check": "Report every error in programs, without running them.",
    "fmt": "Format programs.",
    "grad": "Write the gradient of a graph: its results and their derivatives, as a program.",
    "plan": "Show how a graph would run: streams, waits, memory, and whether it is free of races.",
    "hunt": "Run until a NaN or an infinity, and report where it was born.",
    "diff": "Run a graph in two ways and report the first op whose results differ.",
    "bench": "Time each op of a graph, and compare it with the limits of the device.",
    "debug": "Step through a graph in the terminal, forwards and backwards.",
    "dap": "Serve the debugger to an editor (Debug Adapter Protocol).",
    "lsp": "Serve the language server to an editor (Language Server Protocol).",
    "ws": "Query a workspace: runs, tensors, statistics; compare, plot and rerun runs.",
    "trace": "Show the timeline of runs in Perfetto, or query it.",
    "ops": "List the ops, or describe one.",
    "demo": "Run a trained network on real data, in async and in debug mode.",
    "doctor": "Show what this machine has, and how to install what is missing.",
}

MODULES = {"import": "importing"}  # where the name is a word of Python's


class ReaderGone(Exception):
    """Whoever read our output through a pipe has seen enough: ``opstep plan … | head``."""


class LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = MODULES.get(cmd_name, cmd_name)
        return getattr(importlib.import_module(f"opstep.cli.{module}"), module)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1
            raise ReaderGone from None

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Start here"):
            formatter.write_dl([
                ("opstep demo", "a real network on real data"),
                ("opstep COMMAND --help", "options, examples and exit codes of a command"),
            ])  # fmt: skip
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(k), text) for k, text in EXIT_CODES.items()])


def show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Prints the version and stops."""
    if value:
        from opstep.version import __version__

        click.echo(f"opstep {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def group() -> None:
    """A debugger for computation graphs that is also the runtime they run on."""


group.params.append(traceback_option())


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    settings = Settings()
    try:
        code = group.main(
            None if args is None else list(args), "opstep", standalone_mode=False, obj=settings
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.ClickException as error:
        from opstep.runtime.ir.wording import shortened

        vars(error)["message"] = shortened(error.message)
        error.show()
        return COMMAND
    except (click.Abort, KeyboardInterrupt) as error:
        from opstep.runtime.interrupts import Terminated

        terminated = Terminated in (type(error), type(error.__cause__))  # click wraps it
        say(ON_SIGTERM if terminated else "interrupted")
        return TERMINATED if terminated else INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        discard_output()
        return OK
    except MemoryError as error:
        say(f"error: out of memory{f': {error}' if str(error) else ''}")
        return MACHINE
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            say(f"error: {str(error.filename)[:60]}…: {error.strerror}")
            return COMMAND
        if error.errno != errno.ENOSPC or error.filename is not None:
            return report(error, settings)
        discard_output()
        say(f"error: the output could not be written: {error.strerror}")
        return MACHINE
    except Exception as error:
        return report(error, settings)


def discard_output() -> None:
    """What is still buffered for standard output goes nowhere: Python writes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error: Exception, settings: Settings) -> int:
    """Says what went wrong on standard error, and gives the exit code."""
    from opstep.cli.common import in_switches
    from opstep.runtime.ir.diagnostics import OpstepError, render_all
    from opstep.runtime.ir.errors import DeviceError, InputError, NotFinite

    if isinstance(error, OpstepError):
        say(render_all(error.diagnostics, colors(sys.stderr), in_switches))
        kinds = (
            (InputError, COMMAND), (DeviceError, MACHINE), (NotFinite, FOUND),
            (OpstepError, PROGRAM),
        )  # fmt: skip
        code = next(code for kind, code in kinds if isinstance(error, kind))
    else:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        more = "" if settings.traceback else " (add --traceback to see where)"
        say(f"internal error: {what[:300]}: this is a bug in opstep, please report it{more}")
        code = BUG
    if settings.traceback:
        import traceback

        traceback.print_exception(error)
    return code


def entry() -> None:
    """The installed command: `main` as a process. Streams that were closed before it go nowhere."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    sys.exit(main())


if __name__ == "__main__":
    entry()
