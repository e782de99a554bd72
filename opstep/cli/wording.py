"""Arguments as switches: ``--symbol N=8``."""

from __future__ import annotations

from collections.abc import Mapping

from opstep.runtime.ir.wording import Argument

CALLED = {"symbols": "symbol", "inputs": "input", "patience": "timeout"}


def in_switches(argument: Argument) -> str:
    """As it is given to a command; several values are as many switches."""
    name, value = argument
    switch = f"--{CALLED.get(name, name).replace('_', '-')}"
    if value in (None, True, ""):
        return switch
    if name == "params":
        return f"{switch} FILE.safetensors"
    if isinstance(value, Mapping):
        value = [f"{k}={v}" for k, v in value.items()]
    return " ".join(f"{switch} {v}" for v in (value if isinstance(value, list) else [value]))
