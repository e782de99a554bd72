"""A workspace in the browser: Datasette on loopback.

    serve("runs.db")            # until Ctrl-C
    application("runs.db")      # the same as an ASGI application, for tests and other servers

The file is only read, also while runs write to it, whatever its path is called.
"""

from __future__ import annotations

import importlib.util
import socket
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from opstep.runtime.ir.errors import InputError
from opstep.trace.loopback import HOST, listening, open_browser
from opstep.trace.workspace.pages.cells import DATABASE, coded, link
from opstep.trace.workspace.pages.questions import OF_A_RUN, QUESTIONS, RUNS, Question
from opstep.trace.workspace.schema import TABLES
from opstep.trace.workspace.store import open_reading
from opstep.trace.workspace.views import VIEWS

if TYPE_CHECKING:
    from datasette.app import Datasette
    from datasette.database import Database

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
        Markup("<li>{}: {}</li>").format(link(q.title, q.address[:-1]), coded(q.what))
        for q in (RUNS, *QUESTIONS, *OF_A_RUN)
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


def workspace_file(datasette: Datasette, path: Path) -> Database:
    """The file as one of Datasette's databases."""
    from datasette.database import Database

    class WorkspaceFile(Database):
        def connect(self, write: bool = False) -> sqlite3.Connection:
            if write:
                raise PermissionError("a workspace is only read here")
            connection = open_reading(path)
            self._all_file_connections.append(connection)
            return connection

        async def execute(self, *args: Any, **options: Any) -> Any:
            return await super().execute(*args, **{**options, "log_sql_errors": False})

    return WorkspaceFile(datasette, path=str(path), is_mutable=True)


PORT = 8001  # tried first where none is asked for
PAGES = Path(__file__).parent / "pages"

SETTINGS = {
    "sql_time_limit_ms": 5000,
    "facet_time_limit_ms": 1000,
    "suggest_facets": False,  # a guess for each column is slow on millions of rows
    "default_page_size": 100,
    "max_returned_rows": 5000,
    "max_csv_mb": 0,  # CSV is streamed, however long it is
    "truncate_cells_html": 300,
    "default_cache_ttl": 0,  # runs may be writing
    "num_sql_threads": 4,
    "allow_download": False,  # what stands in the log of the file (WAL) would not be in it
}


def serve(path: str | Path, port: int = 0, browser: bool = True) -> None:
    """Serves a workspace on 127.0.0.1 and opens it in a browser; returns after Ctrl-C.

    `port` 0 is 8001, or a free one where that is taken. Raises `InputError` where the file
    cannot be used, the port is taken, or the extra `viewer` is not installed.
    """
    datasette = application(path)
    with listening(port, PORT) as listener, suppress(KeyboardInterrupt):
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        print(f"{path} is at {address} (Ctrl-C ends)", flush=True)
        if browser and not open_browser(address):
            print("no browser was found: open the address in one", flush=True)
        run_server(datasette, listener)


def application(path: str | Path) -> Datasette:
    """Datasette for one workspace, which it only reads. Raises `InputError` as `serve` does."""
    open_reading(Path(path)).close()  # says what is wrong with the file
    if importlib.util.find_spec("datasette") is None:
        raise InputError(
            "the browser's view of a workspace needs Datasette",
            hint="pip install 'opstep[viewer]'",
        )
    from datasette.app import Datasette
    from datasette.plugins import pm

    from opstep.trace.workspace.pages import plugin

    sqlite3.enable_callback_tracebacks(False)  # Datasette has them on; a page says what is wrong
    if not pm.is_registered(plugin):
        pm.register(plugin, plugin.NAME)
    about = metadata(Path(path).name)
    about |= {"plugins": {plugin.NAME: {}}, "extra_css_urls": ["/opstep/opstep.css"]}
    datasette = Datasette(
        metadata=about,
        settings=SETTINGS,
        template_dir=str(PAGES / "templates"),
        static_mounts=[("opstep", str(PAGES / "static"))],
    )
    datasette.remove_database("_memory")
    datasette.add_database(workspace_file(datasette, Path(path)), name=DATABASE)
    return datasette


def run_server(datasette: Datasette, listener: socket.socket) -> None:
    """Answers until Ctrl-C, which comes out as KeyboardInterrupt."""
    import uvicorn

    config = uvicorn.Config(
        datasette.app(),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])
