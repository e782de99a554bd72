"""A workspace in the browser: Datasette on loopback.

    serve("runs.db")            # until Ctrl-C
    application("runs.db")      # the same as an ASGI application, for tests and other servers

The file is only read, also while runs write to it.
"""

from __future__ import annotations

import importlib.util
import socket
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from opstep.runtime.ir.errors import InputError
from opstep.trace.loopback import HOST, listening, open_browser
from opstep.trace.workspace.store import open_reading

if TYPE_CHECKING:
    from datasette.app import Datasette

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
    from opstep.trace.workspace.pages.cells import DATABASE
    from opstep.trace.workspace.pages.file import workspace_file
    from opstep.trace.workspace.pages.metadata import metadata

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
