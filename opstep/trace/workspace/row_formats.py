"""Rows of an answer as text: CSV, JSON, and tables of Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from opstep.runtime import arrays


def write_csv(columns: list[str], rows: Iterator[tuple], out: TextIO) -> None:
    """As RFC 4180, with bare line feeds; null is an empty field, bytes are hexadecimal."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([v.hex() if isinstance(v, bytes) else v for v in row])


def write_json(columns: list[str], rows: Iterator[tuple], out: TextIO) -> None:
    """A list of objects, one a line, written as they are found."""
    separator = "[\n"
    for row in rows:
        fields = {c: _json(v) for c, v in zip(columns, row, strict=True)}
        out.write(f"{separator}  {json.dumps(fields, ensure_ascii=False)}")
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def write_markdown(columns: list[str], rows: Iterator[tuple], out: TextIO) -> None:
    """A table as GitHub has it: numbers stand at the right, where the first row has them."""
    first = next(rows, None)
    numbers = [isinstance(v, (int, float)) for v in first or ("",) * len(columns)]
    out.write(f"| {' | '.join(map(_cell, columns))} |\n")
    out.write(f"|{'|'.join('---:' if right else '---' for right in numbers)}|\n")
    if first is not None:
        out.write(f"| {' | '.join(map(_cell, first))} |\n")
    for row in rows:
        out.write(f"| {' | '.join(map(_cell, row))} |\n")


WRITERS: dict[str, Callable[[list[str], Iterator[tuple], TextIO], None]] = {
    "csv": write_csv,
    "json": write_json,
    "markdown": write_markdown,
}


def write_file(target: Path, kind: str, columns: list[str], rows: Iterable[tuple]) -> int:
    """Writes a file of that format, which is there whole or not at all; how many rows it has."""
    count = 0

    def counted() -> Iterator[tuple]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    def write(file: Any) -> None:
        out = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        WRITERS[kind](columns, counted(), out)
        out.detach()

    arrays.replace_file(target, write)
    return count


def _json(value: Any) -> Any:
    """A field as JSON has it: bytes in hexadecimal, infinities as strings."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
