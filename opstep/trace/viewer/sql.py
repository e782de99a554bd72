"""Pieces of SQL."""

from __future__ import annotations


def argument(name: str) -> str:
    """A slice's argument, as `trace.arguments` calls it."""
    return f"extract_arg(arg_set_id, 'debug.{name}')"


def quoted(text: str) -> str:
    """A literal."""
    return "'" + text.replace("'", "''") + "'"
