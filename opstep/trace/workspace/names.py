"""Names of runs and tensors of a workspace: ``last``, ``3f2a``, ``conv1.w@3f2a:12``."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from typing import Any, NamedTuple

from opstep.runtime.ir.diagnostics import did_you_mean, visible
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.reading import parsed, readable
from opstep.trace.workspace.records import TensorRecord

_LISTED = 8  # candidates that a message names
_LEAST = 4  # digits that may be the beginning of a key


@readable
def find_run(connection: sqlite3.Connection, reference: int | str) -> int:
    """The id of the run that is meant: by id, key, the beginning of its key (no number of
    under four digits), its name (the last of that name), or ``last``.

    Raises `InputError` where there is none, or several begin like this.
    """
    text = str(reference).strip()
    if text == "last":
        (found,) = connection.execute("select max(id) from runs").fetchone()
        if found is None:
            raise InputError("there is no run in this workspace")
        return found
    for condition, value in (("key = ?", text.lower()), ("id = ?", _integer(text))):
        row = connection.execute(f"select id from runs where {condition}", (value,)).fetchone()
        if row:
            return row[0]
    named = "select max(id) from runs where name = ?"
    if (found := connection.execute(named, (text,)).fetchone()[0]) is not None:
        return found
    runs = connection.execute("select id, key from runs order by id desc").fetchall()
    begin = [(id, key) for id, key in runs if text and key.startswith(text.lower())]
    if text.isdigit() and len(text) < _LEAST:
        begin = []  # a number is an id, also of a run that is gone
    if len(begin) == 1:
        return begin[0][0]
    if begin:
        listed = _some(f"{key} (run {id})" for id, key in begin)
        raise InputError(f"{len(begin)} runs begin with {text}: {listed}", hint="give more of it")
    available = f"there are: {_some(key for _, key in runs)}" if runs else "it has no runs"
    hint = did_you_mean(text, [key for _, key in runs]) or available
    raise InputError(f"there is no run {visible(text)}", hint=hint)


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


class Reference(NamedTuple):
    """``NAME``, ``NAME@RUN`` or ``NAME@RUN:STEP``, taken apart."""

    name: str
    run: str | None = None
    step: int | None = None


def parse_reference(text: str) -> Reference:
    """Raises `InputError` where the text is none of these."""
    name, at, rest = text.partition("@")
    run, colon, step = rest.partition(":")
    if not name or (at and not run) or (colon and not re.fullmatch(r"-?[0-9]{1,18}", step)):
        raise InputError(
            f"{visible(text)!r} does not name a tensor",
            hint="write NAME, NAME@RUN or NAME@RUN:STEP, such as conv1.w@last:0",
        )
    return Reference(name, run if at else None, int(step) if colon else None)


def check_name(name: str) -> None:
    """Complains of a name that a tensor cannot be saved under."""
    if not name or len(name) > 200 or name != name.strip() or not name.isprintable():
        raise InputError(f"{visible(name[:200])!r} is not a name", hint="letters, digits, _ and .")
    if set(name) & set("@="):
        raise InputError(f"{name!r} is not a name: @ and = have a meaning of their own")


# --- tensors --------------------------------------------------------------------------------------

_COLUMNS = (
    "tensors.id, tensors.name, tensors.run, runs.key, tensors.step, tensors.kind, "
    "tensors.checkpoint, tensors.dtype, tensors.shape, tensors.nbytes, tensors.digest, "
    "tensors.saved"
)


@readable
def tensors(
    connection: sqlite3.Connection,
    name: str | None = None,
    run: int | None = None,
    step: int | None = None,
    kind: str | None = None,
) -> list[TensorRecord]:
    """Those that are kept, by name, run and step."""
    filters = {"name": name, "run": run, "step": step, "kind": kind}
    filters = {column: value for column, value in filters.items() if value is not None}
    where = " and ".join(f"tensors.{column} = :{column}" for column in filters) or "1"
    rows = connection.execute(
        f"select {_COLUMNS} from tensors left join runs on runs.id = tensors.run where {where} "
        "order by tensors.name, tensors.run, tensors.step, tensors.id",
        filters,
    )
    return [_tensor(list(row)) for row in rows]


def _tensor(fields: list[Any]) -> TensorRecord:
    fields[8] = tuple(parsed(fields[8]))
    return TensorRecord(*fields)


def find_tensor(connection: sqlite3.Connection, text: str) -> TensorRecord:
    """The one tensor that is meant.

    One that was saved by hand comes before those of runs; of a run its last. Raises `InputError`
    where there is none of that name, or where the last ones of several runs differ.
    """
    reference = parse_reference(text)
    run = None if reference.run is None else find_run(connection, reference.run)
    found = tensors(connection, reference.name, run, reference.step)
    if not found:
        raise _unknown(connection, reference, run)
    by_hand = [t for t in found if t.run is None]
    if by_hand:
        return by_hand[-1]
    last = {t.run: t for t in found}  # they are in the order of their steps
    distinct = {(t.dtype, t.shape, t.digest): t for t in last.values()}
    if len(distinct) == 1:
        return list(last.values())[-1]
    listed = _some(f"{t.reference} ({t.kind}, {t.type})" for t in reversed(last.values()))
    raise InputError(
        f"{reference.name} is ambiguous: {len(last)} runs have one, and they differ: {listed}",
        hint=f"say which: {reference.name}@last",
    )


def _unknown(connection: sqlite3.Connection, reference: Reference, run: int | None) -> InputError:
    """The error for a reference that names nothing."""
    elsewhere = tensors(connection, reference.name)
    if elsewhere and reference.run is not None:
        step = "" if reference.step is None else f" at step {reference.step}"
        listed = _some(f"{t.reference} ({t.type})" for t in elsewhere)
        return InputError(f"run {reference.run} has no {reference.name}{step}; there is {listed}")
    drawn = _drawn(connection, reference.name, run)
    if drawn is not None:
        return InputError(
            f"{reference.name} was not stored: run {drawn} drew it from its seed",
            hint=f"in Python: Workspace(FILE).program({drawn!r}).params[{reference.name!r}]",
        )
    names = all_names(connection, run)
    available = f"there are: {_some(names)}" if names else "it has no tensors"
    hint = did_you_mean(reference.name, names) or available
    return InputError(f"there is no tensor {visible(reference.name)}", hint=hint)


def _drawn(connection: sqlite3.Connection, name: str, run: int | None) -> str | None:
    """Key of the last run that has a param or state of this name."""
    row = connection.execute(
        "select runs.key from results join ops using (run, op) join runs on runs.id = ops.run "
        "where results.name = :name and ops.name in ('param', 'state') "
        "and (:run is null or run = :run) "
        "order by runs.id desc limit 1",
        {"name": name, "run": run},
    ).fetchone()
    return row and row[0]


@readable
def all_names(connection: sqlite3.Connection, run: int | None = None) -> list[str]:
    """Names of tensors, each once."""
    rows = connection.execute(
        "select distinct name from tensors where :run is null or run = :run order by name",
        {"run": run},
    )
    return [name for (name,) in rows]


def _some(texts: Iterable[str]) -> str:
    shown = list(texts)
    more = len(shown) - _LISTED
    return ", ".join(shown[:_LISTED]) + (f", and {more} more" if more > 0 else "")
