"""Commands with verbs: ``opstep ws FILE list``. The file comes first, then what to do with it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from opstep.cli.common import Command, command


class CommandWithVerbs(Command, click.Group):
    """A command whose first argument is a file, and whose verbs do something with it.

    `verbs`: by name the module that holds it and its help, in the order that help lists them. The
    function has the verb's name (an underscore behind it where Python has that name); its module is
    imported when it is called. Options of the command itself may stand before the file or behind.
    `instead`: words that are no verbs, and what they are likely to mean. `examine` is asked after
    an error that nobody explained: what it gives is wrong with the file, and is raised instead.
    """

    def __init__(
        self,
        *args: Any,
        verbs: dict[str, tuple[str, str]],
        instead: dict[str, str] | None = None,
        examine: Callable[[str], Exception | None] = lambda file: None,
        **kwargs: Any,
    ):
        super().__init__(
            *args, invoke_without_command=True, subcommand_metavar="[VERB …]", **kwargs
        )
        self.verbs = verbs
        self.instead = instead or {}
        self.examine = examine

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            if problem := self.examine(ctx.params["file"]):
                raise problem from error
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return None
        module = importlib.import_module(self.verbs[cmd_name][0])
        return getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, rest = self._options(args)
        after_verb, tail = self._options(rest[1:])
        if rest and rest[0] in self.verbs and not Path(rest[0]).exists():
            if not set(ctx.help_option_names) & {*own, *after_verb}:
                text = f"The file comes first: opstep {ctx.info_name} FILE {rest[0]}"
                raise click.UsageError(text, ctx)
            return super().parse_args(ctx, ["FILE", rest[0], "--help"])
        return super().parse_args(ctx, [*own, *after_verb, *rest[:1], *tail])

    def _options(self, args: list[str]) -> tuple[list[str], list[str]]:
        """The options that `args` begin with, those with a value together with it; the rest."""
        options = [p for p in self.params if isinstance(p, click.Option)]
        with_value = {flag for p in options if not p.is_flag for flag in p.opts}
        end = 0
        while end < len(args) and args[end].startswith("-") and args[end] != "-":
            end += 2 if args[end] in with_value else 1
        return args[:end], args[end:]

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args[0] not in self.verbs:
            from opstep.runtime.ir.diagnostics import did_you_mean

            word = args[0]
            hint = did_you_mean(word, self.verbs) or f"There are: {', '.join(self.verbs)}."
            if word in self.instead:
                hint = f"did you mean {self.instead[word]}?"
            raise click.UsageError(f"{ctx.info_name} has no verb {word}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in self.verbs.items()])


def command_with_verbs(
    name: str, verbs: dict[str, tuple[str, str]], **kwargs: Any
) -> Callable[[Callable[..., Any]], CommandWithVerbs]:
    """Declares the function below: it is called without a verb. Like `common.command`."""

    def declare(function: Callable[..., Any]) -> CommandWithVerbs:
        @wraps(function)
        def unless_verb(**arguments: Any) -> Any:
            if click.get_current_context().invoked_subcommand is None:
                return function(**arguments)
            return None

        return command(name, cls=CommandWithVerbs, verbs=verbs, **kwargs)(unless_verb)

    return declare


def verb(name: str, **kwargs: Any) -> Callable[[Callable[..., Any]], Command]:
    """Declares the function below as a verb: like `common.command`, with ``file`` as its first
    argument.
    """

    def declare(function: Callable[..., Any]) -> Command:
        @wraps(function)
        def with_file(**arguments: Any) -> Any:
            parent = click.get_current_context().parent
            assert parent is not None
            return function(parent.params["file"], **arguments)

        return command(name, **kwargs)(with_file)

    return declare
