"""``--ranks`` of a run: starts the ranks, or is one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.devices import HOST, kind_of
from opstep.cli.common import MACHINE, OK, ON_SIGTERM, say
from opstep.cli.options import load_program
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.distributed.gloo import GlooTransport
    from opstep.distributed.place import Place

_OWN = (
    "outputs", "save_params", "workspace", "trace", "save", "emit", "tensorboard",
)  # fmt: skip  # what one rank does for all


def place_of(options: dict[str, Any]) -> Place | None:
    """The place of this process among the ranks that a launcher has started, if it has. Raises
    `InputError` where that is not what ``--ranks`` says.
    """
    from opstep.distributed.place import place_in

    place = place_in(os.environ)
    if place is not None and options["ranks"] not in (None, place.ranks):
        raise InputError(f"the launcher has started {place.ranks} ranks, not {options['ranks']}")
    return place


def on_ranks(
    file: str,
    options: dict[str, Any],
    place: Place | None,
    work: Callable[[GlooTransport | None], int],
) -> int:
    """Does a command's work here, as the rank that this process is, if it is one; or starts the
    ranks that its options ask for, which do it. The exit code.
    """
    if place is None and ((options["ranks"] or 1) > 1 or options["mesh"]):
        program = load_program(file, options)
        if program.mesh.ranks > 1:
            return _start(program)
    options["of_rank_0"] = {name: options[name] for name in _OWN if name in options}
    with _as_rank(place, options) as transport:
        return work(transport)


def _start(program: Program) -> int:
    """Runs this command line once for each rank of the mesh; the exit code. Raises `InputError`
    where these are too many.
    """
    from opstep.distributed.starting import MOST, Ended, start

    ranks = program.mesh.ranks
    if ranks > MOST:
        raise InputError(
            f"{ranks:,} ranks are too many for one machine, which starts at most {MOST}",
            hint="torchrun, mpirun and srun start ranks on several machines; "
            "opstep plan --ranks checks any number without starting them",
        )
    command = [sys.executable, "-m", "opstep", *sys.argv[1:]]
    try:
        start(command, ranks)
    except Ended as ended:
        return _told(ended)
    return OK


def _told(ended: Any) -> int:
    """Says which rank ended, and what the others were at."""
    if ended.rank or ended.code < 0:
        say(f"error: rank {ended.rank} {ended.how}, and the others with it")
        shown = [r for r, text in ended.told.items() if r and text.strip() not in ("", ON_SIGTERM)]
        first = [ended.rank] if ended.told[ended.rank] else []
        for rank in dict.fromkeys(first + shown[:1]):
            if rank:
                say(f"rank {rank} said:")
                for line in ended.told[rank].rstrip().splitlines():
                    say(f"  {line}")
    return ended.code if ended.code > 0 else MACHINE


@contextmanager
def _as_rank(place: Place | None, options: dict[str, Any]) -> Iterator[GlooTransport | None]:
    """This process as the rank that it is, if it is one; on its share of the machine's threads."""
    if place is None:
        if options["check"]:
            raise InputError("--check is for several ranks", hint="add --ranks 2")
        yield None
        return
    from opstep.distributed.gloo import joined
    from opstep.distributed.gpus import device_of

    own: tuple[str, ...] = ()  # files that each rank writes
    options["ranks"] = place.ranks
    if options.get("fallback") == HOST:
        raise InputError("--fallback cpu is for one process: other ranks would stay on their GPUs")
    options["device"] = device_of(options["device"], place)
    on_gpus = kind_of(options["device"]).gpu
    if options["threads"] is None:
        options["threads"] = max(1, len(os.sched_getaffinity(0)) // place.local_ranks)
    if "inputs" in options:
        options["inputs"] = [w.replace("{rank}", str(place.rank)) for w in options["inputs"]]
    if options.get("chaos") is not None:  # each is delayed in its own way
        options["chaos"] = options["chaos"] * place.ranks + place.rank
    for name in ("workspace", "trace", "save_params"):
        if options.get(name) and "{rank}" in options[name]:
            options[name] = options[name].replace("{rank}", str(place.rank))
            own = (*own, name)
    joins = bool(options.get("trace")) and "trace" not in own
    if joins:
        options["trace"] = own_file(options["trace"], place.rank)
        own = (*own, "trace")
    if "stats" in options:  # the ops of all ranks are recorded, and each has a run of its own
        own = (*own, "workspace")
        if options["workspace"]:
            options["tags"] = (*options["tags"], ("rank", place.rank))
    if place.rank:
        options.update(
            {n: () if n == "outputs" else None for n in _OWN if n in options and n not in own}
        )
    with joined(place, options["rank_timeout"], on_gpus, options["check"]) as transport:
        if joins:
            from opstep.cli.rank_timelines import RankTimelines

            options["timelines"] = RankTimelines(transport, place.local_ranks == place.ranks)
        yield transport


def say_parted(transport: GlooTransport, program: Program, file: str) -> list[dict[str, Any]]:
    """Warns where a file of params and states, which rank 0 writes, has not those of all ranks; for
    ``--json``, who has others. All ranks call this.
    """
    from opstep.distributed.agreement import parted
    from opstep.distributed.lookout import ranks_listed
    from opstep.runtime.ir.diagnostics import names_listed

    groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for rank, first, names in parted(transport.world, program):
        groups.setdefault((first, tuple(names)), []).append(rank)
    if transport.rank == 0:
        for (first, names), ranks in groups.items():
            have = "has" if len(ranks) == 1 else "have"
            say(f"warning: {ranks_listed(ranks)} {have} another {names_listed(names)} than rank "
                f"{first}: {file} has that of rank {first}")  # fmt: skip
        if groups and not program.verified.shards:
            own = Path(file).with_stem(f"{Path(file).stem}{{rank}}")
            say(f"hint: --save-params {own} saves those of each rank")
    return [{"ranks": r, "than": k, "names": list(names)} for (k, names), r in groups.items()]


def own_file(path: str, rank: int) -> str:
    """Where a rank writes its timeline: beside that of rank 0, which becomes that of all."""
    target = Path(path)
    return str(target.with_name(f"{target.stem}.rank{rank}{target.suffix}")) if rank else path


def by_rank(transport: GlooTransport, outputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of descriptions of results those of rank 0 and, where another rank has others, its own, with
    `rank` among them.
    """
    from opstep.distributed.agreement import told

    first, *others = told(transport.world, list(outputs))
    found = []
    for k, mine in enumerate(first):
        found.append(mine)
        for rank, its in enumerate(others, 1):
            if its[k] != mine:
                found.append(its[k] | {"rank": rank})
    return found
