"""``list``, ``load`` and ``save``: the named tensors of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import OK, amount, console, emit_json, json_option, option, say, size
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

if TYPE_CHECKING:
    import numpy as np

    from opstep.trace.workspace.records import TensorRecord
    from opstep.trace.workspace.workspace import Workspace

run_option = option("--run -r RUN", "Only those of this run.")
KINDS = ("input", "param", "state", "output", "saved")


@verb(
    "list",
    examples=[
        ("opstep ws runs.db list", "the tensors"),
        ("opstep ws runs.db list --run last --kind param", "only some of them"),
        ("opstep ws runs.db list runs", "the runs"),
    ],
)
@click.argument(
    "what", type=click.Choice(["tensors", "runs"]), default="tensors", metavar="[tensors|runs]"
)
@run_option
@option("--kind", "Only tensors of this kind.", click.Choice(KINDS))
@json_option
def list_(file: str, what: str, run: str | None, kind: str | None, as_json: bool) -> int:
    """List the tensors or the runs.

    The column "tensor" has the names that the other verbs accept. Those of checkpoints of training
    are not listed: see the verb checkpoints.
    """
    from opstep.runtime.ir.errors import InputError

    with shown.workspace(file) as ws:
        if what == "runs":
            if kind:
                raise InputError("--kind is about tensors", hint=f"opstep ws {file} list")
            runs = ws.runs if run is None else [ws.run(run)]
            if as_json:
                emit_json([shown.run_record(r) for r in runs])
            else:
                console().print(shown.runs_table(runs))
            return OK
        of_training = {c.id for c in ws.checkpoints()}
        tensors = [t for t in ws.tensors(kind=kind) if t.checkpoint not in of_training]
        if run is not None:
            chosen = ws.run(run).id
            tensors = [t for t in tensors if t.run == chosen]
        if as_json:
            emit_json([shown.tensor_record(t) for t in tensors])
        else:
            console().print(tensors_table(tensors))
    return OK


def tensors_table(tensors: list[TensorRecord]) -> Any:
    from rich.text import Text

    rows = shown.table("tensor", "type", "kind", "size", "saved", right=("size",))
    for t in tensors:
        name = Text.assemble((t.name, "bold"), t.reference.removeprefix(t.name))
        rows.add_row(name, Text(t.type), t.kind, size(t.nbytes), shown.moment(t.saved))
    return rows


# --- load -----------------------------------------------------------------------------------------


@verb(
    "load",
    examples=[
        ("opstep ws runs.db load conv1.w", "its statistics and first values"),
        (
            "opstep ws runs.db load conv1.w@last -o w.npy",
            "its final value in the last run, as .npy",
        ),
        ("opstep ws runs.db load x@3f2a:-1 -o x.npz", "an input of run 3f2a"),
        ("opstep ws runs.db load --run last --kind param -o p.safetensors", "all params of a run"),
    ],
)
@click.argument("references", nargs=-1, metavar="[TENSOR...]")
@option("--run -r RUN", "All tensors of this run, with their final values.")
@option("--kind", "With --run: only tensors of this kind.", click.Choice(KINDS))
@option("--output -o FILE", "Write to this .npy, .npz or .safetensors file.")
@json_option
def load(
    file: str,
    references: tuple[str, ...],
    run: str | None,
    kind: str | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Write tensors to a file, or show one.

    TENSOR is NAME, NAME@RUN or NAME@RUN:STEP. Without a step, it is the last of the run; without a
    run, the one saved by hand or, if there is none, that of all runs, which must be equal.
    """
    from opstep.cli.inputs import ARRAYS, check_target
    from opstep.runtime.ir.errors import InputError

    target = None if output is None else check_target(output, f"--output {output}", ARRAYS)
    if kind and run is None:
        raise InputError("--kind needs a run", hint="add --run last")
    with shown.workspace(file) as ws:
        tensors = [ws.tensor(reference) for reference in references]
        if run is not None:
            tensors += of_run(ws, run, kind)
        if not tensors:
            hint = f"opstep ws {file} list" if not run else ""
            raise InputError("no tensor is named" if not run else "the run has none", hint=hint)
        named = {t.name: t for t in tensors}
        if len(named) < len(tensors):
            raise InputError("two of these tensors have one name; write them to two files")
        if target is None:
            if as_json:
                records = [as_record(t, ws.elements(t)) for t in tensors]
                emit_json(records if len(references) != 1 else records[0])
            else:
                for t in tensors:
                    look(t, ws.elements(t))
            return OK
        write(target, {name: ws.elements(t) for name, t in named.items()})
    say(f"wrote {output}: {amount(len(tensors), 'tensor')}, {size(sum(t.nbytes for t in tensors))}")
    return OK


def of_run(ws: Workspace, reference: str, kind: str | None) -> list[TensorRecord]:
    """The last of each name that a run has kept."""
    tensors = [t for t in ws.run(reference).tensors if kind is None or t.kind == kind]
    return list({t.name: t for t in tensors}.values())


def write(path: Path, named: dict[str, np.ndarray]) -> None:
    from opstep.cli.inputs import write_arrays
    from opstep.runtime.ir.errors import InputError

    if path.suffix == ".npy" and len(named) != 1:
        raise InputError(
            f"{path}: an .npy file holds one array, these are {len(named)}",
            hint="write to an .npz or .safetensors file",
        )
    write_arrays(path, named)


def as_record(tensor: TensorRecord, array: np.ndarray) -> dict[str, Any]:
    """A tensor with its statistics as JSON, and with its elements where they are few."""
    from opstep.cli.run import LISTED, statistics

    wide = array if array.dtype.kind in "iub" else array.astype("f8")
    values = {"values": wide.tolist()} if array.size <= LISTED else {}
    return shown.tensor_record(tensor) | statistics(array) | values


def look(tensor: TensorRecord, array: np.ndarray) -> None:
    """Statistics and first values."""
    from rich.text import Text

    from opstep.cli.run import peek, statistics

    figures_by_name = statistics(array)
    out = console()
    facts = f"{tensor.type}, {tensor.kind}, {size(tensor.nbytes)}"
    saved = f"kept {shown.moment(tensor.saved)}"
    out.print(Text.assemble((tensor.reference, "bold"), f": {facts}, {saved}"))
    figures = [
        f"{k} {shown.number(figures_by_name[k])}"
        for k in ("min", "max", "mean")
        if figures_by_name[k] is not None
    ]
    figures += [
        f"{figures_by_name[k]:,} {name}"
        for k, name in (("nan", "NaN"), ("inf", "inf"))
        if figures_by_name[k]
    ]
    out.print(Text(f"  {', '.join(figures) or 'no finite elements'}"))
    out.print(Text(f"  {peek(array, 10)}"))


# --- save -----------------------------------------------------------------------------------------


@verb(
    "save",
    examples=[
        ("opstep ws runs.db save mask=mask.npy", "one array"),
        ("opstep ws runs.db save w=p.safetensors:conv1.w x=data.npz:x", "from larger files"),
    ],
)
@click.argument("sources", nargs=-1, required=True, metavar="NAME=FILE...")
def save(file: str, sources: tuple[str, ...]) -> int:
    """Save arrays from files under a name.

    An array saved before under the same name is replaced; tensors of runs are not changed. The
    workspace is created if it does not exist.
    """
    from opstep.runtime import arrays
    from opstep.runtime.ir.errors import InputError
    from opstep.trace.workspace import names
    from opstep.trace.workspace.workspace import Workspace

    found: dict[str, np.ndarray] = {}
    for text in sources:
        name, equals, source = text.partition("=")
        if not (equals and source):
            hint = "write w=FILE.npy, w=FILE.npz:KEY or w=FILE.safetensors:KEY"
            raise InputError(f"{text}: which name, and from where?", hint=hint)
        if name in found:
            raise InputError(f"{text}: {name} was given before")
        names.check_name(name)
        found[name] = arrays.load(source)
    Workspace.create(file)
    with shown.workspace(file) as ws:
        for name, array in found.items():
            tensor = ws.save(name, array)
            say(f"saved {tensor.name}: {tensor.type}, {size(tensor.nbytes)}")
    return OK
