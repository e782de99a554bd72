"""What Datasette is told of a workspace: descriptions, facets, labels, queries."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from opstep.trace.workspace.pages.cells import DATABASE, link
from opstep.trace.workspace.pages.questions import QUESTIONS, Question
from opstep.trace.workspace.pages.words import coded
from opstep.trace.workspace.schema import TABLES
from opstep.trace.workspace.views import VIEWS

# How tables are shown at first.
SHOWN: dict[str, dict[str, Any]] = {
    "runs": {"label_column": "key", "sort_desc": "id", "size": 50},
    "ops": {"facets": ["name"], "size": 100},
    "executions": {"size": 100},
    "stats": {"size": 100},
    "results": {"size": 100},
    "tensors": {"label_column": "name", "sort_desc": "id", "facets": ["kind", "dtype"]},
    "checkpoints": {"label_column": "kind", "sort_desc": "id"},
    "findings": {"sort_desc": "id", "facets": ["kind"]},
    "metrics": {"facets": ["name"], "size": 500},
    "slowest_ops": {"sort_desc": "total_ns"},
    "blobs": {"hidden": True},  # bytes: tensors are read with `opstep ws FILE export`
}


def metadata(path: str) -> dict[str, Any]:
    """For the file of that name."""
    columns = {t.name: {c.name: c.what for c in t.columns} for t in TABLES}
    columns |= {v.name: dict(v.columns) for v in VIEWS}
    tables = {
        described.name: {
            "description_html": str(coded(described.what)),
            "description": described.what,
            "columns": columns[described.name],
            **SHOWN.get(described.name, {}),
        }
        for described in (*TABLES, *VIEWS)
    }
    database = {
        "title": path,
        "description": "What runs recorded, in SQL. The usual questions are at hand.",
        "tables": tables,
        "queries": {q.name: query(q) for q in QUESTIONS},
    }
    questions = Markup("").join(
        Markup("<li>{}: {}</li>").format(link(q.title, q.name), coded(q.what)) for q in QUESTIONS
    )
    links = Markup("<ul class='bullets'>{}</ul><p>{}</p>").format(
        questions, link("Tables, views, and SQL of your own", "")
    )
    return {"title": path, "description_html": str(links), "databases": {DATABASE: database}}


def query(question: Question) -> dict[str, Any]:
    """A canned query, with what its parameters stand for."""
    listed = Markup("").join(
        Markup("<dt>{}</dt><dd>{}</dd>").format(name, coded(what))
        for name, what in question.params.items()
    )
    text = Markup("<p>{}</p><dl class='params'>{}</dl>").format(coded(question.what), listed)
    return {
        "title": question.title,
        "description_html": str(text),
        "description": question.what,
        "sql": question.sql,
        "params": list(question.params),
        "hide_sql": True,
    }
