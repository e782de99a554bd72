"""The workspace's file as Datasette reads it: never for writing, whatever its path is called."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.trace.workspace.store import open_reading

if TYPE_CHECKING:
    from datasette.app import Datasette
    from datasette.database import Database


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
