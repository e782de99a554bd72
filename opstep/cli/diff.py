"""``opstep diff``: a graph run in two ways, and the first op that gives something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import (
    OK,
    PROGRAM,
    FloatRange,
    amount,
    command,
    console,
    ended_in_order,
    json_option,
    option,
    present,
    watch_compiler,
)
from opstep.cli.options import (
    fallback_option,
    import_option,
    load_program,
    program_options,
    setting_options,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opstep.differing.comparison import Comparison, Difference, OpSite
    from opstep.differing.verdict import Verdict

SHOWN = 8  # races, and ops that one program alone has
EXACT = "f64"


@command(
    "diff",
    examples=[
        ("opstep diff model.opg -i random --a streams=4 --b debug", "async against debug mode"),
        ("opstep diff model.opg -i random --chaos 7", "with random delays"),
        ("opstep diff model.opg -i x=x.npy --b device=cuda --rtol 1e-5", "the CPU against a GPU"),
        ("opstep diff model.opg -i x=x.npy --b f64", "find where it loses precision"),
        ("opstep diff model.pt2 --against torch", "a PyTorch model against PyTorch"),
        ("opstep diff model.pt2 --against torch -w runs.db", "kept as two runs of a workspace"),
        ("opstep diff model.onnx --against onnxruntime", "an ONNX model against ONNX Runtime"),
        ("opstep diff model.onnx --against model.pt2", "an export against the PyTorch model"),
        (
            "opstep diff model.onnx --against net.py:make",
            "the same, with a model that Python makes",
        ),
        ("opstep diff old.opg new.opg -i random --b async", "two programs"),
        ("opstep diff old.py new.py", "two training scripts of PyTorch's"),
        ('opstep diff train.py --b-args "--dtype bf16"', "one script in two settings"),
        ("opstep diff --workspace runs.db 3f2a last", "two recorded runs"),
    ],
    codes={
        OK: "nothing differs",
        PROGRAM: "something does; or errors in the program",
    },
)
@click.argument("files", metavar="FILE [FILE]", nargs=-1, required=True)
@option(
    "--a SETTINGS",
    "Settings of the first side, separated by commas: async, debug, streams=N, alloc=…, fill=…, "
    "sync=…, device=…, kernels=…, threads=N. Default: async.",
    default="",
)
@option(
    "--b SETTINGS",
    "Settings of the second side. Default: debug, or with two files those of the first. f64 "
    "compares each op with f64 arithmetic and lists those that lose most precision first.",
    default=None,
)
@program_options()
@setting_options("steps", "seed", seed=0)
@option(
    "--rtol",
    "Allowed relative difference of floats, relative to the second side.",
    FloatRange(0),
    default=0.0,
    show_default=True,
)
@option(
    "--atol",
    "Allowed absolute difference of floats; if both are 0, all bits must be equal.",
    FloatRange(0),
    default=0.0,
    show_default=True,
)
@option(
    "--memory MIB",
    "Memory for results to compare, per side; if there are more, the graph runs again.",
    click.IntRange(1),
    default=1024,
)
@setting_options("chaos")
@option("--a-args ARGS", "Arguments of the first script.", default="")
@option(
    "--b-args ARGS",
    "Of the second, or of the first once more. Scripts run for --steps steps of their optimizers, "
    "3 by default; --memory is for the values of each that are kept.",
    default="",
)
@option(
    "--against torch|torch:cuda|inductor|onnxruntime|MODEL",
    "Compare a PyTorch model (.pt2) with PyTorch: op by op, there or on a GPU, or compiled; an "
    "ONNX model with ONNX Runtime, or with the PyTorch model that it was exported from: FILE.pt2, "
    "or FILE.py:NAME, which imports the file.",
)
@option(
    "--dtype f16|bf16|f32|f64",
    "With --against: the type of the floats of this side. Default: the model's.",
)
@fallback_option
@import_option
@option(
    "--workspace -w FILE.db",
    "Compare two runs of a workspace: diff RUN RUN. With --against, both sides are recorded there.",
)
@json_option
@ended_in_order()
def diff(files: tuple[str, ...], **options: Any) -> int:
    """Run a graph in two ways and report the first op whose results differ.

    Each result is saved right after its op, on the same stream, so that a race shows as it happens.
    The report includes the hazard checker's verdict on both plans.

    Of two scripts of PyTorch's, or of one with other arguments, ops are paired by their lines, and
    the first that parts by more than rounding is reported with the lines of both.
    """
    from opstep.cli import against_onnx, script_steps
    from opstep.runtime.ir.errors import InputError

    if script_steps.is_script(files, options):
        return script_steps.diff_scripts(files, options)
    if against_onnx.is_onnx(files, options["against"]):
        return against_onnx.diff_onnx(files, options)
    if options["against"] or options["dtype"]:
        from opstep.cli import against

        return against.diff_torch(files, options)
    if options["workspace"]:
        return diff_runs(files, options)
    if len(files) > 2:
        raise InputError(f"{len(files)} files are given; two at most can be compared")
    if options["b"] == EXACT:
        return diff_exact(files, options)
    with watch_compiler():
        found = compared(files, options)
    present(found, record, show, options["as_json"])
    return OK if found.same else PROGRAM


def diff_runs(keys: tuple[str, ...], options: dict[str, Any]) -> int:
    """Two runs of a workspace, by what it knows of them."""
    from opstep.cli.ws import compare, shown
    from opstep.runtime.ir.errors import InputError

    if len(keys) != 2:
        raise InputError("--workspace compares two runs", hint="diff --workspace runs.db RUN RUN")
    if not options["rtol"] <= 1:
        raise InputError("--rtol is at most 1 where runs of a workspace are compared")
    with shown.workspace(options["workspace"]) as ws:
        found = ws.compare(*keys, options["rtol"])
    present(found, compare.record, compare.show, options["as_json"])
    return OK if found.same else PROGRAM


def diff_exact(files: tuple[str, ...], options: dict[str, Any]) -> int:
    """A program beside arithmetic in f64."""
    from opstep.cli import precision as shown
    from opstep.differing.diff import settings
    from opstep.differing.precision import precision
    from opstep.runtime.ir.errors import InputError

    if len(files) > 1:
        raise InputError("--b f64 takes one program", hint="opstep diff FILE --b f64")
    if options["atol"] or options["chaos"] is not None:
        raise InputError("--b f64 runs op by op: it takes no --chaos, and of tolerances --rtol")
    how = settings(options["a"])
    (program,), (graph,), values = loaded(files, options)
    with watch_compiler():
        found = precision(
            program, graph.name.text, values, device=how.device, threads=how.threads,
            kernels=how.kernels, steps=options["steps"], tolerance=options["rtol"] or None,
        )  # fmt: skip
    present(found, shown.record, shown.show, options["as_json"])
    return OK if found.fine else PROGRAM


def loaded(files: Sequence[str], options: dict[str, Any]) -> tuple[list, list, dict[str, Any]]:
    """Programs with their params, the graph of each, and the inputs of the first."""
    from opstep.api.sources import choose_graph
    from opstep.cli.inputs import asked

    first = asked(files[0], options)
    sides = [first]
    for file in files[1:]:
        program = load_program(file, options)
        graph = choose_graph(program.module, options["graph"], file)
        sides.append(first._replace(program=program, graph=graph))
    values = first.values()
    for side in sides:
        side.program.reseed(options["seed"])
        side.load_params()
    return [s.program for s in sides], [s.graph for s in sides], values


def compared(files: tuple[str, ...], options: dict[str, Any]) -> Comparison:
    """Loads what is given, and runs both sides."""
    from opstep.differing.diff import diff as run_both
    from opstep.differing.diff import settings

    a = settings(options["a"])
    default = "debug" if len(files) == 1 else options["a"]
    b = settings(default if options["b"] is None else options["b"])
    programs, graphs, values = loaded((files[0], files[-1]), options)
    return run_both(
        *programs, graph=graphs[0].name.text, inputs=values, graph_b=graphs[1].name.text,
        settings_a=a, settings_b=b, steps=options["steps"], rtol=options["rtol"],
        atol=options["atol"], chaos=options["chaos"], budget=options["memory"] << 20,
    )  # fmt: skip


# --- what is shown --------------------------------------------------------------------------------


def show(found: Comparison) -> None:
    from rich.text import Text

    out = console()
    verdict = ("same", "bold green") if found.same else ("they differ", "bold red")
    out.print(Text.assemble("a: ", (found.names[0], "bold"), "; b: ", (found.names[1], "bold")))
    runs = f", {found.passes} runs of each side" if found.passes > found.steps else ""
    counted = f"{amount(found.compared, 'result')} of ops in {amount(found.steps, 'step')}"
    out.print(Text.assemble(verdict, f", {counted} compared{runs}"))
    if not found.complete:
        out.print(Text("some results are larger than --memory, and were not compared", "yellow"))
    if found.coarse:
        note = f"some floats are {found.coarse} on one side: all are compared by what that can hold"
        out.print(Text(f"{note}, and `opstep diff FILE --b f64` shows what each op loses"))
    if found.initial:
        out.print(Text(f"differ before the first step: {', '.join(found.initial)}"))
    if found.first:
        show_first(out, found, found.first)
    if found.overwritten:
        names = ", ".join(found.overwritten)
        out.print(Text(f"all ops gave the same, and yet {names} differ: they were written over"))
    for name, error in found.errors.items():
        out.print(Text(f"{name} did not end: {error.diagnostics[0].message}"))
    for name, sites in zip("ab", found.alone, strict=True):
        if sites:
            listed = ", ".join(sites[:SHOWN]) + (", …" if len(sites) > SHOWN else "")
            out.print(Text(f"only {name} has {listed}"))
    for name, one in found.verdicts.items():
        show_verdict(out, name, one)


def show_first(out: Any, found: Comparison, first: Difference) -> None:
    from rich.text import Text

    site = first.site
    turns = f", turn {', '.join(map(str, site.turns))}" if site.turns else ""
    what = f" gives {site.value}: {site.type} in step {first.step}{turns} "
    out.print()
    out.print(Text.assemble("first: ", (site.op, "bold"), what, (f"({site.site})", "dim")))
    for one in statements(first):
        out.print(Text.assemble(f"  {one.file or '<text>'}:{one.line}: ", (one.statement, "cyan")))
    if first.kind == "only":
        out.print(Text(f"  only {'a' if first.a else 'b'} ran it"))
    elif first.kind == "type" and first.b:
        out.print(Text(f"  in b it is {first.b.type}"))
    elif first.elements:
        from opstep.cli.elements import show_elements

        show_elements(out, first.elements)
    for name in first.changing:
        out.print(Text(f"  {name} gives something else when it is run again", "yellow"))
    if found.differing > 1:
        out.print(Text(f"  {amount(found.differing, 'result')} of this step differ"))


def statements(first: Difference) -> list[OpSite]:
    """That of the op; both, where the programs differ in it."""
    sites = [p for p in (first.a, first.b) if p is not None]
    if len(sites) == 2 and sites[0].statement == sites[1].statement:
        return sites[:1]
    return sites


def show_verdict(out: Any, name: str, found: Verdict) -> None:
    """What the hazard checker says."""
    from rich.text import Text

    plans = amount(found.plans, "plan")
    if found.free:
        out.print(Text(f"{name}: free of races (proved from {plans})"))
        return
    near = f", {len(found.near)} of them at this op" if found.near else ""
    out.print(
        Text(f"{name}: {amount(len(found.hazards), 'race')} in its {plans}{near}", "bold red")
    )
    first = [*found.near, *(h for h in found.hazards if h not in found.near)]
    for hazard in first[:SHOWN]:
        out.print(Text(f"  {hazard.kind}: {hazard}"))


def record(found: Comparison) -> dict[str, Any]:
    """As JSON."""
    return {
        "a": found.names[0],
        "b": found.names[1],
        "same": found.same,
        "steps": found.steps,
        "compared": found.compared,
        "differing": found.differing,
        "whole": found.complete,
        "coarse": found.coarse,
        "passes": found.passes,
        "given": found.initial,
        "first": _first(found.first) if found.first else None,
        "written_over": found.overwritten,
        "alone": {"a": found.alone[0], "b": found.alone[1]},
        "errors": {k: e.diagnostics[0].message for k, e in found.errors.items()},
        "hazards": {
            k: {
                "plans": v.plans,
                "found": [{"kind": h.kind, "message": str(h)} for h in v.hazards],
                "at_op": [{"kind": h.kind, "message": str(h)} for h in v.near],
            }
            for k, v in found.verdicts.items()
        },
    }


def _first(first: Difference) -> dict[str, Any]:
    def site_record(one: OpSite | None) -> dict[str, Any] | None:
        return None if one is None else one._asdict() | {"type": str(one.type)}

    record: dict[str, Any] = {"step": first.step, "kind": first.kind}
    record |= {"a": site_record(first.a), "b": site_record(first.b), "changing": first.changing}
    if first.elements:
        record["elements"] = first.elements._asdict()
    return record
