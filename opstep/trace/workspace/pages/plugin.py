"""Datasette's hooks: cells, plots of answers, forms, and who may ask.

Hooks are registered for the whole process, so each looks first whether it is asked for a workspace.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from pluggy import HookimplMarker

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.trace.workspace.functions import add_functions
from opstep.trace.workspace.pages import cells, plots
from opstep.trace.workspace.pages.cells import DATABASE
from opstep.trace.workspace.pages.questions import OF_A_RUN, QUESTIONS

if TYPE_CHECKING:
    from datasette.app import Datasette

NAME = "opstep"  # of this plugin, in Datasette's metadata
HOSTS = {"127.0.0.1", "localhost", "[::1]"}
METHODS = {"GET", "HEAD", "OPTIONS"}
POLICY = (  # pages show what programs are called: nothing they hold is run or loaded
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
)

hook = HookimplMarker("datasette")


def of_workspace(datasette: Datasette) -> bool:
    return datasette.plugin_config(NAME) is not None


@hook
def extra_template_vars(template: str | None, request: Any, datasette: Datasette) -> Any:
    """Values for the parameters of a question, for its form; the questions about one run."""
    if template not in ("query.html", "row.html") or not of_workspace(datasette):
        return {}

    async def variables() -> dict[str, Any]:
        if template == "row.html":
            return {"questions": [*(q for q in QUESTIONS if "run" in q.params), *OF_A_RUN]}
        return {"known": await choices(datasette, request.args.get("run") or "")}

    return variables


async def choices(datasette: Datasette, run: str, most: int = 300) -> dict[str, Any]:
    """Values and meanings for the parameters of questions about a run; the last one if empty."""
    from datasette.database import QueryInterrupted

    chosen = "(select id from runs where :run in ('', key) or id = :run order by id desc limit 1)"
    queries = {
        "run": "select key as value, status || ', ' || graph || ' of ' || file as what from runs "
        "order by id desc",
        "tensor": "select name as value, min(dtype || shape) as what from results "
        f"where run = {chosen} group by name",
        "op_name": "select name as value, count(*) || ' ops' as what from ops "
        f"where run = {chosen} group by name",
        "name": f"select name as value, '' as what from metrics where run = {chosen} and step = 0",
    }
    database, found = datasette.get_database(DATABASE), {}
    for parameter, sql in queries.items():
        with suppress(QueryInterrupted):
            rows = await database.execute(f"{sql} limit {most}", {"run": run})
            found[parameter] = [as_mapping(row) for row in rows]
    return found | {"other": found.get("run", [])}


@hook
def render_cell(row: Any, value: Any, column: str, table: str | None, database: str, datasette):
    if database != DATABASE or not of_workspace(datasette) or isinstance(value, Mapping):
        return None  # a foreign key, which Datasette shows with its label
    return cells.show(column, cells.Cell(value, as_mapping(row), table))


def as_mapping(row: Any) -> dict[str, Any]:
    """A row by column; of a foreign key with a label, the key."""
    return {name: unlabelled(row[name]) for name in row.keys()}  # noqa: SIM118 - no dict


def unlabelled(value: Any) -> Any:
    return value["value"] if isinstance(value, Mapping) else value


@hook
def register_output_renderer(datasette: Datasette) -> Any:
    if not of_workspace(datasette):
        return []
    return {"extension": "svg", "render": render_plot, "can_render": can_plot}


def can_plot(columns: list[str], rows: Any) -> bool:
    return plots.plottable(columns, [as_mapping(row) for row in rows])


def render_plot(columns: list[str], rows: Any) -> Any:
    """An answer as a picture: a panel for each of its figures, by step."""
    from datasette.utils.asgi import BadRequest, Response

    found = [as_mapping(row) for row in rows]
    if not plots.plottable(columns, found):
        raise BadRequest("A plot needs a column `step`, figures, and at most 8 series")
    picture = plots.svg(columns, found).decode()
    return Response(picture, content_type="image/svg+xml; charset=utf-8")


@hook(hookwrapper=True)
def handle_exception(datasette: Datasette, request: Any, exception: Exception) -> Iterator[None]:
    """Datasette would also print a traceback, for an address that is not there too."""
    outcome: Any = yield
    if of_workspace(datasette):
        outcome.force_result([failure(datasette, request, exception)])


async def failure(datasette: Datasette, request: Any, exception: Exception) -> Any:
    """The page, or the JSON, that says what went wrong."""
    from datasette.utils.asgi import Base400, Response
    from datasette.views.base import DatasetteError

    status, title, message = 500, None, str(exception) or type(exception).__name__
    if isinstance(exception, Base400):
        status = exception.status
    elif isinstance(exception, DatasetteError):
        status, title = exception.status, exception.title
        message = Markup(exception.message) if exception.message_is_html else exception.message
    elif isinstance(exception, (sqlite3.Error, OpstepError)):
        title = "SQLite cannot answer"
    else:
        print(f"error: {request.path}: {type(exception).__name__}: {message}", file=sys.stderr)
    body = {"ok": False, "error": str(message), "status": status, "title": title}
    if request.path.endswith(".json"):
        return Response.json(body, status=status)
    page = await datasette.render_template("error.html", {**body, "error": message}, request)
    return Response.html(page, status=status)


@hook
def prepare_connection(conn: Any, database: str, datasette: Datasette) -> None:
    if database == DATABASE and of_workspace(datasette):
        conn.execute("pragma query_only = on")
        add_functions(conn)


@hook
def asgi_wrapper(datasette: Datasette) -> Any:
    if not of_workspace(datasette):
        return lambda app: app
    return guarded


def guarded(app: Any) -> Any:
    """Answers only those who ask for this machine by its own name, and who only read: a page from
    elsewhere whose name resolves to 127.0.0.1 (DNS rebinding) cannot reach the workspace.
    """

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", POLICY.encode())
                message = {**message, "headers": [*message.get("headers", []), policy]}
            await send(message)

        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif scope["type"] != "http" or host_of(scope) not in HOSTS:
            await refuse(send, 403, "This server answers for 127.0.0.1 and localhost only.")
        elif scope["method"] not in METHODS:
            await refuse(send, 405, "This server only reads.")
        else:
            await app(scope, receive, send_with_policy)

    return checked


async def refuse(send: Any, status: int, reason: str) -> None:
    kind = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})


def host_of(scope: Any) -> str:
    """The host that was asked for, without its port; empty where none or several are named."""
    named = [v.decode("latin-1") for k, v in scope.get("headers", []) if k.lower() == b"host"]
    if len(named) != 1:
        return ""
    host, colon, port = named[0].lower().rpartition(":")
    return host if colon and port.isdigit() else named[0].lower()
