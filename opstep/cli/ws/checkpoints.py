"""``checkpoints`` and ``checkpoint``: what training runs have kept to go on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import OK, amount, console, emit_json, json_option, option, say, size
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

if TYPE_CHECKING:
    from opstep.trace.workspace.runs import RecordedRun


@verb(
    "checkpoints",
    examples=[
        ("opstep ws runs.db checkpoints", "of all runs"),
        ("opstep ws runs.db checkpoints --run last", "of the last run"),
    ],
)
@option("--run -r RUN", "Only those of this run.")
@json_option
def checkpoints(file: str, run: str | None, as_json: bool) -> int:
    """List the checkpoints of training runs.

    The column "checkpoint" has the names that `opstep train --resume` and the verb checkpoint
    accept. Scores are figures of validations that were the best so far.
    """
    from rich.text import Text

    with shown.workspace(file) as ws:
        found = ws.checkpoints(run)
        if as_json:
            emit_json([{"reference": c.reference, **c._asdict()} for c in found])
            return OK
    rows = shown.table("checkpoint", "goes on with", "seed", "score", "saved", right=("seed",))
    for c in found:
        score = "" if c.score is None else f"{c.metric} {shown.number(c.score)}"
        name = Text.assemble((c.key, "bold"), f"@{c.made}")
        place = f"epoch {c.epoch + 1}, batch {c.batch + 1}"
        rows.add_row(name, place, str(c.seed), Text(score), shown.moment(c.saved))
    console().print(rows)
    return OK


@verb(
    "checkpoint",
    examples=[
        ("opstep ws runs.db checkpoint last -o p.safetensors", "for opstep run --params"),
        ("opstep ws runs.db checkpoint 3f2a@best -o p.safetensors", "the best by validation"),
        ("opstep ws runs.db checkpoint 3f2a@300 --all -o all.npz", "with optimizer states"),
    ],
)
@click.argument("reference", metavar="RUN[@STEP]")
@option("--output -o FILE", "A .safetensors or .npz file.", required=True)
@option("--all", "Also what only training needs.", to="everything")
def checkpoint(file: str, reference: str, output: str, everything: bool) -> int:
    """Write a checkpoint's params to a file.

    STEP is the number of steps before it, or first, best or last. The file has the params, and the
    states that graphs other than the step of training use: what `opstep run --params` takes for the
    program as it was before training.
    """
    from opstep.cli.inputs import ARRAYS, check_target
    from opstep.cli.ws.tensors import write

    target = check_target(output, f"--output {output}", ARRAYS)
    with shown.workspace(file) as ws:
        found = ws.checkpoint(reference)
        values = ws.checkpoint_values(found)
        if not everything:
            states = states_of_model(ws.run(found.run))
            kinds = {t.name: t.kind for t in ws.run(found.run).tensors if t.checkpoint == found.id}
            values = {n: a for n, a in values.items() if kinds[n] == "param" or n in states}
    write(target, dict(values))
    told = f"{amount(len(values), 'tensor')}, {size(target.stat().st_size)}"
    say(f"wrote {output}: {found.reference}, {told}")
    return OK


def states_of_model(run: RecordedRun) -> set[str]:
    """The named tensors that a run's program uses outside of the step of training."""
    from opstep.api.program import loads
    from opstep.runtime.ir.effects import effects_of, reached_graphs

    verified: Any = loads(run.program, run.file or "<workspace>").verified
    step = set(reached_graphs([run.graph], verified))
    model = [name for name in verified.graphs if name not in step]
    return set(effects_of(model, verified).touches) if model else set(verified.tensors)
