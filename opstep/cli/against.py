"""``opstep diff --against``: a PyTorch model as it runs here beside PyTorch itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.cli.common import (
    OK,
    PROGRAM,
    UNRECORDED,
    amount,
    console,
    present,
    say,
    watch_compiler,
)
from opstep.cli.options import import_modules, library_of
from opstep.differing.models import EXPORT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from opstep.api.program import Program
    from opstep.differing.errors import Error
    from opstep.differing.models import ModelComparison, OpDifference, OutputErrors, Own
    from opstep.trace.recording import Recording

SHOWN = 8  # ops
LEAST = 1e-5  # of tolerances
WIDTH = 48  # of a line of Python in a table
UNFIT = ("b", "params", "chaos", "atol", "graph")  # options of a comparison of two runs of ours


def diff_torch(files: tuple[str, ...], options: dict[str, Any]) -> int:
    """What ``diff`` does with ``--against`` or ``--dtype``."""
    from opstep.trace.recording import Recording

    path, run = options["workspace"], prepared(files, options)
    recording = None if path is None else Recording(workspace=path)
    with recording or nullcontext(), watch_compiler():
        found = run(recording=recording)
    return show_found(found, options, recording)


def show_found(
    found: ModelComparison, options: dict[str, Any], recording: Recording | None = None
) -> int:
    """Shows what came of it, and where it was recorded. The exit code."""
    present(found, record, show, options["as_json"])
    if recording and kept(recording, found):
        return UNRECORDED
    return OK if found.same else PROGRAM


def inputs_of(
    program: Program, options: dict[str, Any], examples: Mapping[str, np.ndarray],
    otherwise: Sequence[str] = (),
) -> dict[str, np.ndarray]:  # fmt: skip
    """The inputs of a model: as they were given, else its examples. `otherwise`: what is given
    where there are neither.
    """
    from opstep.api.sources import check_symbols, gather, parse_inputs, parse_symbols

    graph, words = program.graph("main"), options["inputs"]
    types = {b.name.text: b.type for b in graph.inputs if b.type is not None}
    named = parse_inputs(words, types) if words else {}
    at_hand = {n: a for n, a in examples.items() if n not in named}
    symbols = parse_symbols(options["symbols"])
    check_symbols(graph, symbols)
    words = words or ([] if at_hand else otherwise)
    return gather(program, graph, words, symbols, options["seed"], at_hand)


def unfit(options: dict[str, Any], *names: str) -> list[str]:
    """Those of these options, and of ``--steps``, that were given."""
    given = [name for name in names if options[name] not in (None, 0.0)]
    return given + ["steps"] * (options["steps"] != 1)


def prepared(files: tuple[str, ...], options: dict[str, Any]) -> Callable[..., ModelComparison]:
    """The comparison, of what is given."""
    from opstep.differing.comparison import settings
    from opstep.frontends.torch.importing import check_installed, translated

    file = _model_file(files, options)
    check_installed()
    from opstep.frontends.torch import comparing

    against = options["against"] or comparing.TORCH
    comparing.check_reference(against)
    import_modules(options["imports"])
    model = translated(file, fallback=library_of(options) is not None)
    inputs = inputs_of(model.program, options, model.program.example)
    return partial(
        comparing.compare, model, against, options["dtype"], inputs, settings(options["a"]),
        options["rtol"] or None, options["memory"] << 20,
    )  # fmt: skip


def kept(recording: Recording, found: ModelComparison) -> bool:
    """Tells where the runs are; whether the workspace is incomplete."""
    (report,) = recording.close()
    if report.problem:
        say(f"error: {report.path} is incomplete: {report.problem}")
    else:
        keys, rtol = " ".join(found.runs), f"{_tolerance(found):.0e}".replace("e-0", "e-")
        say(f"kept as two runs: opstep ws {report.path} compare {keys} --rtol {rtol}")
    return bool(report.problem)


def _tolerance(found: ModelComparison) -> float:
    """What two runs may be apart: all that is rounding, which adds up from op to op."""
    if not found.same:
        return LEAST
    errors = [o.apart for o in found.outputs.values()] + [d.total for d in found.differing]
    farthest = max((e.relative for e in errors if e is not None), default=0.0)
    return min(max(LEAST, 10 ** math.ceil(math.log10(farthest * 10))), 1.0) if farthest else LEAST


def _model_file(files: tuple[str, ...], options: dict[str, Any]) -> str:
    """The only file, once the options fit."""
    from opstep.runtime.ir.errors import InputError

    file, *more = files
    if more or not file.endswith(".pt2"):
        raise InputError(
            "--against and --dtype take one PyTorch model",
            hint="save it: torch.export.save(torch.export.export(model, args), 'model.pt2')",
        )
    if given := unfit(options, *UNFIT):
        raise InputError(f"--{given[0]} does not fit --against")
    return file


# --- what is shown --------------------------------------------------------------------------------


def show(found: ModelComparison) -> None:
    from rich.text import Text

    out = console()
    out.print(Text.assemble("a: ", (found.names[0], "bold"), "; b: ", (found.names[1], "bold")))
    counted = f"{amount(found.compared, 'result')} of ops compared"
    if found.unpaired:
        counted += f", {found.unpaired:,} others have no counterpart"
    out.print(Text.assemble(_verdict(found), f", {counted}"))
    if not found.complete:
        out.print(Text("some results are larger than --memory, and were not compared", "yellow"))
    _show_outputs(out, found)
    first = found.first
    if first is None:
        return
    _show_first(out, found, first)
    if found.faults:
        _show_others(out, [d for d in found.faults if d is not first], "more faults")
    elif len(found.differing) > 1:
        farthest = sorted(found.differing, key=lambda d: -d.added)
        _show_others(out, farthest, "most is added by")


def _verdict(found: ModelComparison) -> tuple[str, str]:
    sides = sorted({d.verdict for d in found.faults})
    if EXPORT in sides:
        return "the export changed the numbers", "bold red"
    if sides:
        who = "both have faults" if len(sides) > 1 else f"{sides[0]} has a fault"
        return who, "bold red"
    if found.unjudged:
        return "they differ", "bold red"
    if found.differing:
        return "only rounding is between them", "bold green"
    return "they agree", "bold green"


def _show_outputs(out: Any, found: ModelComparison) -> None:
    from opstep.cli.ws.shown import table

    has_f64 = any(e is not None for errors in found.outputs.values() for e in errors[1:])
    columns = ("apart", "a to f64", "b to f64")[: None if has_f64 else 1]
    figures = table("", *columns, right=columns)
    for name, errors in found.outputs.items():
        figures.add_row(f"  {name}", *map(_figure, errors[: len(columns)]))
    out.print(figures)


def _figure(error: Error | None) -> str:
    if error is None:
        return "?"
    return f"{error.unlike:,} NaN or infinite" if error.unlike else f"{error.relative:.2g}"


def _show_first(out: Any, found: ModelComparison, first: OpDifference) -> None:
    from rich.text import Text

    from opstep.cli.elements import show_elements

    module = f" in {first.module}" if first.module else ""
    out.print()
    out.print(Text.assemble("first: ", (first.op, "bold"), f" gives {first.type}{module} ",
                            (f"({first.site})", "dim")))  # fmt: skip
    if first.line:
        place = f"  {_relative(first.file)}:{first.line}: "
        out.print(Text.assemble(place, (first.source, "cyan")))
    if first.other:
        out.print(Text.assemble("  there: ", (first.other, "cyan")))
    out.print(Text.assemble("  here: ", (first.statement, "cyan")))
    show_elements(out, first.elements)
    for line in _reasons(found, first):
        out.print(Text(f"  {line}", "yellow"))


def _relative(file: str) -> str:
    """A file's path from the working directory, where it is below."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _reasons(found: ModelComparison, first: OpDifference) -> list[str]:
    """What the difference comes from."""
    own = "; ".join(
        f"{side}: {'?' if one is None else _own(one)}"
        for side, one in zip("ab", first.own, strict=True)
    )
    where = "from f64 on the same operands"
    if first.verdict == EXPORT:
        where = "from the model's ops in f64, on what PyTorch had"
    if found.fused:
        where = "from f64 on the model's inputs, as all between is compiled as one"
    lines = [f"{where}: {own}"]
    if first.came:
        lines.append(f"{first.through}, an operand, is {first.came:.2g} apart before it")
    if first.weights:
        lines.append(f"other values in the file: {', '.join(first.weights)}")
    return [*lines, EXPLAINED[first.verdict]]


def _own(one: Own) -> str:
    times = f", {one.excess:.3g} times what rounding makes" if one.excess > 1 else ""
    return f"{_figure(one.error)}{times}"


EXPLAINED = {
    "a": "a is wrong",
    "b": "b is wrong",
    "export": "the file says something else than the model",
    "rounding": "both are right: rounding, of the op or of what it is given",
    "loss": "both lose as much precision: the op is too hard for its type",
    "unknown": "there is no f64 of it: nothing says who is right",
}


def _show_others(out: Any, others: list[OpDifference], title: str) -> None:
    from opstep.cli.ws.shown import table

    if not others:
        return
    columns = ("added", "came in", "own, a", "own, b")
    figures = table(title, *columns, "", right=columns)
    for one in others[:SHOWN]:
        place = f"{one.file.rpartition('/')[2]}:{one.line}: {one.source}"
        place = place if one.line else f"{one.op}: {one.value}"
        own = ("?" if o is None else _figure(o.error) for o in one.own)
        figures.add_row(
            place[:WIDTH], f"{max(one.added, 0.0):.2g}", f"{one.came:.2g}", *own, one.module
        )
    out.print()
    out.print(figures)
    if len(others) > SHOWN:
        out.print(f"{len(others) - SHOWN:,} more; --json has them", markup=False)


def record(found: ModelComparison) -> dict[str, Any]:
    """As JSON."""
    return {
        "a": found.names[0],
        "b": found.names[1],
        "same": found.same,
        "compared": found.compared,
        "differing": len(found.differing),
        "unpaired": found.unpaired,
        "whole": found.complete,
        "fused": found.fused,
        "runs": found.runs,
        "outputs": {n: _output(e) for n, e in found.outputs.items()},
        "first": _difference(found.first) if found.first else None,
        "ops": [_difference(d) for d in found.differing],
    }


def _output(errors: OutputErrors) -> dict[str, Any]:
    return {k: None if e is None else e._asdict() for k, e in errors._asdict().items()}


def _difference(one: OpDifference) -> dict[str, Any]:
    own = {
        side: None if o is None else {"error": o.error._asdict(), "excess": o.excess}
        for side, o in zip("ab", one.own, strict=True)
    }
    nested = {"elements": one.elements._asdict(), "total": one.total._asdict(), "own": own}
    return one._asdict() | nested
