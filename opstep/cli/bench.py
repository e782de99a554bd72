"""``opstep bench``: how long each op takes, and how near that is to what the device can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opstep.api.devices import check_computes
from opstep.cli.common import (
    OK,
    command,
    console,
    duration,
    emit_json,
    ended_in_order,
    json_option,
    option,
    say,
    watch_compiler,
)
from opstep.cli.options import (
    KERNELS,
    fallback_option,
    import_option,
    program_options,
    setting_option,
    setting_options,
)

if TYPE_CHECKING:
    from opstep.trace.bench import Ceilings, Measured


@command(
    "bench",
    examples=[
        ("opstep bench model.opg --symbol N=64", "on the CPU, random inputs"),
        (
            "opstep bench model.opg -s N=64 --device cuda --autotune",
            "on a GPU, with autotuning",
        ),
        ("opstep bench model.opg -s N=64 --sort line", "in the order of the program"),
        ("opstep bench model.opg -s N=64 --roofline roofline.png", "a picture (opstep[viewer])"),
    ],
)
@click.argument("file", metavar="FILE")
@program_options(default=("random",))
@setting_options("device", *KERNELS, "threads")
@setting_option(
    "steps", default=20, help="Number of steps to take the median of, after three to warm up."
)
@setting_option(
    "streams",
    default=1,
    help="With several streams, each op takes longer, since they share the device.",
)
@option(
    "--sort",
    "Sort by time, longest first, or by line.",
    click.Choice(["time", "line"]),
    default="time",
)
@fallback_option
@import_option
@option("--roofline FILE.png", "Draw the roofline: .png, .svg or .pdf.")
@json_option
@ended_in_order()
def bench(file: str, **options: Any) -> int:
    """Time each op of a graph, and compare it with the limits of the device.

    The limits are measured: bandwidth with a large copy, arithmetic with a large matrix product of
    each dtype. Bytes and operations are counted from an op's types, with each operand read once: an
    op whose operands are cached can exceed 100 %.
    """
    from opstep.cli import inputs as given
    from opstep.trace import bench as timing

    check_computes(options["device"], "timed")
    target = Path(options["roofline"]) if options["roofline"] else None
    if target:
        from opstep.trace import roofline

        roofline.check(target)
        given.check_target(str(target), f"--roofline {target}", roofline.FORMATS)
    asked = given.asked(file, options)
    program, graph = asked.program, asked.graph
    values = asked.values()
    asked.load_params()
    how = {k: options[k] for k in ("device", "threads", "kernels", "autotune")}
    name = graph.name.text
    with watch_compiler():
        how |= {"streams": options["streams"]}
        measured = timing.measure(program, name, values, options["steps"], **how)
        step_s = timing.step_seconds(program, name, values, options["steps"], **how)
        roof = timing.ceilings(dtypes=timing.dtypes_of(measured), **how)
    if options["sort"] == "time":
        measured.sort(key=lambda op: -op.a_step)
    if options["as_json"]:
        emit_json(record(file, name, options, measured, roof, step_s))
    else:
        show(name, options, measured, roof, step_s)
    if target:
        from opstep.trace import roofline

        below = f"{options['device']}, {duration(step_s)} a step; dots and %: share of the time"
        roofline.draw(target, measured, roof, f"Graph {name} of {Path(file).name}", below)
        say(f"wrote {target}")
    return OK


def record(
    file: str, graph: str, options: dict[str, Any], measured: list[Measured], roof: Ceilings,
    step_s: float,
) -> dict[str, Any]:  # fmt: skip
    """All figures as JSON: seconds, bytes, operations, and per second of each."""
    ops = []
    for op in measured:
        bandwidth, arithmetic = roof.shares(op)
        ops.append(
            op._asdict()
            | {"bandwidth": op.bandwidth, "rate": op.rate, "intensity": op.intensity}
            | {"of_bandwidth": bandwidth, "of_arithmetic": arithmetic}
        )
    return {
        "file": file,
        "graph": graph,
        "device": options["device"],
        "steps": options["steps"],
        "step_seconds": step_s,
        "ceilings": {"bandwidth": roof.bandwidth, "arithmetic": dict(roof.arithmetic)},
        "ops": ops,
    }


def show(
    graph: str, options: dict[str, Any], measured: list[Measured], roof: Ceilings, step_s: float
) -> None:
    from rich.table import Table
    from rich.text import Text

    from opstep.trace.bench import scaled

    out = console()
    busy = sum(op.a_step for op in measured)
    summary = f": {duration(step_s)} a step, {duration(busy)} in ops ({options['device']})"
    out.print(Text.assemble((graph, "bold"), summary))
    rates = [f"matrix product {t} {scaled(rate)}FLOP/s" for t, rate in roof.arithmetic.items()]
    out.print("ceilings: " + ", ".join([f"copy {scaled(roof.bandwidth)}B/s", *rates]))
    rows = [cells(op, roof, busy) for op in measured]
    for spare in (0, 2, 3):  # what others tell, too, goes first where the terminal is narrow
        table = Table(box=None, pad_edge=False, header_style="dim")
        headings = [heading for heading in rows[0] if heading not in SPARE[:spare]] if rows else []
        for heading in headings:
            left = heading in ("op", "result")
            table.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[heading] for heading in headings))
        if out.measure(table, options=out.options.update_width(WIDEST)).maximum <= out.width:
            break
    out.print(table)


SPARE = ("bytes", "FLOP", "result")  # columns that a narrow terminal does without
WIDEST = 1000


def cells(op: Measured, roof: Ceilings, busy: float) -> dict[str, Any]:
    """A row of the table, by its headings. `busy`: seconds of all ops."""
    from rich.text import Text

    from opstep.trace.bench import scaled

    bandwidth, arithmetic = roof.shares(op)
    several = f" ×{op.executions:g}" if op.executions != 1 else ""
    return {
        "line": str(op.line) if op.line else "",
        "op": Text(op.op + several, "bold"),
        "result": Text(op.type),
        "time": duration(op.seconds),
        "%": f"{100 * op.a_step / busy:.1f}",
        "bytes": scaled(op.nbytes),
        "FLOP": scaled(op.flops) if op.flops else "",
        "B/s": scaled(op.bandwidth),
        "of copy": _percent(bandwidth),
        "FLOP/s": scaled(op.rate) if op.flops else "",
        "of product": _percent(arithmetic),
    }


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
