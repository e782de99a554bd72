"""What a run is given, in words: ``x=FILE.npy``, ``random``, ``N=32``, a file of params. As arrays.

The command line and the debugger's server take the same words; messages use the command line's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Graph, Module
from opstep.runtime.ir.types import TensorType, dtype_of

GENERATED = ("random", "zeros", "ones")


def names_listed(names: Iterable[str], most: int = 8) -> str:
    """``a, b, c, …``"""
    shown = list(names)
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")


def choose_graph(module: Module, wanted: str | None, path: str) -> Graph:
    """The graph asked for; else the only one, else the one called main."""
    graphs = module.graphs
    if wanted is not None:
        if wanted not in graphs:
            hint = did_you_mean(wanted, graphs) or f"it has {names_listed(graphs)}"
            raise InputError(f"{path}: there is no graph {wanted}", hint=hint)
        return graphs[wanted]
    if not graphs:
        raise InputError(f"{path}: there is no graph in this file")
    if len(graphs) > 1 and "main" not in graphs:
        raise InputError(
            f"{path}: there are {len(graphs)} graphs and none is called main",
            hint=f"choose one with --graph: {names_listed(graphs)}",
        )
    return graphs["main"] if "main" in graphs else next(iter(graphs.values()))


def parse_symbols(given: Sequence[str]) -> dict[str, int]:
    """``N=32`` as {"N": 32}."""
    symbols: dict[str, int] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier() and value.isdecimal()):
            raise InputError(
                f"--symbol {text}: not a symbol and a size", hint="write --symbol N=32"
            )
        if symbols.get(name, int(value)) != int(value):
            raise InputError(f"--symbol {text}: {name} was given the size {symbols[name]} before")
        symbols[name] = int(value)
    return symbols


def check_symbols(graph: Graph, symbols: Mapping[str, int]) -> None:
    """Complains of a size for a symbol that the graph's inputs do not have."""
    dims = [d for b in graph.inputs if b.type for d in b.type.shape if isinstance(d, Expr)]
    known = sorted({s for d in dims for s in d.symbols()})
    for name, given in symbols.items():
        if name not in known:
            its = f"its symbols are {names_listed(known)}" if known else "it has no symbols"
            raise InputError(
                f"--symbol {name}={given}: graph {graph.name.text} has no symbol {name}",
                hint=did_you_mean(name, known) or its,
            )


def gather(
    graph: Graph,
    given: Sequence[str],
    symbols: dict[str, int],
    seed: int,
    at_hand: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """An array for every input of the graph, from files or made here.

    `given` holds ``name=source`` and may hold one bare ``random``, ``zeros`` or ``ones`` for all
    inputs that have no source of their own. Symbols get their sizes from `symbols` and the files.
    `at_hand`: arrays of inputs that need no source, and may have none by name.
    """
    types = {b.name.text: b.type for b in graph.inputs if b.type is not None}
    there = dict(at_hand or {})
    for name in (text.partition("=")[0] for text in given if "=" in text):
        if name in there:
            raise InputError(
                f"input {name} is given by --input and by --data", hint="leave out one of them"
            )
    sources = {n: s for n, s in parse_inputs(given, types).items() if n not in there}
    missing = [name for name in types if name not in sources and name not in there]
    if missing:
        listed = ", ".join(f"{name}: {types[name]}" for name in missing)
        raise InputError(
            f"graph {graph.name.text} has inputs that nothing was given for: {listed}",
            hint=f"--input {missing[0]}=FILE.npy, or --input random for all of them",
        )
    found = there | {n: arrays.load(s) for n, s in sources.items() if not _is_made(s)}
    sizes = symbols | bound_by(types, found, symbols)
    check_sizes({n: types[n] for n, s in sources.items() if _is_made(s)}, sizes)
    for name, source in sources.items():
        if _is_made(source):
            found[name] = made(name, concrete(name, types[name], sizes), source, seed)
    return {name: found[name] for name in types}


def batches(graph: Graph, given: Sequence[str]) -> dict[str, np.ndarray]:
    """``name=file`` of inputs that change: arrays whose first axis is the steps."""
    types = {b.name.text: b.type for b in graph.inputs if b.type is not None}
    found = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not (equals and source) or name not in types or _is_made(source):
            hint = f"write --data NAME=FILE.npy, with NAME of {names_listed(types) or 'no inputs'}"
            raise InputError(f"--data {text}: which input, and from which file?", hint=hint)
        if name in found:
            raise InputError(f"--data {text}: {name} was given before")
        array = arrays.load(source)
        if array.ndim == 0 or not len(array):
            raise InputError(f"--data {text}: it has no axis of steps, or none of them")
        found[name] = array
    return found


def parse_inputs(given: Sequence[str], types: Mapping[str, TensorType]) -> dict[str, str]:
    """``name=source`` as a dict, with the bare source spread over the inputs that have none."""
    sources: dict[str, str] = {}
    rest: str | None = None
    for text in given:
        name, equals, source = text.partition("=")
        if not equals and name in GENERATED:
            if rest is not None:
                raise InputError(f"--input {text}: {rest} was given for all other inputs before")
            rest = name
        elif not (equals and source):
            raise InputError(
                f"--input {text}: which input, and from where?",
                hint="write --input x=FILE.npy, x=FILE.npz:KEY, x=FILE.safetensors:KEY, "
                "x=random, x=zeros, x=ones or x=0.5",
            )
        elif name in sources:
            raise InputError(f"--input {text}: {name} was given before")
        elif name not in types:
            known = f"its inputs are {names_listed(types)}" if types else "it has no inputs"
            hint = did_you_mean(name, types) or known
            raise InputError(f"--input {text}: the graph has no input {name}", hint=hint)
        else:
            sources[name] = source
    if rest is not None:
        sources = {name: sources.get(name, rest) for name in types}
    return sources


def bound_by(
    types: Mapping[str, TensorType], found: Mapping[str, np.ndarray], symbols: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of the symbols that stand alone as a dim of an array that is there."""
    sizes: dict[str, int] = dict(symbols)
    for name, array in found.items():
        if len(types[name].shape) != array.ndim:
            continue  # the run says so, with the line of the input
        for dim, size in zip(types[name].shape, array.shape, strict=True):
            symbol = dim.lone_symbol() if isinstance(dim, Expr) else None
            if symbol is None:
                continue
            if sizes.setdefault(symbol, size) != size:
                raise InputError(
                    f"{symbol} is bound to two sizes: {sizes[symbol]}, and {size} by {name}, "
                    f"which is {types[name]} and was given [{', '.join(map(str, array.shape))}]"
                )
    return sizes


def check_sizes(types: Mapping[str, TensorType], sizes: Mapping[str, int]) -> None:
    """Complains of symbols of these inputs that have no size: of all of them at once."""
    unbound: dict[str, str] = {}  # the first input that has it
    for name, t in types.items():
        for symbol in sorted({s for d in t.shape if isinstance(d, Expr) for s in d.symbols()}):
            if symbol not in sizes:
                unbound.setdefault(symbol, name)
    if unbound:
        listed = ", ".join(f"{name} is {types[name]}" for name in dict.fromkeys(unbound.values()))
        *others, last = unbound
        asked = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        raise InputError(
            f"input {listed}, and nothing says how large {asked}",
            hint=f"add {' '.join(f'--symbol {symbol}=8' for symbol in unbound)}",
        )


def concrete(name: str, t: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """The type with the symbols' sizes put in."""
    shape = tuple(evaluate(d, dict(sizes)) for d in t.shape)
    if any(not isinstance(d, int) or d < 0 for d in shape):
        raise InputError(f"input {name} is {t}: that makes the shape {shape}")
    return TensorType(t.dtype, shape)


def made(name: str, t: TensorType, source: str, seed: int) -> np.ndarray:
    """An array of zeros, ones, one number, or random: normal floats, integers 0 to 9,
    bools true half of the time.

    Each input has its own generator, so that giving one more leaves the others as they were.
    """
    shape: Any = t.shape
    try:
        if source != "random":
            value = {"zeros": 0, "ones": 1}.get(source)
            number = float(source) if value is None else value
            if not t.dtype.is_float and number != int(number):
                raise InputError(f"input {name} is {t} and cannot hold {source}")
            return np.full(shape, number, t.dtype.numpy)
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if t.dtype.is_float:
            return generator.standard_normal(shape, np.float32).astype(t.dtype.numpy)
        return generator.integers(0, 10 if t.dtype.is_integer else 2, shape).astype(t.dtype.numpy)
    except (ValueError, OverflowError):
        raise InputError(f"input {name} is {t}: too large, or cannot hold {source}") from None


def _is_made(source: str) -> bool:
    if source in GENERATED:
        return True
    try:
        float(source)
    except ValueError:
        return False
    return True


def load_params(program: Any, path: str) -> None:
    """Puts the tensors of a safetensors file into the program: every param must be there.

    States may be there. Names and types must be those that the program declares.
    """
    declared = program.module.tensors
    found = arrays.read_safetensors(path)
    for name, array in found.items():
        if name not in declared:
            hint = did_you_mean(name, declared) or f"it declares {names_listed(declared)}"
            raise InputError(f"{path}: holds {name}, which the program does not declare", hint=hint)
        wanted: TensorType = declared[name].type
        shape = ", ".join(map(str, array.shape))
        given = f"{dtype_of(array.dtype).name}[{shape}]"
        if str(wanted) != given and wanted.is_concrete:
            raise InputError(f"{path}: {name} is {given}, and the program declares {wanted}")
    missing = [n for n, d in declared.items() if d.kind == "param" and n not in found]
    if missing:
        raise InputError(
            f"{path}: {len(missing)} of the program's params are not in it: {names_listed(missing)}"
        )
    for name, array in found.items():
        program.params[name] = array
