"""``export``: a table or a view as a file that other programs read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opstep.cli.common import OK, amount, option, say, size
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

if TYPE_CHECKING:
    import numpy as np

    from opstep.trace.workspace.workspace import Workspace

FORMATS = (".csv", ".json", ".npz", ".safetensors", ".parquet")


@verb(
    "export",
    examples=[
        ("opstep ws runs.db export stat_history --run last -o stats.csv", "a run's statistics"),
        ("opstep ws runs.db export metrics -o metrics.json", "a whole table"),
        ("opstep ws runs.db export executions --run 3f2a -o times.npz", "one array per column"),
    ],
)
@click.argument("table", metavar="TABLE")
@option("--run -r RUN", "Only the rows of this run.")
@option(
    "--output -o FILE",
    "A .csv, .json, .npz, .safetensors or .parquet file (parquet: with pandas and pyarrow).",
    required=True,
)
def export(file: str, table: str, run: str | None, output: str) -> int:
    """Write a table, or the rows of a run, to a file.

    TABLE is a table or view of docs/workspace.md. In .npz and .safetensors, each column is an
    array: integers i64, numbers f64 with NaN for null; .safetensors omits text. To write tensors,
    use `load`.
    """
    from opstep.cli.inputs import check_target

    path = check_target(output, f"--output {output}", FORMATS)
    with shown.workspace(file) as ws:
        text, arguments = question(ws, file, table, run)
        with ws.ask(text, arguments, timeout=None) as (columns, rows):
            counted = Counted(rows)
            write(path, columns, counted)
    say(f"wrote {output}: {amount(counted.count, 'row')}, {size(path.stat().st_size)}")
    return OK


def question(ws: Workspace, file: str, table: str, run: str | None) -> tuple[str, tuple]:
    """SQL that gives the rows."""
    from opstep.runtime.ir.diagnostics import did_you_mean
    from opstep.runtime.ir.errors import InputError

    tables = ws.tables
    if table not in tables:
        hint = did_you_mean(table, tables) or f"there are: {', '.join(tables)}"
        raise InputError(f"there is no table {table}", hint=hint)
    if table == "blobs":
        hint = f"opstep ws {file} load NAME -o FILE writes tensors"
        raise InputError("blobs holds bytes of tensors, without their types", hint=hint)
    if run is None:
        return f'select * from "{table}"', ()
    key = "id" if table == "runs" else "run"
    if key not in ws.columns(table):
        raise InputError(f"{table} has no column run", hint="leave --run out")
    return f'select * from "{table}" where {key} = ?', (ws.run(run).id,)


class Counted:
    """Rows, counted on the way."""

    def __init__(self, rows: Iterable[tuple]):
        self.rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[tuple]:
        for row in self.rows:
            self.count += 1
            yield row


def write(path: Path, columns: list[str], rows: Counted) -> None:
    from opstep.runtime import arrays
    from opstep.trace.workspace.row_formats import write_file

    if path.suffix in (".csv", ".json"):
        write_file(path, path.suffix[1:], columns, rows)
    elif path.suffix == ".parquet":
        write_parquet(path, columns, rows)
    else:
        fields = list(zip(*rows, strict=True)) or [()] * len(columns)
        columns_by_name = {c: column(values) for c, values in zip(columns, fields, strict=True)}
        if path.suffix == ".npz":
            arrays.write_npz(path, columns_by_name)
            return
        texts = [c for c, a in columns_by_name.items() if a.dtype.kind == "U"]
        arrays.write_safetensors(path, {c: a for c, a in columns_by_name.items() if c not in texts})
        if texts:
            say(f"left out, being texts: {', '.join(texts)}")


def column(values: tuple) -> np.ndarray:
    """One column as an array: i64, f64 (null is NaN), or text (null is empty)."""
    import numpy as np

    kinds = {type(v) for v in values} - {type(None)}
    if kinds & {str, bytes}:
        texts = ["" if v is None else v.hex() if isinstance(v, bytes) else str(v) for v in values]
        return np.array(texts, np.str_)
    if kinds == {int} and None not in values:
        return np.array(values, np.int64)
    return np.array([np.nan if v is None else v for v in values], np.float64)


def write_parquet(path: Path, columns: list[str], rows: Iterable[tuple]) -> None:
    from opstep.runtime import arrays
    from opstep.runtime.ir.errors import InputError

    try:
        import pandas
        import pyarrow  # noqa: F401 # pyright: ignore[reportMissingImports]
    except ImportError as error:
        hint = "pip install pandas pyarrow; .csv, .json and .npz need neither"
        raise InputError(f"parquet needs {error.name}, which is not there", hint=hint) from None
    frame = pandas.DataFrame.from_records(list(rows), columns=columns)
    arrays.replace_file(path, lambda file: frame.to_parquet(file))
