"""About an op: its declaration, and what this statement makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.api.catalogue import family_notes, text_of
from opstep.lsp.derivation import Step, derive
from opstep.lsp.hovers.markdown import block, code, escape, paragraphs, prose, table
from opstep.lsp.occurrences import Occurrence, op_named, statement_index
from opstep.runtime.ir.graph import Apply, Declaration, Graph, Literal, Name
from opstep.runtime.ir.op import Op, Resolved
from opstep.runtime.ir.printer import print_value
from opstep.runtime.ir.verified import Application

if TYPE_CHECKING:
    from opstep.lsp.project import Project


def text(project: Project, found: Occurrence) -> str:
    op = op_named(found.name)
    if op is None:
        return ""
    return paragraphs([declaration(op), statement_details(found), _notes(op)])


def declaration(op: type[Op]) -> str:
    """Signature, text, formula and its source."""
    return paragraphs(
        [
            block(op.signature),
            prose(text_of(op)),
            block(op.formula, "text") if op.formula else "",
            f"*From* {escape(op.source)}" if op.source else "",
        ]
    )


def _notes(op: type[Op]) -> str:
    has = "has a gradient rule" if getattr(op, "grad", None) is not None else "has no gradient"
    moves = ", moves elements bit for bit" if op.traits.moves else ""
    return paragraphs([prose(family_notes(op)), f"*Family {op.family}, {has}{moves}.*"])


# --- this statement -------------------------------------------------------------------------------


def application_at(found: Occurrence) -> Application | None:
    """What the verifier found out about the statement that holds a word."""
    item, part = found.item, found.part
    if not isinstance(part, Apply) or item.verified is None or not isinstance(item.node, Graph):
        return None
    k = statement_index(item.node, part.span.start)
    applications = item.verified.applications
    return applications[k] if 0 <= k < len(applications) else None


def statement_details(found: Occurrence) -> str:
    """Types and attributes of this statement, and how its shape comes about."""
    part = found.part
    application = application_at(found)
    if application is None or application.op is None or not isinstance(part, Apply):
        return _attributes_of(found)
    op = application.op
    return paragraphs(
        [
            "---",
            _operands(op, part, application.resolved),
            _attributes(op, {a.name.text for a in part.attrs}, application),
            shape(part, application),
        ]
    )


def _attributes_of(found: Occurrence) -> str:
    """Defaults, where there are no types to show."""
    op, part = op_named(found.name), found.part
    if op is None or not op.attrs or isinstance(part, Declaration):
        return ""
    rows = [(code(a.name), "needed" if a.required else code(print_value(a.default)))
            for a in op.attrs]  # fmt: skip
    return table(("attribute", "default"), rows)


def _operands(op: type[Op], part: Apply, resolved: Resolved) -> str:
    rows = []
    for k, operand in enumerate(part.operands):
        spec = op.operands[min(k, len(op.operands) - 1)]
        t = resolved.operands[k] if k < len(resolved.operands) else None
        text = operand.text if isinstance(operand, Name) else print_value(operand.value)
        name = f"{spec.name}[{k - len(op.operands) + 1}]" if spec.variadic else spec.name
        rows.append((code(name), code(text), code(t) if t is not None else ""))
    many = len(resolved.results) > 1
    for k, t in enumerate(resolved.results):
        name = part.results[k].name.text if k < len(part.results) else ""
        own = op.results[k] if many and k < len(op.results) else op.results[0]
        rows.append((f"→ {code(own.removesuffix('...'))}", code(name), code(t)))
    return table(("operand", "here", "type"), rows)


def _attributes(op: type[Op], explicit: set[str], application: Application) -> str:
    rows = []
    for spec in op.attrs:
        value = application.attrs.get(spec.name, spec.default)
        note = "" if spec.required else f"default {code(print_value(spec.default))}"
        if not spec.required and spec.name not in explicit:
            note = "the default"
        rows.append((code(spec.name), code(print_value(value)), note))
    return table(("attribute", "value", ""), rows)


def shape(part: Apply, application: Application) -> str:
    """Where each dim of the results comes from."""
    lines = []
    steps = derive(application)
    several = len(application.resolved.results) > 1
    for step in steps:
        name = ""
        if several and step.result < len(part.results):
            name = f"{code(part.results[step.result].name.text)} "
        lines.append(f"- {name}axis {step.axis}: {_equation(step)}")
    return f"**Shape**\n\n{chr(10).join(lines)}" if lines else ""


def _equation(step: Step) -> str:
    """``H - R + 1 = 8 - 3 + 1 = 6``, without repeating itself."""
    parts = [step.formula]
    for text in (step.numbers, str(step.value)):
        if text != parts[-1]:
            parts.append(text)
    return code(" = ".join(parts))


def literal_type(part: Apply, operand: Literal, application: Application) -> str:
    """The element type that a number among the operands takes."""
    for k, t in application.literals:
        if part.operands[k] is operand:
            return str(t)
    return ""
