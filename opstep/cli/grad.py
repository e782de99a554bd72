"""``opstep grad``: a program with the gradient of one of its graphs, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import COMMAND, PROGRAM, amount, command, option, say
from opstep.cli.options import Size, fallback_option, import_option, load_program, symbol_option

if TYPE_CHECKING:
    from opstep.api.program import Program


@command(
    "grad",
    examples=[
        ("opstep grad net.opg --graph loss", "by all params, to standard output"),
        ('opstep grad net.opg --graph loss --wrt "conv*, fc.w"', "by some of them"),
        ("opstep grad net.opg --graph loss --wrt x", "by an input"),
        ('opstep grad net.opg --graph loss --freeze "conv1.*"', "by all but some"),
        (
            "opstep grad net.opg --graph loss --memory 64MiB -s N=32",
            "a run takes no more than that",
        ),
        ("opstep grad net.opg --graph loss -o step.opg", "to a file"),
    ],
    codes={
        PROGRAM: "errors in the program, or an op without a gradient on the way",
        COMMAND: "usage; nothing to take derivatives by, what the loss does not depend on, or too "
        "little memory",
    },
)
@click.argument("file", metavar="FILE")
@option(
    "--graph -g NAME",
    "The graph whose first result, a scalar, is differentiated. Default: the only one, or main.",
)
@option(
    "--wrt NAMES…",
    "Params, states and inputs that derivatives are taken by, with commas between them; patterns "
    'such as "conv*" are of params. Default: all params.',
)
@option("--freeze NAMES…", "Names or patterns of params that no derivative is taken by.")
@option(
    "--memory SIZE",
    "What a run of the new graph takes at most, such as 4GiB: values that take more are dropped "
    "and computed again. Needs the sizes of symbols.",
    Size(),
)
@symbol_option
@option("--name NAME", "Of the new graph. Default: GRAPH_grad.")
@option("--output -o FILE.opg", "Where it is written. Default: standard output.")
@fallback_option
@import_option
def grad(file: str, output: str | None, **options: Any) -> None:
    """Write the gradient of a graph: its results and their derivatives, as a program.

    The text has all of FILE, the new graph, which returns what the graph returns and then the
    derivative of its first result by each name, and graphs for the derivatives of control flow.
    Each line names the line that it was written for. docs/gradients.md describes it all.
    """
    from opstep.api.gradients import with_gradient
    from opstep.api.sources import choose_graph, parse_symbols
    from opstep.runtime.arrays import replace_text
    from opstep.runtime.ir.printer import print_module

    if options["symbols"] and options["memory"] is None:
        raise click.UsageError("--symbol is for --memory")
    program = load_program(file, options)
    graph = choose_graph(program.module, options["graph"], file)
    name = options["name"] or f"{graph.name.text}_grad"
    wrt, freeze = names(options["wrt"]) or ["*"], names(options["freeze"])
    module = with_gradient(program, graph, wrt, name, freeze, strict=True)
    if options["memory"] is not None:
        from opstep.api.training import grown

        symbols = parse_symbols(options["symbols"])
        module = grown(program, module, name, name, options["memory"], symbols).module
    text = print_module(module)
    if output is None:
        click.echo(text, nl=False)
        return
    replace_text(output, text)
    count = len(module.graphs[name].results) - len(graph.results)
    say(f"{output}: graph {name} with {amount(count, 'derivative')}")
    tell_weights(program, output)


def names(given: tuple[str, ...]) -> list[str]:
    """``conv*, fc.w`` as a list."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def tell_weights(program: Program, output: str) -> None:
    """Where values are that no initialiser gives, if they are not beside the new file."""
    from opstep.api.files import Files

    weights, there = program.files.weights, Files(output).weights
    if program.files.names and weights != there:
        say(f"its params are in {weights}: run it with --params {weights}")
