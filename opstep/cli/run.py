"""``opstep run``: a graph on inputs, its results shown or saved."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from opstep.api.devices import HOST, check_computes, kind_of
from opstep.api.settings import RunSettings
from opstep.cli.common import (
    FINDINGS,
    OK,
    UNRECORDED,
    amount,
    command,
    console,
    duration,
    emit_json,
    ended_in_order,
    in_switches,
    json_option,
    json_text,
    option,
    say,
    watch_compiler,
)
from opstep.cli.options import (
    KERNELS,
    POLICY,
    gpu_options,
    import_option,
    load_program,
    program_options,
    ranks_options,
    recording_options,
    setting_options,
    started_ranks_options,
)
from opstep.cli.ranks import by_rank, on_ranks, place_of, say_parted
from opstep.cli.recording import opened_recording, recorded_as, show_recording
from opstep.cli.scripts import (
    ScriptCommand,
    compiled_option,
    run_script,
    script_arguments,
    script_options,
)
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.api.program import Program, Result
    from opstep.distributed.gloo import GlooTransport
    from opstep.runtime.ir.graph import Graph
    from opstep.trace.recording import Recording

LISTED = 64  # elements up to which --json holds a result's values
TICK_S = 0.1  # between two moves of the progress bar


@command(
    "run",
    cls=ScriptCommand,
    examples=[
        ("opstep run model.opg --input x=image.npy", "with an input from a file"),
        ("opstep run model.opg --input random --symbol N=32", "random inputs, batch of 32"),
        ("opstep run model.opg -i x=data.npz:test -i scale=0.5 -o y=out.npy", "save a result"),
        ("opstep run model.pt2 -i example", "a model that PyTorch exported, on its example inputs"),
        ("opstep run model.opg -i random --params trained.safetensors", "with trained weights"),
        ("opstep run train.opg -i x=x.npy --steps 100 --save-params out.safetensors", "train"),
        ("opstep run model.opg -i random --mode debug --streams 2", "debug mode, two streams"),
        ("opstep run model.opg -i random --workspace runs.db", "record statistics and tensors"),
        ("opstep run model.opg -i random -w runs.db --tag lr=0.1", "with a tag"),
        ("opstep run model.opg -i random --trace run.pftrace", "write a timeline"),
        ("opstep run step.opg -i x=part-{rank}.npy --ranks 4", "four ranks, each with a part"),
        ("opstep run --record-step 12 train.py", "keep a training step as a program, to be hunted"),
        ("opstep run -w runs.db train.py", "record a training script of PyTorch's or JAX's"),
    ],
)
@click.argument("file", metavar="FILE")
@program_options()
@option("--save-params FILE", "Save params and states after the run.")
@option(
    "--output -o [NAME=]FILE…",
    "Save one result, or all of them: .npy, .npz or .safetensors.",
    to="outputs",
)
@setting_options("device", *KERNELS)
@gpu_options
@import_option
@setting_options("threads", "steps", "seed", seed=0)
@setting_options(*POLICY, "chaos")
@recording_options
@script_options
@option(
    "--record-step N",
    "Of a script of PyTorch's: write step N of its optimizer, counted from 0, as a program, with "
    "what it read beside it, and end the script. Default of --output: SCRIPT-stepN.opg.",
    click.IntRange(0),
)
@compiled_option
@ranks_options
@started_ranks_options
@json_option
@ended_in_order()
def run(file: str, **options: Any) -> int:
    """Run a graph on inputs, and show or save its results.

    The same inputs and seed give the same bits, whatever the mode, streams and threads.

    FILE can be a Python script, which ends with its own exit code: opstep runs the functions of
    jax.jit that it calls, and with --compiled the nn.Modules. What follows its name is for the
    script.
    docs/pytorch.md and docs/jax.md describe it.

    --ranks starts so many processes on this machine, which run the program together; so do
    torchrun, mpirun and srun. {rank} in an input, or in --save-params, is the number of each.
    docs/distributed.md describes it.
    """
    if script_arguments() is not None:
        if options["ranks"] or options["mesh"]:
            raise InputError("--ranks and --mesh are for programs, not for scripts")
        if options["record_step"] is not None:
            from opstep.cli.script_steps import record_step

            return record_step(file, options)
        return run_script(file, options)
    return on_ranks(file, options, place_of(options), partial(run_here, file, options))


def run_here(file: str, options: dict[str, Any], transport: GlooTransport | None) -> int:
    """The run of this process, which may be one of several ranks."""
    from opstep.api.inputs import conform, type_variables
    from opstep.cli import inputs as given
    from opstep.runtime.ir.calls import types_of

    asked = given.asked(file, options)
    program, graph = asked.program, asked.graph
    targets = given.check_outputs(options["outputs"], given.result_names(graph))
    if saved := options["save_params"]:
        others = [path for _, path in targets]
        given.check_target(saved, f"--save-params {saved}", (".safetensors",), others)
    if targets:
        check_computes(options["device"], "saved with --output")
    values = asked.values()
    asked.load_params()
    if transport is not None:
        from opstep.distributed.agreement import agree
        from opstep.distributed.gpus import meet

        _, types = conform(graph, values, program.module.source)
        agree(transport.world, program, graph.name.text, types)
        meet(program, graph.name.text, options["device"])

    saves = options["of_rank_0"]["save_params"]  # puts shards together, on all ranks
    if saves and "{rank}" in saves and program.verified.shards:
        hint = "rank 0 saves shards, put together: leave out {rank}"
        raise InputError(f"--save-params {saves}: a rank has parts of tensors only", hint=hint)
    recording = recorded(program, graph.name.text, values, options)
    try:
        with watch_compiler(), progress(options["steps"]) as on_step:
            result = continued(
                program, options, on_step,
                lambda settings, count: program.run(
                    graph.name.text, values, **vars(settings), recording=recording, on_step=count
                ),
            )  # fmt: skip
        reports = recording.close() if recording else []
        params = program.params.whole(program.params) if saves else {}
        given.save(targets, result, (saved, params) if saved else None)
    except BaseException:
        if recording:  # what is recorded of a failed run is what one wants to look at
            show_recording(recording)
        raise
    outputs = described(result, digests=transport is not None)
    parts: list[dict[str, Any]] = []
    if transport is not None:
        outputs = by_rank(transport, outputs)
        if saves and "{rank}" not in saves:
            parts = say_parted(transport, program, saves)
        if recording and (timelines := options.get("timelines")):
            timelines.join(recording.files["trace"], reports, program.mesh)
        if transport.rank:
            return UNRECORDED if any(w.problem for w in reports) else OK
    if options["as_json"]:
        done = record(file, graph.name.text, result, outputs, options)
        done |= {"parted": parts} if parts else {}
        emit_json(done | recorded_as(recording, reports))
    else:
        types = types_of(graph, type_variables(graph, values))
        show(graph.name.text + types, result, outputs, options)
        tell_inputs(program, graph, values, result, options)
        files = [str(path) for _, path in targets] + ([saved] if saved else [])
        if files:
            say(f"saved {', '.join(files)}")
    if recording:
        show_recording(recording)
    if os.environ.get(FINDINGS):
        write_findings(file, graph.name.text, values, options, result)
    return UNRECORDED if any(w.problem for w in reports) else OK


def write_findings(
    file: str, graph: str, values: dict[str, np.ndarray], options: dict[str, Any], result: Result
) -> None:
    """For an editor that names a file in OPSTEP_FINDINGS: where the NaNs and infinities of the
    results were born, as `opstep hunt --json` tells it. Without any, nothing is written.
    """
    if not any(statistics(a)["nan"] or statistics(a)["inf"] for a in result.outputs):
        return
    from opstep.api.sources import load_params
    from opstep.hunting.records import record as findings_record
    from opstep.hunting.search import hunt

    say("a result is not finite: looking for where that was born")
    program = load_program(file, options)  # params and states as they were at the beginning
    if options["params"]:
        load_params(program, options["params"])
    found = hunt(program, graph, values, **vars(RunSettings.of(options)))
    Path(os.environ[FINDINGS]).write_text(json_text({"file": file} | findings_record(found)))


def continued(
    program: Program, options: dict[str, Any], on_step: Any, go: Callable[..., Any]
) -> Any:
    """The result of `go`, called with settings and with what it calls after each step: on the CPU
    from the step on that a GPU could not do, if that is asked for.
    """
    from opstep.runtime.ir.errors import DeviceError
    from opstep.runtime.ir.wording import worded

    settings, done = RunSettings.of(options), 0

    def count() -> None:
        nonlocal done
        done += 1
        if on_step:
            on_step()

    be_patient(program, settings, options["timeout"])
    try:
        return go(settings, count)
    except DeviceError as error:
        if options["fallback"] != HOST or settings.device == HOST:
            raise
        say(f"{worded(error.diagnostics[0].message, in_switches)}; continuing on the CPU")
    except KeyboardInterrupt:
        say(f"{done:,} of {amount(options['steps'], 'step')} finished")
        raise
    options["device"] = HOST
    return go(replace(settings, device=HOST, steps=options["steps"] - done), count)


def be_patient(program: Program, settings: RunSettings, seconds: float | None) -> None:
    """How long an op may take on a GPU, in debug mode."""
    if seconds is not None and kind_of(settings.device).gpu:
        program.on(settings.device, settings.setup).patience = seconds


def recorded(
    program: Program, graph: str, values: dict[str, np.ndarray], options: dict[str, Any]
) -> Recording | None:
    """Opens the files that the run is to be recorded in."""
    if options["workspace"] or options["trace"]:
        check_computes(options["device"], "recorded")
        from opstep.trace.selection import Selection

        selection = Selection(options["stats"])
        if selection.text not in Selection.WORDS:
            selection.complain(plans(program, graph, values, options))
    return opened_recording(options)


def plans(program: Program, graph: str, values: dict[str, np.ndarray], options: dict[str, Any]):
    """Those that the run will make."""
    from opstep.api.inputs import conform

    _, types = conform(program.graph(graph), values, program.module.source)
    settings = RunSettings.of(options)
    return program.plans(graph, types, settings.policy, settings.device, setup=settings.setup)


@contextmanager
def progress(steps: int) -> Iterator[Any]:
    """Gives what to call after each step: on a terminal it moves a bar, now and then."""
    if steps == 1 or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("steps", total=steps)
        done, shown = 0, time.perf_counter()

        def advance() -> None:
            nonlocal done, shown
            done += 1
            if time.perf_counter() - shown > TICK_S:
                bar.update(task, completed=done)
                shown = time.perf_counter()

        yield advance


# --- what is shown --------------------------------------------------------------------------------


def statistics(array: np.ndarray) -> dict[str, Any]:
    """Least, greatest and mean of what is finite, and how much is not."""
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    figures: dict[str, Any] = {"min": None, "max": None, "mean": None}
    if finite.size:
        figures = {"min": finite.min(), "max": finite.max(), "mean": finite.mean()}
    figures = {k: None if v is None else float(v) for k, v in figures.items()}
    return figures | {"nan": int(np.isnan(wide).sum()), "inf": int(np.isinf(wide).sum())}


def typed(array: np.ndarray) -> str:
    """``f32[8, 10]``"""
    from opstep.runtime.ir.types import TensorType, dtype_of

    return str(TensorType(dtype_of(array.dtype), array.shape))


def described(result: Result, digests: bool) -> list[dict[str, Any]]:
    """What is told of each result; `first` is for tables. `digests`: ranks are to be compared."""
    outputs = []
    for name, array in zip(result.names, result.outputs, strict=True):
        one = {"name": name, "dtype": typed(array).partition("[")[0], "shape": array.shape}
        one |= statistics(array)
        if array.size <= LISTED:
            wide = np.float64 if array.dtype.kind not in "iub" else array.dtype
            one["values"] = array.astype(wide).tolist()
        one |= {"type": typed(array), "first": peek(array)}
        if digests:
            one["digest"] = sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        outputs.append(one)
    return outputs


def record(
    file: str, graph: str, result: Result, outputs: list[dict[str, Any]], options: dict[str, Any]
) -> dict[str, Any]:
    """A run as JSON."""
    hidden = ("type", "first", "digest")
    outputs = [{k: v for k, v in one.items() if k not in hidden} for one in outputs]
    policy = result.plan.policy
    return {
        "file": file,
        "graph": graph,
        "device": options["device"],
        "steps": options["steps"],
        "seconds": result.seconds,
        "policy": {
            "streams": policy.streams,
            "alloc": policy.alloc,
            "fill": policy.fill,
            "sync": policy.sync,
        },
        "outputs": outputs,
        "unwritten": [unwritten_line(u) for u in result.unwritten],
    }


def show(
    graph: str, result: Result, outputs: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    per = result.seconds / options["steps"]
    times = f" a step, {options['steps']:,} steps" if options["steps"] > 1 else ""
    mode = f"{options['mode']}, {options['device']}"
    if options["ranks"]:
        mode += f", {amount(options['ranks'], 'rank')}"
    if kernels := compiled_on_the_way(result):
        mode += f", {amount(kernels, 'kernel')} compiled on the way"
    out.print(Text.assemble((graph, "bold"), f": {duration(per)}{times} ({mode})"))
    if not kind_of(options["device"]).computes:
        out.print(f"the {options['device']} device executes nothing: results hold no values")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("result", "type", "min", "max", "mean", "", "first values"):
        number = heading in ("min", "max", "mean")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number)
    for s in outputs:
        name = f"{s['name']} (rank {s['rank']})" if "rank" in s else s["name"]
        numbers = ("" if s[k] is None else f"{s[k]:.5g}" for k in ("min", "max", "mean"))
        odd = ", ".join(f"{s[k]:,} {v}" for k, v in (("nan", "NaN"), ("inf", "inf")) if s[k])
        table.add_row(
            Text(name, "bold"), Text(s["type"]), *numbers, Text(odd, "red"), Text(s["first"])
        )
    out.print(table)
    for u in result.unwritten:
        say(f"warning: {unwritten_line(u)}")


def tell_inputs(
    program: Program, graph: Graph, values: dict[str, np.ndarray], result: Result,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Where a result has NaNs: which inputs were made up, for others may be what is missing."""
    from opstep.api.sources import described

    if not any(np.isnan(a).any() for a in result.outputs if a.dtype.kind not in "iub"):
        return
    if made := described(program, graph, options["inputs"], values):
        say(f"inputs made up for this run: {', '.join(made)}")
        say("give others with --input NAME=FILE.npy, or --input NAME=0..10 for a range;")
        say("opstep hunt, with the same options, shows where the first NaN was born")


def compiled_on_the_way(result: Result) -> int:
    """Kernels that this process compiled, where the time of the run may hold that: graphs that
    control flow calls are planned when they are first called.
    """
    from opstep.runtime.device.cache import Compiler

    return Compiler.compiled if any(s.op.traits.host for s in result.plan.steps) else 0


def peek(array: np.ndarray, most: int = 5) -> str:
    """The first few elements."""
    head = array.reshape(-1)[:most]
    shown = [f"{float(v):.4g}" if v.dtype.kind not in "iub" else str(v) for v in head]
    return " ".join(shown) + (" …" if array.size > most else "")


def unwritten_line(u: Any) -> str:
    """What a debug run found out about elements that an op left as they were."""
    elements = ", ".join(f"[{', '.join(map(str, p))}]" for p in u.first[:3])
    more = ", …" if u.count > 3 else ""
    return (
        f"{u.step.op.name} in graph {u.graph} never wrote {amount(u.count, 'element')} "
        f"of {u.value} ({elements}{more})"
    )
