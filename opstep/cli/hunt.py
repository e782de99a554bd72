"""``opstep hunt``: a graph at full speed until a NaN or an infinity, and where that was born."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import (
    ADD_BREAK,
    COMMAND,
    FOUND,
    OK,
    UNRECORDED,
    command,
    emit_json,
    ended_in_order,
    in_switches,
    json_option,
    option,
    say,
    say_report,
    watch_compiler,
)
from opstep.cli.hunt_ranks import show_of_all, together
from opstep.cli.options import (
    KERNELS,
    POLICY,
    gpu_options,
    import_option,
    program_options,
    ranks_options,
    recording_options,
    setting_options,
    started_ranks_options,
)
from opstep.cli.ranks import on_ranks, place_of
from opstep.cli.scripts import (
    ScriptCommand,
    compiled_option,
    hunt_script,
    script_arguments,
    script_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opstep.api.program import Program
    from opstep.distributed.gloo import GlooTransport
    from opstep.hunting.report import Hunt


@command(
    "hunt",
    cls=ScriptCommand,
    examples=[
        ("opstep hunt train.opg -i x=x.npy --steps 1000", "which op, which elements, why"),
        ("opstep hunt model.opg -i random -s N=32 --device cuda", "on a GPU"),
        (
            "opstep hunt train.opg -i x=x.npy --steps 1000 --break",
            "open the debugger at that op",
        ),
        ("opstep hunt model.opg -i random -s N=32 --json", "as JSON"),
        ("opstep hunt train.opg -i x=x.npy -w runs.db", "record the findings in a workspace"),
        ("opstep hunt train.opg --data x=batches.npy", "with a new x in each step"),
        ('opstep hunt train.opg -i x=x.npy --hunt "nan,index,absmax > 1e4"', "with other kinds"),
        (
            "opstep hunt step.opg -i x=part-{rank}.npy --ranks 4",
            "in four ranks",
        ),
        ("opstep hunt train.py", "in a training script of PyTorch's or JAX's"),
        ("opstep hunt --keep-step train.py", "which writes the step with the NaN as a program"),
        ("opstep hunt --lint train.py", "and faults of training that give no NaN"),
    ],
    codes={
        OK: "no NaN or infinity came out of the graph",
        COMMAND: "usage; a file or input that is missing, damaged, misnamed or does not fit; "
        "a script of which nothing was checked: it runs no op, or no module that --module matches",
        UNRECORDED: "nothing was found, but the workspace or the trace is incomplete (disk full)",
        FOUND: "a NaN or an infinity came out, an op did not write an element, or --lint found a "
        "fault",
    },
)
@click.argument("file", metavar="FILE")
@program_options()
@setting_options("device", *KERNELS)
@gpu_options
@import_option
@setting_options("threads", "steps", "seed", steps=None, seed=0)
@setting_options(*POLICY, "chaos")
@option(
    "--data NAME=SOURCE…",
    "An input that changes with each step: a file as for --input, whose first axis is the step. "
    "Runs all of them, or --steps of them, repeating the data as needed.",
)
@option(
    "--hunt WHAT",
    "Kinds to hunt for, separated by commas: nan, inf, overflow, underflow, index, and "
    'expressions such as "absmax > 1e4". Kinds other than nan and inf run each step op by op. '
    "Default: nan,inf.",
    to="kinds",
)
@option("--nan-only", "Ignore infinities: --hunt nan.")
@option("--wanted NAME…", "A value or output whose infinities are expected.")
@option("--masked", "Count values that no output shows, too.")
@option("--break", "Open the debugger at the op where it was born.", to="breaks")
@recording_options
@script_options
@compiled_option
@ranks_options
@started_ranks_options
@option("--keep-going", "Of a script: go on after a finding, to further ones.")
@option(
    "--keep-step",
    "Of a script of PyTorch's: keep the ops of each step, and write the one with the NaN as a "
    "program, SCRIPT-stepN.opg. It takes longer.",
)
@option(
    "--lint",
    "Of a script of PyTorch's: report faults, too, that turn into no NaN. It takes longer.",
)
@option(
    "--lint-except KIND…",
    "A kind of fault that --lint leaves out, such as dead. Can be given several times.",
)
@json_option
@ended_in_order()
def hunt(file: str, **options: Any) -> int:
    """Run until a NaN or an infinity, and report where it was born.

    The first step runs op by op, to find elements that were never written. Then the graph runs at
    full speed; if an op sets a flag, the step is replayed op by op from its initial state.
    docs/hunting.md describes the report.

    FILE can be a Python script. PyTorch runs it, and every op is watched; --compiled has opstep run
    its modules, as it runs functions of jax.jit. The first NaN or infinity that does harm ends it,
    and is reported with its Python line, of eager PyTorch on standard error. What follows its name
    is for the script. With --json, its own output goes to standard error.
    docs/pytorch.md and docs/jax.md describe it.

    --ranks starts so many processes, which run and replay the program together; the report names
    the rank where it was born, and says over which collective it came to others.
    """
    from opstep.runtime.ir.errors import InputError

    if options["breaks"] and options["as_json"]:
        raise InputError("--break opens a debugger, and --json is for machines: choose one")
    if options["nan_only"] and options["kinds"] is not None:
        raise InputError(
            f"--nan-only and --hunt {options['kinds']} do not go together: choose one",
            hint=f"for both write --hunt nan,{options['kinds']}",
        )
    if script_arguments() is not None:
        return hunt_script(file, options)
    place = place_of(options)
    several = place is not None or (options["ranks"] or 1) > 1
    if options["breaks"] and several:
        raise InputError("--break is for one process", hint="opstep debug --ranks opens them all")
    return on_ranks(file, options, place, partial(hunt_here, file, options))


def hunt_here(file: str, options: dict[str, Any], transport: GlooTransport | None) -> int:
    """The hunt of this process, which may be one of several ranks."""
    from opstep.cli import inputs as given
    from opstep.cli.recording import show_recording
    from opstep.cli.run import progress, recorded

    asked = given.asked(file, options)
    program, graph = asked.program, asked.graph.name.text
    batches = given.batches(asked.graph, options["data"], options["inputs"])
    values = asked.values({name: array[0] for name, array in batches.items()})
    steps = max((len(array) for array in batches.values()), default=1)
    options["steps"] = options["steps"] or steps
    asked.load_params()
    any_of_us = None
    if transport is not None:
        any_of_us = together(transport, program, graph, values, options["device"])
    recording = recorded(program, graph, values, options)
    try:
        with watch_compiler(), progress(options["steps"]) as on_step:
            found = hunted(
                program, graph, steps_of(values, batches), options, recording, on_step, any_of_us
            )
    finally:
        if recording:
            show_recording(recording)
    reports = recording.close() if recording else []
    if options["workspace"] and recording and recording.runs:
        from opstep.trace.workspace.hunted import add_findings

        add_findings(Path(options["workspace"]), recording.runs[0].key, found, program)
    if transport is not None:
        return show_of_all(file, found, transport, options["as_json"])
    show(file, found, options)
    if options["breaks"] and found.findings:
        from opstep.cli.hunt_break import debug_finding

        debug_finding(program, found.inputs, found, options)
    if found.found:
        return FOUND
    return UNRECORDED if any(w.problem for w in reports) else OK


def hunted(
    program: Program, graph: str, values: Iterable[dict], options: dict[str, Any],
    recording: Any, on_step: Any, any_of_us: Any = None,
) -> Hunt:  # fmt: skip
    """The hunt, see `continued`."""
    from opstep.cli.run import continued
    from opstep.hunting.search import hunt as go

    more = {k: options[k] for k in ("nan_only", "kinds", "wanted", "masked")}
    more |= {"recording": recording, "any_of_us": any_of_us}
    return continued(
        program, options, on_step,
        lambda settings, count: go(program, graph, values, **vars(settings), **more, on_step=count),
    )  # fmt: skip


def steps_of(values: dict[str, Any], batches: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """The inputs of each step, without an end; the same object where nothing changes."""
    number = 0
    while True:
        changed = {name: array[number % len(array)] for name, array in batches.items()}
        yield values | changed if batches else values
        number += 1


def show(file: str, found: Hunt, options: dict[str, Any]) -> None:
    """The report on standard output."""
    if options["as_json"]:
        from opstep.hunting.records import record

        emit_json({"file": file} | record(found))
        return
    from opstep.hunting.report import FINDINGS, report

    say_report(report(found, in_switches))
    if len(found.findings) > FINDINGS:
        say("add --json to get all of them")
    if found.findings and not options["breaks"]:
        say(ADD_BREAK)
