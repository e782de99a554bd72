"""The Python door to a workspace.

    with opstep.Workspace("runs.db") as ws:
        ws["conv1.w"]                                  # a tensor, by name
        run = ws.run("last")
        run.stats(op="relu", step=0)[0].statistics.absmax
        ws.sql("select name, count(*) from ops group by name").rows

A workspace is opened for reading, also while runs write to it; `save` and `prune` open it for
writing for as long as they take.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import checkpoints, figures, names, query
from opstep.trace.workspace.blobs import digest, read_array, save_tensor, storable, typed
from opstep.trace.workspace.checkpoints import TrainingCheckpoint
from opstep.trace.workspace.compare import Comparison, compare
from opstep.trace.workspace.departures import Reasons, departures
from opstep.trace.workspace.figures import Line, Query
from opstep.trace.workspace.prune import Pruned, prune, run_bytes
from opstep.trace.workspace.query import Answer
from opstep.trace.workspace.reading import about_file
from opstep.trace.workspace.records import TensorRecord
from opstep.trace.workspace.rerun import Repeated, program_of, rerun
from opstep.trace.workspace.runs import RecordedRun, read_run, read_runs
from opstep.trace.workspace.store import (
    file_bytes,
    open_reading,
    open_writing,
    remove_empty_log,
    writing,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas

    from opstep.api.program import Program


class Workspace:
    """The runs and the named tensors of one file.

    As a container it holds tensors by name: ``ws["w"]``, ``ws["w"] = array``, ``"w" in ws``,
    iteration. Raises `FileProblem`, an `InputError`, where the file is absent, no workspace,
    damaged, or newer than this version of opstep.

    A file of an older version is brought up to date first, or complained of (`update=False`).
    `patience`: seconds to wait where the file is locked, if not 30.
    """

    def __init__(self, path: str | Path, *, update: bool = True, patience: float | None = None):
        self.path = Path(path)
        self._connection = open_reading(self.path, update=update, patience=patience)

    @staticmethod
    def create(path: str | Path) -> None:
        """Makes a workspace where there is none; one that is there stays as it is."""
        open_writing(Path(path)).close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing can be read any more."""
        self._connection.close()
        remove_empty_log(self.path)

    def __repr__(self) -> str:
        return f"<Workspace {self.path}>"

    @property
    def nbytes(self) -> int:
        """Of the file, and of what runs have written beside it that is not in it yet."""
        return file_bytes(self.path)

    # --- runs ---

    @property
    def runs(self) -> list[RecordedRun]:
        """All runs, the first first."""
        return read_runs(self._connection)

    def run(self, reference: int | str = "last") -> RecordedRun:
        """One run: by id, key or the beginning of its key, or ``last``. Raises `InputError`."""
        return read_run(self._connection, names.find_run(self._connection, reference))

    # --- tensors ---

    def names(self) -> list[str]:
        """Names of all tensors that are kept."""
        return names.all_names(self._connection)

    def tensors(self, name: str | None = None, kind: str | None = None) -> list[TensorRecord]:
        """Records of the tensors, without their elements."""
        return names.tensors(self._connection, name, kind=kind)

    def tensor(self, reference: str) -> TensorRecord:
        """The one that ``NAME``, ``NAME@RUN`` or ``NAME@RUN:STEP`` means.

        One saved by hand comes first; of a run, the last is meant. Raises `InputError` where no
        tensor has that name, or several runs have different ones.
        """
        return names.find_tensor(self._connection, reference)

    def load(self, reference: str) -> np.ndarray:
        """The elements of `tensor`, as an array of its own."""
        return self.elements(self.tensor(reference))

    def elements(self, tensor: TensorRecord) -> np.ndarray:
        """Those of a record of `tensors`."""
        with about_file(self._connection):
            return read_array(self._connection, tensor)

    def is_same(self, tensor: TensorRecord, array: np.ndarray) -> bool:
        """Whether an array has the type and the bits of a tensor that is kept."""
        return tensor.type == typed(array) and tensor.digest == digest(array)

    def save(self, name: str, value: Any) -> TensorRecord:
        """Keeps an array (or what NumPy makes one of) under this name.

        It takes the place of one that was saved under this name before; tensors of runs stay.
        Raises `InputError` where the name or the type of the elements does not fit.
        """
        names.check_name(name)
        array = storable(name, value)
        with self._writing() as connection:
            save_tensor(connection, name, array)
        return names.tensors(self._connection, name, kind="saved")[-1]

    def __getitem__(self, reference: str) -> np.ndarray:
        return self.load(reference)

    def __setitem__(self, name: str, value: Any) -> None:
        self.save(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    # --- checkpoints of training ---

    def checkpoints(self, run: int | str | None = None) -> list[TrainingCheckpoint]:
        """Those of a run, or of all runs, without their tensors."""
        id = None if run is None else names.find_run(self._connection, run)
        return checkpoints.read_checkpoints(self._connection, id)

    def checkpoint(self, reference: str) -> TrainingCheckpoint:
        """The one that ``RUN``, ``RUN@STEP``, ``RUN@best`` or ``RUN@first`` means. Raises
        `InputError`.
        """
        return checkpoints.find_checkpoint(self._connection, reference)

    def best_before(self, run: int, made: int) -> TrainingCheckpoint | None:
        """The best by validation of a run and what it went on from, in its first `made` steps."""
        return checkpoints.best_before(self._connection, run, made)

    def checkpoint_values(self, checkpoint: TrainingCheckpoint) -> Mapping[str, np.ndarray]:
        """Its params and states by name."""
        return checkpoints.checkpoint_values(self._connection, checkpoint)

    # --- tables ---

    @property
    def tables(self) -> list[str]:
        """Tables and views."""
        return query.tables_of(self._connection)

    def columns(self, table: str) -> list[str]:
        """Of a table or a view."""
        return query.columns_of(self._connection, table)

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        *,
        timeout: float | None = query.LIMIT_S,
    ) -> Answer:
        """The answer to one SQL statement, which can only read. `docs/workspace.md` has the tables.

        Raises `InputError`: with the place where the text is wrong, where it would write, and after
        `timeout` seconds.
        """
        with self.ask(text, parameters, timeout=timeout) as (columns, rows):
            return Answer(columns, list(rows))

    @contextmanager
    def ask(
        self,
        text: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        *,
        write: bool = False,
        timeout: float | None = query.LIMIT_S,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[tuple[list[str], Iterator[tuple]]]:
        """`sql`, row by row: the names of the columns and an iterator. `write`: it may change the
        file. `stop` is asked now and then whether to end.
        """
        with self._writing() if write else nullcontext(self._connection) as connection:
            limits: dict[str, Any] = {"write": write, "seconds": timeout, "stop": stop}
            with query.ask(connection, text, parameters, **limits) as answer:
                yield answer

    def frame(
        self,
        table: str,
        where: str = "",
        parameters: Sequence[Any] | Mapping[str, Any] = (),
    ) -> pandas.DataFrame:
        """A table or a view as a pandas frame; `where` is an SQL condition on its columns:
        ``ws.frame("stats", "run = ? and nan > 0", [1])``.
        """
        try:
            import pandas
        except ImportError:
            raise InputError("pandas is not there", hint="pip install pandas") from None
        if table not in self.tables:
            hint = did_you_mean(table, self.tables) or f"there are: {', '.join(self.tables)}"
            raise InputError(f"there is no table {table}", hint=hint)
        condition = f" where {where}" if where else ""
        found = self.sql(f"select * from {table}{condition}", parameters, timeout=None)
        return pandas.DataFrame.from_records(found.rows, columns=found.columns)

    def lines(self, wanted: str | Query) -> list[Line]:
        """Figures by step, a line a tensor: ``stats.absmax where op=relu``; see `figures`."""
        wanted = figures.parse(wanted) if isinstance(wanted, str) else wanted
        return figures.read(self._connection, wanted)

    # --- runs beside each other ---

    def compare(
        self, first: int | str | RecordedRun, second: int | str | RecordedRun, rtol: float = 0.0
    ) -> Comparison:
        """Compares two runs: the first op whose statistics differ by more than `rtol`."""
        return compare(self._connection, self._run(first), self._run(second), rtol)

    def why(self, run: int | str | RecordedRun = "last") -> Reasons:
        """Tensors and metrics of a run that left their usual range, in the order of time."""
        return departures(self._connection, self._run(run))

    def program(self, run: int | str | RecordedRun = "last") -> Program:
        """The program of a run, with its tensors as they were before the first step."""
        return program_of(self, self._run(run))

    def rerun(self, run: int | str | RecordedRun, **options: Any) -> Repeated:
        """Repeats a run from this file alone and compares what comes out, to the bit.

        `recording`: where the repeat is recorded; `on_step` is called after each step. `step`:
        where it begins, one whose inputs, params and states were kept (`Recording.keep_inputs`).
        `fallback`: as for `opstep.load`.
        """
        return rerun(self, self._run(run), **options)

    def _run(self, run: int | str | RecordedRun) -> RecordedRun:
        return run if isinstance(run, RecordedRun) else self.run(run)

    # --- less of it ---

    def run_bytes(self) -> dict[int, int]:
        """Bytes of each run in the file, about, by id."""
        return run_bytes(self._connection)

    def prune(
        self, runs: Sequence[int | str | RecordedRun], *, checkpoints: int | None = None,
        compact: bool = True,
    ) -> Pruned:  # fmt: skip
        """Removes runs with all that belongs to them, and bytes that nobody else refers to.

        `checkpoints`: of other runs that have ended, the first, the best and so many of the last
        stay. `compact`: the file gives the room back to the disk. Raises `InputError` where a run
        is not there or still under way, or where another process is writing for long.
        """
        chosen = [self._run(r) for r in runs]
        for run in chosen:
            if run.under_way:
                raise InputError(
                    f"run {run.key} is under way, in process {run.pid} on {run.host}",
                    hint="end it first; what it writes later would belong to no run",
                )
        ids = [run.id for run in chosen]
        thinned = [run.id for run in self.runs if run.id not in ids and not run.under_way]
        with self._writing() as connection:
            return prune(connection, self.path, ids, compact, checkpoints, thinned)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with writing(self.path) as connection, about_file(connection):
            yield connection
