"""Signature help: the form of the op or graph whose call is being written."""

from __future__ import annotations

from lsprotocol import types

from opstep.api.catalogue import Entry, text_of
from opstep.lsp.completions.arguments import describe
from opstep.lsp.completions.cursor import Call, read
from opstep.lsp.completions.matching import Site
from opstep.lsp.completions.scope import Scope, entry_named, head, shown
from opstep.lsp.hovers.markdown import block, paragraphs, prose
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.calls import substitute, unify
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.op import AttrSpec, Mismatch, OperandSpec
from opstep.runtime.ir.types import TensorType

_KINDS = {
    "T": "any tensor", "N": "numbers, not bools", "F": "floats; others are made f32",
    "I": "integers", "B": "bools", "X": "indices, i32 or i64",
}  # fmt: skip


@feature(
    types.TEXT_DOCUMENT_SIGNATURE_HELP,
    types.SignatureHelpOptions(trigger_characters=["(", ","], retrigger_characters=["=", ")"]),
)
def signature_help(
    project: Project, params: types.SignatureHelpParams
) -> types.SignatureHelp | None:
    """The form of the call around the cursor, and the argument that is being written."""
    file = project.file(params.text_document.uri)
    offset = file.offset(params.position)
    cursor = read(file, offset)
    call = cursor.call
    entry = entry_named(file, call.callee.value) if call is not None else None
    if call is None or entry is None:
        return None
    scope = Scope.at(file, file.item_at(offset), cursor.statement)
    site = Site.of(entry, call, scope, complete=True)
    active = _active(entry, call)
    if isinstance(entry, Graph):
        label, parameters = head(entry), _inputs(entry, site)
    else:
        label = entry.signature
        parameters = [_operand(o) for o in entry.operands] + [_attribute(a) for a in entry.attrs]
    document = None
    if _is_asked_for(params.context):
        document = types.MarkupContent(types.MarkupKind.Markdown, _text(entry, site))
    else:
        parameters = [(text, "") for text, _ in parameters]
    signature = types.SignatureInformation(
        label, document, _placed(label, parameters), active_parameter=active
    )
    return types.SignatureHelp([signature], 0, active)


def _is_asked_for(context: types.SignatureHelpContext | None) -> bool:
    """Whether a key was pressed for it. What comes by itself as one types is a line: a higher box
    has no place above the first lines of a file, and is put below, where the suggestions cover it.
    """
    if context is None or context.trigger_kind is types.SignatureHelpTriggerKind.Invoked:
        return True
    shown = context.active_signature_help
    return shown is not None and any(s.documentation for s in shown.signatures)


def _active(entry: Entry, call: Call) -> int | None:
    """The parameter of the argument that the cursor is in; None where there is none left."""
    argument = call.arguments[call.active]
    operands = entry.inputs if isinstance(entry, Graph) else entry.operands
    attrs = () if isinstance(entry, Graph) else entry.attrs
    names = [a.name for a in attrs]
    if argument.name is not None:
        return len(operands) + names.index(argument.name) if argument.name in names else None
    before = call.arguments[: call.active]
    if all(a.name is None for a in before):
        location = len(before)
        if location < len(operands):
            return location
        if operands and isinstance(operands[-1], OperandSpec) and operands[-1].variadic:
            return len(operands) - 1
    attributes = call.attributes()
    left = (k for k, name in enumerate(names, len(operands)) if name not in attributes)
    return next(left, None)


def _text(entry: Entry, site: Site) -> str:
    """The documentation, and what the call gives as far as it is written."""
    found = None if None in site.operands else site.resolved(site.operands)
    gives = ", ".join(map(str, found.results)) if found is not None else ""
    formula = "" if isinstance(entry, Graph) or not entry.formula else block(entry.formula, "text")
    now = f"Gives `{gives}`." if gives else ""
    return paragraphs([now, prose(text_of(entry)), formula])


def _operand(spec: OperandSpec) -> tuple[str, str]:
    mark = "?" if spec.optional else "*" if spec.variadic else ""
    notes = [_KINDS[spec.kind]]
    if spec.optional:
        notes.append("can be left out")
    if spec.variadic:
        notes.append("one or more")
    return f"{spec.name}: {spec.group}{mark}", "; ".join(notes)


def _attribute(spec: AttrSpec) -> tuple[str, str]:
    return f"{spec.name}: {spec.type}", describe(spec)


def _inputs(graph: Graph, site: Site) -> list[tuple[str, str]]:
    """The inputs; with each what its type is here, once its symbols are known."""
    typed = [(b, t) for b, t in zip(graph.inputs, site.operands, strict=False) if t is not None]
    try:
        part = Graph(graph.name, tuple(b for b, _ in typed), (), ())
        symbols, _ = unify(part, [t for _, t in typed])
    except Mismatch:
        symbols = {}
    found = []
    for binding in graph.inputs:
        note = ""
        if isinstance(binding.type, TensorType) and symbols:
            try:
                substituted = substitute(binding.type, symbols)
            except Mismatch:
                substituted = binding.type
            note = f"here `{substituted}`" if substituted != binding.type else ""
        found.append((shown(binding), note))
    return found


def _placed(label: str, parameters: list[tuple[str, str]]) -> list[types.ParameterInformation]:
    """Each parameter with its place in the label, as a name may occur twice."""
    placed, position = [], label.find("(")
    for text, note in parameters:
        position = label.find(text, position)
        end = position + len(text)
        note_ = types.MarkupContent(types.MarkupKind.Markdown, note) if note else None
        placed.append(types.ParameterInformation((position, end), note_))
        position = end
    return placed
