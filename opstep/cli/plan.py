"""``opstep plan``: how a graph would run, and whether that is free of races."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from opstep.api.settings import RunSettings
from opstep.cli.common import (
    OK,
    PROGRAM,
    amount,
    colors,
    command,
    emit_json,
    in_switches,
    json_option,
    option,
    say,
    size,
)
from opstep.cli.options import (
    POLICY,
    fallback_option,
    graph_option,
    import_option,
    ranks_options,
    setting_options,
    symbol_option,
)
from opstep.runtime.ir.diagnostics import Diagnostic, render_all

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.runtime.plan.hazards import Hazard
    from opstep.runtime.plan.plan import Plan


@command(
    "plan",
    examples=[
        ("opstep plan model.opg", "the only graph, or main"),
        ("opstep plan model.opg --graph encode --symbol N=4", "with a size for the dimension N"),
        ("opstep plan model.opg -s N=4 --streams 2 --alloc fresh", "with another policy"),
        ("opstep plan model.opg -s N=4 --summary", "only memory and verdict"),
        ("opstep plan model.opg -s N=4 > saved.plan", "save the plan, to read or edit it"),
        ("opstep plan model.opg -s N=4 --ranks 8", "whether what eight ranks say matches"),
        ("opstep plan --saved saved.plan", "check a saved plan"),
    ],
    codes={
        OK: "the plan is free of races, and its ranks match",
        PROGRAM: "errors in the program, races in its plan, ranks that do not match",
    },
)
@click.argument("file", metavar="FILE")
@graph_option
@symbol_option
@setting_options(*POLICY)
@fallback_option
@import_option
@ranks_options
@option("--summary", "Omit the plan itself.")
@option("--saved", "FILE is a plan that this command printed.")
@json_option
def plan(file: str, **options: Any) -> int:
    """Show how a graph would run: streams, waits, memory, and whether it is free of races.

    A race is an op that may run before another one that it depends on. A stream is a queue of ops;
    streams run beside each other. Nothing is run here. The verdict is proved from the plan alone,
    for every order in which streams may progress. Graphs called by control flow have separate
    plans, which are shown as well.

    Of several ranks, which run the same program together, the plan of each is followed: their
    collectives must match in order, group, type and attributes, and no ranks may wait for each
    other in a circle. What does not match is shown with both lines.
    """
    if options["saved"]:
        return check_saved(file, options["as_json"])
    from opstep.cli.inputs import asked
    from opstep.runtime.plan.hazards import check
    from opstep.runtime.plan.plan import Fuse
    from opstep.runtime.plan.text import format_plan

    program, graph, symbols, _ = asked(file, options)
    policy = RunSettings.of(options).policy
    plans = program.plans(graph.name.text, None, policy, symbols=symbols, fuse=Fuse.ALL)
    hazards = [h for one in plans for h in check(one)]
    faults = rank_faults(program, graph.name.text, symbols)
    if options["as_json"]:
        emit_json(record(file, plans, hazards) | ranks_as_json(program, file, faults))
        return PROGRAM if hazards or faults else OK
    for scheduled in plans:
        if not options["summary"]:
            click.echo(format_plan(scheduled))
        show(scheduled)
        show_repeats(program, scheduled)
    verdict(hazards)
    if program.mesh.ranks > 1:
        if faults:
            say(render_all(faults, colors(sys.stderr), in_switches))
        found = amount(len(faults), "fault") if faults else "they match"
        click.echo(f"{amount(program.mesh.ranks, 'rank')} ({program.mesh}): {found}")
    return PROGRAM if hazards or faults else OK


def rank_faults(program: Program, graph: str, symbols: dict[str, Any]) -> list[Diagnostic]:
    """What does not match between the ranks of the program's mesh."""
    if program.mesh.ranks == 1:
        return []
    from opstep.api.ranks import Part, rank_mismatches

    return rank_mismatches(Part(program, graph, None, symbols))


def ranks_as_json(program: Program, file: str, faults: list[Diagnostic]) -> dict[str, Any]:
    if program.mesh.ranks == 1:
        return {}
    from opstep.cli.check import record as described

    return {"ranks": program.mesh.ranks, "mismatches": [described(file, d) for d in faults]}


def show_repeats(program: Program, plan: Plan) -> None:
    """What is computed again, and the memory that it would take to keep it."""
    from opstep.runtime.ir.diagnostics import names_listed
    from opstep.runtime.plan.planner import memory_computed_once, prepared
    from opstep.runtime.plan.repeats import repeats

    steps = [s for step in plan.steps for s in step.members or (step,)]
    found = repeats(steps, plan.frames)
    names = [plan.values[v].name for k in dict.fromkeys(found.values()) for v in steps[k].results]
    if not names or plan.policy.alloc != "reuse":
        return
    prepare = program.on("cpu").prepare
    flat = prepared(program.verified, *plan.signature, prepare, program.library)
    kept = memory_computed_once(flat, plan.policy)
    click.echo(
        f"  computed again: {names_listed(names)} ({amount(len(found), 'op')}); "
        f"if all were kept, temporaries would be {size(kept)}"
    )


def check_saved(file: str, as_json: bool) -> int:
    """The verdict on the text of plans, as this command wrote it or somebody changed it."""
    from opstep.runtime.ir.reading import read_source
    from opstep.runtime.plan.hazards import check
    from opstep.runtime.plan.text import parse_plan

    text = read_source(file)
    begins = [m.start() for m in re.finditer(r"^plan +\S", text, re.MULTILINE)] or [0]
    hazards = []
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        above = "\n" * text.count("\n", 0, begin)  # so that a message has the file's line
        hazards += check(parse_plan(above + text[begin:end], file))
    if as_json:
        emit_json({"file": file, "hazards": listed(hazards)})
    else:
        verdict(hazards)
    return PROGRAM if hazards else OK


def memory(plan: Plan) -> dict[str, int]:
    """Bytes by what they are for. `tensors`: of all temporaries, working memory of ops with them,
    if each had memory of its own; those and what is used begin at multiples of the alignment.
    """
    from opstep.runtime.plan.packing import rounded

    by_kind = dict.fromkeys(("input", "param"), 0)
    for buffer in plan.buffers:
        if buffer.kind in by_kind:
            by_kind[buffer.kind] += buffer.nbytes
    homes = [
        plan.values[v].buffer for s in plan.steps if not s.op.traits.reinterprets for v in s.results
    ]
    held = {value.buffer for value in plan.values}
    homes += [b for b in range(len(plan.buffers)) if b not in held]
    temporaries = [plan.buffers[b] for b in homes if plan.buffers[b].kind == "temp"]
    return {
        "inputs": by_kind["input"],
        "params": by_kind["param"],
        "live_at_most": plan.peak,
        "used": plan.arena if plan.policy.alloc == "reuse" else plan.peak,
        "tensors": sum(rounded(buffer.nbytes) for buffer in temporaries),
    }


def listed(hazards: list[Hazard]) -> list[dict[str, str]]:
    return [{"kind": h.kind, "message": str(h)} for h in hazards]


def record(file: str, plans: list[Plan], hazards: list[Hazard]) -> dict[str, Any]:
    """The graph's plan, and those of the graphs that its control flow calls, as JSON."""
    from opstep.runtime.plan.text import format_plan

    return {
        "file": file,
        "graph": plans[0].graph,
        "policy": {k: getattr(plans[0].policy, k) for k in POLICY[1:]},
        "hazards": listed(hazards),
        "plans": [
            {
                "graph": plan.graph,
                "steps": len(plan.steps),
                "streams": plan.streams,
                "events": plan.events,
                "memory_bytes": memory(plan),
                "text": format_plan(plan),
            }
            for plan in plans
        ],
    }


def show(plan: Plan) -> None:
    """The summary."""
    streams, events = amount(plan.streams, "stream"), amount(plan.events, "event")
    click.echo(f"{plan.graph}: {amount(len(plan.steps), 'op')} on {streams}, {events}")
    m = memory(plan)
    ratio = f" ({m['used'] / plan.peak:.2f}x what is live at once)" if plan.peak else ""
    click.echo(
        f"  memory: inputs {size(m['inputs'])}, params {size(m['params'])}, "
        f"temporaries {size(m['used'])}{ratio}; unshared they would be {size(m['tensors'])}"
    )


def verdict(hazards: list[Hazard]) -> None:
    """Hazards on standard error, races called so, and how many there are."""
    from opstep.runtime.plan.hazards import RACES

    races = sum(h.kind in RACES for h in hazards)
    for hazard in hazards:
        word = "race:" if hazard.kind in RACES else "hazard:"
        say(f"{click.style(word, 'red', bold=True) if colors(sys.stderr) else word} {hazard}")
    counts = [amount(races, "race")] if races else []
    counts += [amount(len(hazards) - races, "other hazard")] if len(hazards) > races else []
    click.echo(f"verdict: {' and '.join(counts) or 'no races, in any order'}")
