"""Workspaces for tests of the language server, and a client that asks about one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from lsp_client import Client, editor
from workspaces import CHANGED, ROOTS, record, train_inputs, train_program

import opstep

STEPS = 30


class Asking:
    """Asks about one workspace: ``ask("runs", limit=3)``."""

    def __init__(self, client: Client, path: Path):
        self.client = client
        self.path = path

    def __call__(self, request: str, /, **params: Any) -> Any:
        given = {"path": str(self.path), **params}
        return self.client.request(f"opstep/workspace/{request}", given)

    def whole(self, sql: str, query: str = "q") -> dict[str, Any]:
        """An answer with all its rows read (the first of them are in it)."""
        answer = self("query", query=query, sql=sql)
        while not answer["done"]:
            answer = self("rows", query=query, beyond=answer["count"], limit=200)
        return answer


@contextmanager
def asking(path: Path) -> Iterator[Asking]:
    with editor() as client:
        yield Asking(client, path)


def make(path: Path) -> list[str]:
    """Three runs: two that train, with one op that differs, and one that goes bad; their keys."""
    roots = opstep.loads(ROOTS, "roots.opg")
    keys = [record(path, steps=STEPS), record(path, train_program(CHANGED), steps=STEPS)]
    return [*keys, record(path, roots, {"x": np.array([0.5, 2.0, 3.0], np.float32)}, steps=5)]


def grown(path: Path, rows: int) -> None:
    """A workspace whose one run has at least so many rows of `stats`: its steps, over and over, as
    they were written.
    """
    record(path, inputs=train_inputs(), steps=100)
    connection = sqlite3.connect(path, isolation_level=None)
    columns = [name for _, name, *_ in connection.execute("pragma table_info(stats)")]
    each = {"execution": "execution + :more * 1000", "step": "step + :more * 100"}
    chosen = ", ".join(each.get(name, f'"{name}"') for name in columns)
    (once,) = connection.execute("select count(*) from stats where step >= 0").fetchone()
    copies = -(-rows // once)
    connection.execute("begin")
    connection.executemany(
        f"insert into stats select {chosen} from stats where step between 0 and 99",
        ({"more": k} for k in range(1, copies)),
    )
    connection.executemany(
        "insert into steps select run, step + :more * 100, start_ns, end_ns from steps "
        "where step between 0 and 99",
        ({"more": k} for k in range(1, copies)),
    )
    connection.execute("update runs set steps = ?", (copies * 100,))
    connection.execute("commit")
    connection.close()
