"""Writes the parts of docs/ that come from elsewhere: the commands' help, the ops' reference, the
tables of a workspace, the figures of the GPU's benchmarks.

    python docs/generate.py          # write
    python docs/generate.py --check  # only tell whether they are up to date; exit code 1 where not

A generated part stands between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURES = HERE.parent / "benchmarks" / "gpu" / "results.json"
FIGURES_OF_RANKS = FIGURES.with_name("results_ranks.json")


def commands() -> str:
    """Every command: what it does, its arguments and options, examples, exit codes."""
    import click

    from opstep.cli.main import COMMANDS, group

    root = click.Context(group, info_name="opstep")
    parts = []
    for name in COMMANDS:
        found = group.get_command(root, name)
        parts.append(command(found, f"opstep {name}", "##"))
        for verb in getattr(found, "verbs", ()):
            below = click.Context(found, root, info_name=name)
            file = argument(found.params[0])
            parts.append(command(found.get_command(below, verb), f"opstep {name} {file} {verb}"))
    return "\n".join(parts)


def debug_commands(kind: str) -> str:
    """The commands of the terminal's debugger, by section. `kind`: the name of a registry."""
    from opstep.cli.debug import registry

    commands = getattr(registry, kind)
    commands.load()
    lines = ["| Command | Short | Meaning |", "|---|---|---|"]
    for section in registry.SECTIONS:
        for one in commands.commands.values():
            if one.section == section:
                usage = one.usage.replace("|", "\\|")
                short = ", ".join(f"`{name}`" for name in one.names[1:])
                lines.append(f"| `{usage}` | {short} | {one.summary} |")
    return "\n".join(lines) + "\n"


def command(found, name: str, heading: str = "###") -> str:
    """One command, or one verb of a command."""
    import click

    from opstep.cli.common import EXIT_CODES

    arguments = [argument(p) for p in found.params if isinstance(p, click.Argument)]
    verb = ["[VERB …]"] if isinstance(found, click.Group) else []
    options = ["[OPTIONS]"]
    usage = " ".join([name, *arguments, *options, *verb] if verb else [name, *options, *arguments])
    lines = [f"{heading} {name}", "", f"`{usage}`", "", inspect.cleandoc(found.help or "")]
    if verb:
        lines += ["", "| Verb | Meaning |", "|---|---|"]
        lines += [f"| `{verb}` | {text} |" for verb, (_, text) in found.verbs.items()]
    lines += ["", "| Option | Meaning |", "|---|---|"]
    lines += [option(p) for p in found.params if isinstance(p, click.Option)]
    lines += ["", "```"]
    for line, what in found.examples:
        lines += [f"# {what}", line]
    lines += ["```"]
    own = {k: v for k, v in found.codes.items() if EXIT_CODES[k] != v}
    if own:
        told = "; ".join(f"{code}: {text}" for code, text in own.items())
        lines += ["", f"Exit codes: {told}."]
    return "\n".join(lines) + "\n"


def argument(p) -> str:
    """An argument as usage shows it."""
    shown = p.metavar or p.name.upper()
    return shown if p.required else f"[{shown}]"


def option(p) -> str:
    """A row of the table of options."""
    value = p.metavar or ""
    if not p.is_flag and not value:
        value = "|".join(getattr(p.type, "choices", ())) or "N"
    flags = ", ".join(f"`{flag}`" for flag in sorted(p.opts, key=len, reverse=True))
    given = ", ".join(p.default) if isinstance(p.default, tuple) else p.default
    default = f" Default: {given}." if p.show_default and not p.is_flag else ""
    return f"| {flags}{f' {cell(value)}' if value else ''} | {cell(p.help)}{default} |"


def exit_codes() -> str:
    """The table of exit codes."""
    from opstep.cli.common import EXIT_CODES

    rows = [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    return "\n".join(["| Code | Meaning |", "|---:|---|", *rows]) + "\n"


def ops() -> str:
    """Every op by family, from its declaration."""
    import opstep.kernels
    import opstep.runtime.ir.control  # noqa: F401 - and those of control flow
    from opstep.runtime.ir.op import OPS

    families: dict[str, list] = {}
    for op in sorted(OPS.values(), key=lambda op: op.name):
        if not op.__module__.startswith("opstep.runtime.plan"):  # plans have ops of their own
            families.setdefault(op.family, []).append(op)
    parts = []
    for family, members in sorted(families.items()):
        module = sys.modules[members[0].__module__]
        parts.append(f"## {family}\n\n{inspect.cleandoc(module.__doc__ or '')}\n")
        parts += [op_entry(op) for op in members]
    return "\n".join(parts)


def op_entry(op) -> str:
    """One op: signature, text, formula, gradient."""
    lines = [f"### {op.name}", "", "```text", op.signature, "```", "", inspect.getdoc(op) or ""]
    if op.formula:
        lines += ["", f"`{op.formula}`"]
    results = ", ".join(op.results).replace("...", " …")
    facts = [f"Results: {results}."] if op.results != ("y",) else []
    facts += ["No gradient."] if getattr(op, "grad", None) is None else []
    facts += ["Any element type, bit for bit."] if op.traits.moves else []
    facts += [f"Source: {op.source}"] if op.source else []
    if facts:
        lines += ["", " ".join(facts)]
    return "\n".join(lines) + "\n"


def rules() -> str:
    """What makes a NaN or an infinity, from the ops' declarations."""
    import opstep.kernels  # noqa: F401 - registers the ops
    from opstep.runtime.ir.op import OPS

    by_rules: dict[tuple[str, ...], list[str]] = {}
    for name, op in sorted(OPS.items()):
        texts = tuple(rule.text for rule in op.faults.rules)
        if texts:
            by_rules.setdefault(texts, []).append(f"`{name}`")
    lines = ["| Op | Rules |", "|---|---|"]
    lines += [f"| {', '.join(ops)} | {cell('; '.join(r))} |" for r, ops in by_rules.items()]
    return "\n".join(lines) + "\n"


def questions() -> str:
    """The questions of a workspace's pages, with what they take."""
    from opstep.trace.workspace.pages.questions import QUESTIONS, RUN

    rows = []
    for question in QUESTIONS:
        takes = "; ".join(
            f"`{name}`" if (name, what) in RUN.items() else f"`{name}`: {what}"
            for name, what in question.params.items()
        )
        rows.append(f"| {question.title} `{question.name}` | {question.what} | {takes} |")
    return "\n".join(["| Question | Answer | Parameters |", "|---|---|---|", *rows]) + "\n"


def tables() -> str:
    """Every table of a workspace: what its rows are, columns, key and indices."""
    from opstep.trace.workspace.schema import TABLES

    parts = []
    for table in TABLES:
        lines = [
            f"### {table.name}",
            "",
            table.what,
            "",
            "| Column | Type | Meaning |",
            "|---|---|---|",
        ]
        for column in table.columns:
            kind = column.type or "INTEGER or REAL"
            refers = f" → `{column.references}.id`" if column.references else ""
            lines.append(f"| `{column.name}` | {kind} | {cell(column.what)}{refers} |")
        indices = [
            f"{', '.join(i.columns)}{f' where {i.where}' if i.where else ''}" for i in table.indices
        ]
        listed = "".join(f"; index: {index}" for index in indices)
        parts.append("\n".join([*lines, "", f"Key: {', '.join(table.key)}{listed}."]) + "\n")
    return "\n".join(parts)


def views() -> str:
    """Every view of a workspace: what it answers, and its columns."""
    from opstep.trace.workspace.views import VIEWS

    parts = []
    for view in VIEWS:
        lines = [f"### {view.name}", "", view.what, "", "| Column | Meaning |", "|---|---|"]
        lines += [f"| `{name}` | {cell(what)} |" for name, what in view.columns]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def gpu_benchmarks(figures: Path = FIGURES, count: str = "one") -> str:
    """The figures that `make bench-gpu` wrote: each beside its peer's, and what must be reached."""
    if not figures.exists():
        return "Not taken yet: `make bench-gpu` writes them.\n"
    found = json.loads(figures.read_text(encoding="utf-8"))
    machine = dict(found["machine"])
    date, gpu, driver = (machine.pop(key) for key in ("date", "gpu", "driver"))
    versions = ", ".join(f"{name} {number}" for name, number in machine.items())
    lines = [
        f"Taken on {date} on {count} {gpu}, driver {driver}, by `{found['command']}`.",
        f"Versions: {versions}.",
        "",
        "| what | figure | peer | peer's figure | ratio | bar | |",
        "|---|---:|---|---:|---:|---|---|",
    ]
    for row in found["rows"]:
        if row["error"]:
            lines.append(f"| {cell(row['what'])} | | | | | | failed: {cell(row['error'])} |")
            continue
        ours, peer = (figure(row[key], row["unit"]) for key in ("ours", "peer"))
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
        verdict = {None: "", True: "reached", False: "**missed**"}[row["reached"]]
        elsewhere = f" ({row['gpu']})" if row.get("gpu", gpu) != gpu else ""
        what = row["what"] + elsewhere
        parts = (what, ours, row["peer_name"], peer, ratio, row["bar"], verdict)
        lines.append(f"| {' | '.join(map(cell, parts))} |")
    return "\n".join(lines) + "\n"


def figure(value: float | None, unit: str) -> str:
    """A number as the table shows it."""
    if value is None:
        return ""
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}"


def cell(text: str) -> str:
    """As a table's cell can hold it."""
    return text.replace("|", "\\|")


def functions() -> str:
    """The functions of expressions, by what they are for."""
    from opstep.runtime.expressions import by_family

    parts = []
    for family, members in by_family().items():
        lines = [f"### {family}", "", "| Function | Meaning |", "|---|---|"]
        lines += [f"| `{f.signature}` | {cell(f.doc)} |" for f in members]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


PARTS: dict[str, tuple[tuple[str, Callable[[], str]], ...]] = {
    "benchmarks.md": (
        ("gpu", gpu_benchmarks),
        ("gpus", partial(gpu_benchmarks, FIGURES_OF_RANKS, "two and four")),
    ),
    "cli.md": (("exit codes", exit_codes), ("commands", commands)),
    "debugging.md": (
        ("debug commands", partial(debug_commands, "GRAPHS")),
        ("script commands", partial(debug_commands, "PYTHON")),
    ),
    "datasette.md": (("questions", questions),),
    "hunting.md": (("rules", rules),),
    "expressions.md": (("functions", functions),),
    "ops.md": (("ops", ops),),
    "workspace.md": (("tables", tables), ("views", views)),
}


def replace(text: str, name: str, part: str, path: Path) -> str:
    """The text with the generated part of that name put in."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{path.name}: no part called {name}: {begin} … {end}")
    return pattern.sub(lambda _: f"{begin}\n\n{part}\n{end}", text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Writes the parts of docs/ that come from the code."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, tell what is stale")
    check = parser.parse_args().check
    stale = []
    for name, parts in PARTS.items():
        path = HERE / name
        old = new = path.read_text(encoding="utf-8")
        for part, make in parts:
            new = replace(new, part, make(), path)
        if new != old:
            stale.append(name)
            if not check:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(f"docs: {', '.join(stale)} {'stale: run `make docs`' if check else 'written'}")
    else:
        print("docs: up to date")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
