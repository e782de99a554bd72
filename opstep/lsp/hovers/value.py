"""About a value, a param or a state: its type, where it is from, who uses it, what it held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from opstep.lsp.calls import calls_to
from opstep.lsp.hovers import live
from opstep.lsp.hovers.graph import comment_of
from opstep.lsp.hovers.markdown import block, code, count, escape, link, paragraphs
from opstep.lsp.hovers.operation import application_at, shape
from opstep.lsp.occurrences import DEFINES, Occurrence, Thing, definition, occurrences
from opstep.lsp.recorded import Recorded, RecordedValue, records_of, workspaces_near
from opstep.runtime.ir.graph import Apply, Declaration, Graph, Name, Return
from opstep.runtime.ir.lexer import bare_name
from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.printer import print_value
from opstep.runtime.ir.shards import Unsharded, shard_of

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.project import Project

_MOST_LINKS = 8
_MOST_COUNTED = 100
_MOST_CALLS = 16  # of graphs that return what another one returned


def text(project: Project, found: Occurrence) -> str:
    """About an input or the result of a statement."""
    item, name = found.item, found.name
    defined = definition(found.file, found.thing)
    t = item.verified.types.get(name) if item.verified else None
    return paragraphs(
        [
            block(f"{name}: {t}" if t is not None else name),
            _origin(found, defined),
            _shape(found, defined),
            _uses(found),
            live.text(project, found.file, item.name, name),
            _figures(project, found.file, _references(found.file, item.name, name)),
        ]
    )


def _origin(found: Occurrence, defined: Occurrence | None) -> str:
    graph = code(found.item.name)
    if defined is None:
        return f"No statement of graph {graph} defines it."
    where = link(found.file, defined.start)
    if isinstance(defined.part, Apply):
        return f"Result of {code(defined.part.callee.text)} in graph {graph}, {where}."
    return f"Input of graph {graph}, {where}."


def _shape(found: Occurrence, defined: Occurrence | None) -> str:
    """Where its dims come from: only there where it gets them, for elsewhere nobody asks."""
    if found.mark.role != DEFINES or defined is None or not isinstance(defined.part, Apply):
        return ""
    application = application_at(defined)
    return shape(defined.part, application) if application is not None else ""


def _uses(found: Occurrence) -> str:
    """Who uses it, with links to the first. Thousands are not counted: somebody waits."""
    uses = (o for o in occurrences(found.file, found.thing) if o.mark.role != DEFINES)
    counted = list(islice(uses, _MOST_COUNTED + 1))
    if not counted:
        return "Never used."
    amount = count(len(counted), "use")
    if len(counted) > _MOST_COUNTED:
        amount = f"More than {_MOST_COUNTED} uses"
    links = list(dict.fromkeys(link(o.file, o.start) for o in counted))
    dots = ", …" if len(links) > _MOST_LINKS else "."
    return f"{amount}: {', '.join(links[:_MOST_LINKS])}{dots}"


# --- params and states ----------------------------------------------------------------------------


def of_tensor(project: Project, found: Occurrence) -> str:
    """About a param or a state."""
    item = found.file.tensors.get(found.name)
    d = item.node if item is not None else None
    if item is None or not isinstance(d, Declaration):
        return f"No param or state has the name {code(found.name)}."
    start, end = d.span
    return paragraphs(
        [
            block(item.text[start:end]),
            comment_of(item),
            f"{d.kind.capitalize()}, {link(found.file, item.start + start)}. {_beginning(d)}",
            _part(found.file, d),
            _uses(found),
            _updates(found.file, found.name),
            live.text(project, found.file, None, found.name),
            _figures(project, found.file, [RecordedValue(None, found.name)]),
        ]
    )


def _part(file: File, d: Declaration) -> str:
    """What a rank has of a tensor that is declared as shards."""
    try:
        shard = shard_of(d, file.mesh or Mesh())
    except Unsharded:  # a message says so
        return ""
    if shard is None:
        return ""
    return f"Each of {shard.group} has {code(str(shard.type))}, a part along axis {shard.axis}."


def _beginning(d: Declaration) -> str:
    if d.value is not None:
        return f"Filled with {code(print_value(d.value.value))}."
    if d.init is not None:
        return f"Initialised by {code(d.init.text)}."
    return "No initialiser: it must be loaded before it is read."


def _updates(file: File, name: str) -> str:
    """The graphs that give it a new value."""
    graphs: dict[str, None] = {}
    text = file.text
    sign = text.find("<-")  # there are few of them, and many of the name
    while sign >= 0:
        target = text[text.rfind("\n", 0, sign) + 1 : sign].strip()
        item = file.item_at(sign) if bare_name(target) == name else None
        if item is not None and item.kind == "graph":
            graphs[item.name] = None
        sign = text.find("<-", sign + 2)
    return f"Updated by {', '.join(map(code, graphs))}." if graphs else ""


# --- what it held ---------------------------------------------------------------------------------


def _references(file: File, graph: str, value: str) -> Iterator[RecordedValue]:
    """Where a recording may have the value, the likeliest first. An input of a graph that is called
    at one place is what it is given there.
    """
    for _ in range(_MOST_CALLS):
        yield _computed(file, graph, value)
        argument = _defined_by(file, graph, value)
        if argument is None:
            return
        graph, value = argument
        if value in file.tensors:
            yield RecordedValue(None, value)
            return


def _computed(file: File, graph: str, value: str) -> RecordedValue:
    """Where a value is computed: what a call gives is recorded in the graph that is called."""
    site = ""
    for _ in range(_MOST_CALLS):
        step = _returned_by(file, graph, value)
        if step is None:
            break
        first, callee, value = step
        site += f"/{callee}:{first}"
        graph = callee
    return RecordedValue(graph, value, f"*{site}/{value}" if site else "*")


def _defined_by(file: File, graph: str, value: str) -> tuple[str, str] | None:
    """The graph that makes the only call of a graph, and what it gives it as an input."""
    item = file.graphs.get(graph)
    node = item.node if item is not None else None
    names = [b.name.text for b in node.inputs] if isinstance(node, Graph) else []
    calls = [o for o in calls_to(file, graph) if o.item.name != graph]
    if value not in names or len(calls) != 1 or not isinstance(calls[0].part, Apply):
        return None
    call = calls[0].part
    location = names.index(value)
    if call.callee.text != graph or location >= len(call.operands):
        return None  # control flow gives it
    operand = call.operands[location]
    return (calls[0].item.name, operand.text) if isinstance(operand, Name) else None


def _returned_by(file: File, graph: str, value: str) -> tuple[str, str, str] | None:
    """First result and callee of the call that gives `value`, and what the callee calls it."""
    defined = definition(file, Thing("value", value, graph))
    if defined is None or not isinstance(defined.part, Apply):
        return None
    statement = defined.part
    callee = file.graphs.get(statement.callee.text)
    if callee is None or not isinstance(callee.node, Graph) or not callee.node.body:
        return None
    last = callee.node.body[-1]
    names = [binding.name.text for binding in statement.results]
    location = names.index(value)
    if not isinstance(last, Return) or location >= len(last.values):
        return None
    return names[0], statement.callee.text, last.values[location].text


def _figures(project: Project, file: File, references: Iterable[RecordedValue]) -> str:
    """The statistics of the last run that was recorded."""
    if not file.path:
        return ""
    program = Path(file.path)
    setting = project.settings.get("workspace") or ""
    near = workspaces_near(program, map(Path, project.folders), str(setting))
    records = records_of(project)
    found = (records.last(program, location, near) for location in references)
    return next((_of_record(record) for record in found if record is not None), "")


def _of_record(r: Recorded) -> str:
    when = "before the first step" if r.step < 0 else f"step {r.step:,}"
    database = Path(r.workspace).name
    head = (
        f"**Last run** {code(r.run)}, {when} ({escape(database)}, {r.began[:16].replace('T', ' ')})"
    )
    return f"{head}\n\n{figures(r)}"


def figures(r: Recorded) -> str:
    """The statistics in one line; what is wrong comes first."""
    wrong = [f"**{count(n, what, what)}**" for n, what in ((r.nan, "NaN"), (r.inf, "Inf")) if n]
    if r.mean is None:
        return ", ".join([*wrong, count(r.count, "element")])
    if r.count == 1:
        return ", ".join([*wrong, code(_number(r.min))])
    shown = [
        f"{what} {code(_number(value))}"
        for what, value in (("min", r.min), ("max", r.max), ("mean", r.mean), ("std", r.std))
    ]
    zeros = [f"zeros {code(f'{100 * r.zero / r.count:.3g}%')}"] if r.zero else []
    return ", ".join([*wrong, *shown, *zeros])


def _number(value: float | int | None) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
