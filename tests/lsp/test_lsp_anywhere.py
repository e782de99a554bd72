"""Every question about every place of any text has an answer: of damaged texts as well."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from random_graphs import text_of

from opstep.lsp.occurrences import at, occurrences
from opstep.lsp.project import Project
from opstep.lsp.registry import features
from opstep.lsp.tokens import tokens
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.lexer import bare_name

ERRORS = sorted((Path(__file__).parent.parent / "runtime" / "ir" / "errors").glob("*.opg"))
URI = "file:///a.opg"
PIECES = [
    "",
    "x",
    "\n",
    "# ",
    "(",
    ")",
    "]",
    "{",
    "}",
    '"',
    "𝛼",
    "=",
    ", ",
    "graph ",
    "param w",
    "<-",
]


def asked(project: Project, method: str, params: Any) -> Any:
    """The answer of a feature; None where it is refused with a reason."""
    try:
        return features()[method].function(project, params)
    except OpstepError:
        return None


def ask_everything(project: Project, text: str, choice: random.Random) -> None:
    file = project.open(URI, text, 1)
    identifier = types.TextDocumentIdentifier(URI)
    lines = text.count("\n")
    for _ in range(12):
        position = file.position(choice.randrange(len(text) + 1))
        here: dict[str, Any] = {"text_document": identifier, "position": position}
        asked(project, "textDocument/hover", types.HoverParams(**here))
        asked(project, "textDocument/definition", types.DefinitionParams(**here))
        asked(project, "textDocument/typeDefinition", types.TypeDefinitionParams(**here))
        asked(project, "textDocument/implementation", types.ImplementationParams(**here))
        context = types.ReferenceContext(include_declaration=True)
        asked(project, "textDocument/references", types.ReferenceParams(context, **here))
        asked(project, "textDocument/documentHighlight", types.DocumentHighlightParams(**here))
        asked(project, "textDocument/linkedEditingRange", types.LinkedEditingRangeParams(**here))
        asked(project, "textDocument/prepareRename", types.PrepareRenameParams(**here))
        asked(project, "textDocument/rename", types.RenameParams(new_name="fresh", **here))
        items = asked(
            project, "textDocument/prepareCallHierarchy", types.CallHierarchyPrepareParams(**here)
        )
        for item in items or ():
            incoming = types.CallHierarchyIncomingCallsParams(item)
            assert asked(project, "callHierarchy/incomingCalls", incoming) is not None
            outgoing = types.CallHierarchyOutgoingCallsParams(item)
            assert asked(project, "callHierarchy/outgoingCalls", outgoing) is not None
    asked(project, "textDocument/documentSymbol", types.DocumentSymbolParams(identifier))
    first = choice.randrange(lines + 1)
    whole = tokens(file, 0, 1 << 31)
    part = tokens(file, first, first + 5)
    assert len(part) <= len(whole) and len(whole) % 5 == 0


def check_marks(project: Project, text: str) -> None:
    """A word is found from each of its letters, and is among its own occurrences."""
    file = project.open(URI, text, 2)
    for offset in range(0, len(text), 7):
        found = at(file, offset)
        if found is None:
            continue
        assert found.start <= offset <= found.end
        assert bare_name(text[found.start : found.end]) == found.name
        if found.part is not None and found.kind not in ("keyword", "string", "comment", "number"):
            assert found.start in [o.start for o in occurrences(file, found.thing)]


@pytest.mark.parametrize("path", ERRORS, ids=lambda p: p.stem)
def test_texts_with_errors(path):
    text = path.read_text(encoding="utf-8")
    project = Project()
    ask_everything(project, text, random.Random(1))
    check_marks(project, text)


@pytest.mark.parametrize("seed", range(25))
def test_texts_that_were_damaged(seed):
    choice = random.Random(seed)
    text = text_of(seed)
    project = Project()
    for _ in range(8):
        start = choice.randrange(len(text) + 1)
        end = min(len(text), start + choice.choice([0, 1, 5, 60]))
        text = text[:start] + choice.choice(PIECES) + text[end:]
    ask_everything(project, text, choice)
    check_marks(project, text)


@pytest.mark.parametrize("text", ["", "\n", "graph", "graph f", "\ufeff", "{", "param", "\r\n\r\n"])
def test_next_to_nothing(text):
    ask_everything(Project(), text, random.Random(0))
