"""``opstep train``: a program's params, changed by the gradient of its loss on data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from opstep.cli.common import (
    COMMAND,
    FOUND,
    OK,
    PROGRAM,
    UNRECORDED,
    amount,
    command,
    duration,
    emit_json,
    ended_in_order,
    is_explicit,
    json_option,
    option,
    say,
    watch_compiler,
)
from opstep.cli.diverged import show_diverged, stop_options
from opstep.cli.options import (
    fallback_option,
    import_option,
    load_program,
    naming_options,
    ranks_options,
    setting_options,
    started_ranks_options,
)
from opstep.cli.ranks import on_ranks, place_of
from opstep.cli.resuming import board, checkpoint_options, go_on, parent_of, show_missed
from opstep.cli.training_options import data_options, optimizer_arguments, optimizer_options
from opstep.cli.training_timeline import (
    add_timeline,
    check_timeline,
    join_timelines,
    show_timeline,
    timeline_options,
)

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.distributed.gloo import GlooTransport
    from opstep.training.journal import Checkpoint
    from opstep.training.loop import Observer, Outcome, Trainer


@command(
    "train",
    examples=[
        ("opstep train net.opg --data digits.npz --epochs 20", "by AdamW"),
        ("opstep train net.opg -d digits.npz --optimizer sgd --lr 0.1 --set momentum=0.9", "SGD"),
        ("opstep train net.opg -d digits.npz --lr 3e-3 --schedule cosine --warmup 100", "rates"),
        ("opstep train net.opg -d digits.npz:train --validate test --metric accuracy", "measured"),
        ("opstep train net.opg -d images=x.npy -d labels=y.npy --validate 0.1", "two files"),
        ("opstep train net.opg -d photos/ --freeze 'conv*' --save trained.opg", "some params"),
        ("opstep train net.opg -d digits.npz -w runs.db --tag lr=0.1", "record the metrics"),
        (
            'opstep train net.opg -d digits.npz --hunt --watch "absmax(d_*) > 1e3"',
            "why it diverges",
        ),
        ("opstep train net.opg -d digits.npz -w runs.db --resume last", "go on with the last run"),
        ("opstep train net.opg -d digits.npz --ranks 4", "four ranks, each with a part of a batch"),
        (
            "opstep train net.opg -d digits.npz --trace run.pftrace --trace-steps 10:20",
            "a timeline of the ops of ten steps",
        ),
        ("opstep train net.opg -d digits.npz --epochs 0 --emit step.opg", "see the text of a step"),
    ],
    codes={
        PROGRAM: "errors in the program, or an op without a gradient on the way to the loss",
        COMMAND: "usage; data that is missing, damaged, or does not fit the loss",
        UNRECORDED: "trained, but metrics or checkpoints could not be written (disk full)",
        FOUND: "the loss became a NaN or an infinity; --hunt or --watch ended the run",
    },
)
@click.argument("file", metavar="FILE")
@option(
    "--graph -g NAME", "The graph whose first result is the loss. Default: loss, or the only one."
)
@data_options
@option("--epochs N", "Times over the data.", click.IntRange(0), default=1)
@optimizer_options
@option(
    "--step-graph NAME",
    "A graph of the program that makes a step of training. Default: GRAPH_step, if there is one; "
    "else it is written.",
)
@setting_options("device", "kernels", "threads", "seed", seed=0)
@option(
    "--params FILE",
    "Begin with the params, and states, of a safetensors file whose names and types agree.",
)
@option("--emit FILE.opg", "Write the program that runs, as text.")
@option(
    "--save FILE",
    "Write what is learned: the program with its values (.opg), or all values, those of the "
    "optimizer included (.safetensors).",
)
@option(
    "--workspace -w FILE.db",
    "Record the run in a workspace: its metrics by step, checkpoints (SQLite).",
)
@timeline_options
@checkpoint_options
@naming_options
@ranks_options
@started_ranks_options
@stop_options
@json_option
@fallback_option
@import_option
@ended_in_order()
def train(file: str, **options: Any) -> int:
    """Train the params of a graph on data.

    FILE has a graph that computes a loss; a step of training is written for it. Ctrl-C ends
    training after the step under way, and what was learned is saved; twice, it ends at once.
    docs/training.md describes it all.

    --ranks starts so many processes on this machine, which have equal parts of every batch and the
    mean of their gradients; so do torchrun, mpirun and srun (docs/distributed.md).
    """
    check_given(options)
    check_timeline(options)
    check_targets(file, options)
    place, parent = place_of(options), parent_of(options)
    if parent is not None:
        options["seed"] = parent.seed
    return on_ranks(file, options, place, partial(train_here, file, options, parent))


def train_here(
    file: str, options: dict[str, Any], parent: Checkpoint | None, transport: GlooTransport | None
) -> int:
    """The run of this process, which may be one of several ranks."""
    from opstep.cli.training_ranks import join
    from opstep.distributed.agreement import agree_on_values
    from opstep.hunting.stepwise import Diverged
    from opstep.runtime.ir.errors import NotFinite
    from opstep.training.train import hand_over
    from opstep.training.watching import Tripped, stop_when_wrong

    program = load_program(file, options)
    trainer = prepared(program, options, transport)
    if options["emit"]:
        emit(trainer, options["emit"])
    if parent is not None:
        go_on(trainer, parent)
    if transport is not None:
        join(trainer, transport, options["data_parallel"])
    timeline = add_timeline(trainer, options)
    leads = transport is None or transport.rank == 0
    done_before = parent is not None and trainer.is_done
    trainer.observers += observers(options, parent, done_before, leads)
    stop_when_wrong(trainer, options["hunt"], options["watch"])
    target = options["of_rank_0"]["save"]
    try:
        with watch_compiler():
            outcome = trainer.run()
        if transport is not None:
            agree_on_values(transport.world, trainer.program, "ends")
        join_timelines(timeline, trainer, options)
        hand_over(trainer, program, warn)
    except (Diverged, Tripped) as error:
        join_timelines(timeline, trainer, options)
        told = record(file, trainer, cast("Outcome", trainer.outcome))
        return show_diverged(error, trainer, told, options["as_json"], transport)
    except NotFinite:  # so are the params
        raise
    except Exception:
        if target and trainer.step > (parent.step if parent else 0):
            rescue(trainer, program, target, leads)
        raise
    finally:
        unwritten = show_recorded(trainer, options) | show_missed(trainer)
        unwritten |= show_timeline(timeline)
    if target and outcome.steps:
        save(trainer, program, target, leads)
    if leads and options["as_json"]:
        emit_json(record(file, trainer, outcome))
    elif leads:
        show(outcome, parent.step if parent else 0)
    if outcome.error is not None:
        raise outcome.error
    return UNRECORDED if unwritten else OK


def observers(
    options: dict[str, Any], parent: Checkpoint | None, is_done: bool, leads: bool
) -> Iterator[Observer]:
    """The observers that the options ask for, in the order in which they are called. Of a run that
    `is_done` before it begins nothing is recorded. A rank that does not lead records nothing
    either: while rank 0 records, the others give it their shards.
    """
    from opstep.training.best import Best
    from opstep.training.journal import Journal, Moments, best_values
    from opstep.training.progress import Progress
    from opstep.training.recorded import RunRecord

    workspace = options["workspace"] if leads else options["of_rank_0"]["workspace"]
    record = None
    if leads:
        yield Progress()
    if options["best"]:
        yield Best(best_values(workspace, parent, options["best"]))
    if is_done:
        return
    if workspace and not leads:
        yield Moments()
    elif workspace:
        record = RunRecord(workspace, options["name"], dict(options["tags"]))
        yield record
        yield Journal(record, parent, say)
    if options["tensorboard"]:
        yield board(options, record.key if record else None)


def prepared(
    program: Program, options: dict[str, Any], transport: GlooTransport | None = None
) -> Trainer:
    """The trainer that the options ask for; of one rank, where there are several."""
    from opstep.cli.training_ranks import part_of
    from opstep.runtime.ir.diagnostics import names_listed, visible
    from opstep.runtime.ir.errors import InputError
    from opstep.training.fitting import oddities
    from opstep.training.loop import Settings
    from opstep.training.train import prepare

    if options["params"]:
        load_params(program, options["params"])
    names = ("epochs", "batch", "seed", "device", "kernels", "threads", "drop_last")
    settings = Settings(
        **{name: options[name] for name in names}, validate_every=options["validate_every"],
        checkpoint_every=options["checkpoint_every"], keep=options["keep"],
    )  # fmt: skip
    shares = [v for v in options["validate"] if isinstance(v, float)]
    if shares and len(options["validate"]) > 1:
        raise InputError("--validate: a share of the data, or other data?")
    trainer = prepare(
        program, options["data"], settings, graph=options["graph"],
        optimizer=options["optimizer"], options=optimizer_arguments(options),
        validate=shares[0] if shares else options["validate"] or None,
        metrics=options["metrics"], best=options["best"], step_graph=options["step_graph"],
        rounded=options["round"], part=part_of(program, transport, options["data_parallel"]),
    )  # fmt: skip
    if trainer.program is program:
        say(f"{trainer.graph} is a step of training already: it is run as it is")
    for name, classes in trainer.batches.dataset.classes.items():
        numbered = (f"{k} {visible(known)}" for k, known in enumerate(classes))
        say(f"{name}: {names_listed(numbered, most=20)}")
    held = trainer.validation and trainer.validation.batches.dataset
    told = [*oddities(trainer.batches.dataset), *(oddities(held) if held else ())]
    for oddity in dict.fromkeys(told):
        warn(oddity)
    return trainer


def warn(text: str) -> None:
    say(f"warning: {text}")


def check_given(options: dict[str, Any]) -> None:
    """Complains of options that say nothing, such as ``--save "$OUT"`` without an OUT."""
    from opstep.runtime.ir.errors import InputError

    names = (
        "graph", "step_graph", "params", "emit", "save", "workspace", "resume", "tensorboard",
        "best", "schedule", "optimizer",
    )  # fmt: skip
    for name in names:
        if options[name] == "":
            raise InputError(f"--{name.replace('_', '-')} is empty", hint="give it a value")
    if is_explicit("validate_every") and not options["validate"]:
        raise InputError("--validate-every: there is no validation", hint="add --validate 0.1")
    for name, places in (("name", ("workspace", "tensorboard")), ("tags", ("workspace",))):
        if options[name] and not any(options[place] for place in places):
            raise InputError(
                f"--{name.removesuffix('s')} is for a run that is recorded, and this one is not",
                hint="add --workspace runs.db",
            )


def check_targets(file: str, options: dict[str, Any]) -> None:
    """Complains, before anything runs, of files that cannot be written, or are read by the run."""
    from opstep.cli.inputs import check_target
    from opstep.runtime.ir.errors import InputError

    others: list[Path] = []
    program = Path(file)
    read = [program, program.with_suffix(".safetensors"), *sources(options)]
    if options["workspace"]:
        read.append(Path(options["workspace"]))
    for name, suffixes in (("emit", (".opg",)), ("save", (".opg", ".safetensors"))):
        if options[name]:
            what = f"--{name} {options[name]}"
            path = check_target(options[name], what, suffixes, others)
            written = [path, path.with_suffix(".safetensors")] if name == "save" else [path]
            for target in written:
                if any(os.path.realpath(target) == os.path.realpath(one) for one in read):
                    raise InputError(
                        f"{what}: {target} is a file that this run reads", hint="name another file"
                    )
            others.append(path)


def sources(options: dict[str, Any]) -> Iterator[Path]:
    """The files and folders that the data comes from."""
    from opstep.training.files import split

    for one in (*options["data"], *options["validate"]):
        if isinstance(one, str):
            yield from {split(one)[0], split(one.partition("=")[2])[0]} - {Path()}


def load_params(program: Program, file: str) -> None:
    """What a file has of the program's params and states."""
    from opstep.runtime.ir.errors import InputError

    values = program.params.read(file)
    loaded = program.params.load(values, strict=False)
    fit = len(values) - len(loaded.unexpected) - len(loaded.mismatched)
    if not fit:
        raise InputError(f"{file}: none of its {amount(len(values), 'tensor')} is one of these")
    for names, what in ((loaded.missing, "are not in it"), (loaded.mismatched, "differ in type")):
        if names:
            say(f"{file}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''} {what}")


def emit(trainer: Trainer, file: str) -> None:
    """The text of the program that runs."""
    from opstep.cli.grad import tell_weights
    from opstep.runtime.arrays import replace_text
    from opstep.runtime.ir.printer import print_module

    replace_text(file, print_module(trainer.program.module))
    say(f"wrote {file}: graph {trainer.graph}")
    tell_weights(trainer.program, file)


def save(trainer: Trainer, program: Program, file: str, leads: bool = True) -> None:
    """The program with what it has learned, or all values. A rank that does not lead gives its
    shards to the one that writes.
    """
    from opstep.api.files import kept
    from opstep.runtime.arrays import write_safetensors

    is_program, params = file.endswith(".opg"), trainer.program.params
    if not leads:
        _ = kept(program) if is_program else params.whole(params)
        return
    if is_program:
        written = [str(path) for path in program.save(file)]
    else:
        write_safetensors(file, params.whole(params))
        written = [file]
    say(f"saved {', '.join(written)}")


def rescue(trainer: Trainer, program: Program, file: str, leads: bool) -> None:
    """Saves what a run that failed had learned."""
    from opstep.runtime.ir.diagnostics import OpstepError
    from opstep.training.train import hand_over

    if leads:
        told = f"an error ends training after step {trainer.step:,}"
        say(f"{told}: what was learned until then is saved")
    try:
        hand_over(trainer, program, warn)
        save(trainer, program, file, leads)
    except OpstepError as error:  # not in place of why training ended
        if leads:
            say(f"error: it cannot be saved: {error.diagnostics[0].message}")


def show_recorded(trainer: Trainer, options: dict[str, Any]) -> bool:
    """Gives the terminal back, and tells of the workspace; whether that is incomplete."""
    from opstep.training.progress import Progress
    from opstep.training.recorded import RunRecord

    for observer in trainer.observers:
        if isinstance(observer, Progress):
            observer.stop()
    records = [o for o in trainer.observers if isinstance(o, RunRecord) and o.report]
    for record in records:
        assert record.report is not None
        say(f"run {record.key} is in {record.path}")
        if record.report.problem:
            say(f"error: {record.path} is incomplete: {record.report.problem}")
        else:
            say(f'  opstep ws {record.path} plot "metrics.loss where run={record.key}"')
            if trainer.outcome and trainer.outcome.kind == "interrupted":
                say(f"  --resume {record.key}  # goes on with it")
    return any(r.report and r.report.problem for r in records)


def record(file: str, trainer: Trainer, outcome: Outcome) -> dict[str, Any]:
    """The run as JSON."""
    return {
        "file": file,
        "graph": trainer.graph,
        "outcome": outcome.kind,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "metrics": dict(outcome.metrics),
        "validation": dict(outcome.validation),
        "best": dict(outcome.best),
    }


def show(outcome: Outcome, before: int) -> None:
    """The end in words. `before`: steps of the runs that it went on with."""
    from opstep.training.progress import words

    text = f"{amount(outcome.steps - before, 'step')} in {duration(outcome.seconds)}"
    text += f", {outcome.steps:,} in all" if before else ""
    if outcome.metrics:
        text += f"; the last: {words(outcome.metrics)}"
    click.echo(text)
    if outcome.validation:
        best, last = dict(outcome.best), dict(outcome.validation)
        step = int(last.pop("step"))
        click.echo(f"validation: {words(last)}")
        if best and best.pop("step") != step:
            click.echo(f"the best, at step {outcome.best['step']:,.0f}: {words(best)}")
