"""What a run is given, in words: ``x=FILE.npy``, ``random``, ``N=32``, a file of params. As arrays.

The command line and the debugger's server take the same words.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.errors import InputError, MissingInputs, UnboundSymbols, UnknownName
from opstep.runtime.ir.graph import Graph, Module
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.ir.wording import Argument, Wording

if TYPE_CHECKING:
    from opstep.api.program import Program

GENERATED = ("random", "zeros", "ones")
EXAMPLE = "example"  # the inputs that were saved with the program
SOURCES = "FILE.npy, FILE.npz:KEY, FILE.safetensors:KEY, random, zeros, ones, example or a number"


def choose_graph(module: Module, name: str | None, path: str) -> Graph:
    """The graph asked for; else the only one, else the one called main."""
    graphs = module.graphs
    if name is not None:
        if name not in graphs:
            raise UnknownName(f"{path}: there is no graph {name}", name, graphs, "it has")
        return graphs[name]
    if not graphs:
        raise InputError(f"{path}: there is no graph in this file")
    if len(graphs) > 1 and "main" not in graphs:
        raise InputError(
            f"{path}: there are {len(graphs)} graphs and none is called main",
            hint=Wording("choose one with ", Argument("graph"), f": {names_listed(graphs)}"),
        )
    return graphs["main"] if "main" in graphs else next(iter(graphs.values()))


def parse_symbols(texts: Sequence[str]) -> dict[str, int]:
    """``N=32`` as {"N": 32}."""
    symbols: dict[str, int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        one = Argument("symbols", [text])
        if not (equals and name.isidentifier() and value.isdecimal()):
            hint = Wording("write ", Argument("symbols", {"N": 32}))
            raise InputError(Wording(one, ": not a symbol and a size"), hint=hint)
        if symbols.get(name, int(value)) != int(value):
            raise InputError(Wording(one, f": {name} was given the size {symbols[name]} before"))
        symbols[name] = int(value)
    return symbols


def check_symbols(graph: Graph, symbols: Mapping[str, int]) -> None:
    """Complains of a size for a symbol that the graph's inputs do not have."""
    dims = [d for b in graph.inputs if b.type for d in b.type.shape if isinstance(d, Expr)]
    names = sorted({s for d in dims for s in d.symbols()})
    for name, size in symbols.items():
        if name not in names:
            message_text = f": graph {graph.name.text} has no symbol {name}"
            message = Wording(Argument("symbols", {name: size}), message_text)
            raise UnknownName(message, name, names, "its symbols are")


def gather(
    program: Program,
    graph: Graph,
    words: Sequence[str],
    symbols: dict[str, int],
    seed: int,
    at_hand: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """An array for every input of the graph, from files or made here.

    `words` holds ``name=source`` and may hold one bare ``random``, ``zeros``, ``ones`` or
    ``example`` for all inputs that have no source of their own. Symbols get their sizes from
    `symbols` and the files. `at_hand`: arrays of inputs that need no source, and may have none by
    name.
    """
    types = {b.name.text: b.type for b in graph.inputs if b.type is not None}
    available = dict(at_hand or {})
    sources = {n: s for n, s in parse_inputs(words, types).items() if n not in available}
    missing = [name for name in types if name not in sources and name not in available]
    if missing:
        listed = ", ".join(f"{name}: {types[name]}" for name in missing)
        message = f"graph {graph.name.text} has inputs that nothing was given for: {listed}"
        raise MissingInputs(message, missing, all(name in program.example for name in missing))
    found = available | {n: _read(program, n, s) for n, s in sources.items() if not is_generated(s)}
    sizes = symbols | bound_by(types, found, symbols)
    check_sizes({n: types[n] for n, s in sources.items() if is_generated(s)}, sizes)
    for name, source in sources.items():
        if is_generated(source):
            found[name] = generate(name, concrete(name, types[name], sizes), source, seed)
    return {name: found[name] for name in types}


def _read(program: Program, name: str, source: str) -> np.ndarray:
    """An input from a file, or from what was saved with the program."""
    if source != EXAMPLE:
        return arrays.load(source)
    if name not in program.example:
        path = program.files.example
        where = f": there is no {path}" if path and not path.is_file() else ""
        raise InputError(f"the program has no example of input {name}{where}")
    return np.asarray(program.example[name])


def parse_inputs(words: Sequence[str], types: Mapping[str, TensorType]) -> dict[str, str]:
    """``name=source`` as a dict, with the bare source spread over the inputs that have none."""
    sources: dict[str, str] = {}
    rest: str | None = None
    for text in words:
        name, equals, source = text.partition("=")
        one = Argument("inputs", [text])
        if not equals and name in (*GENERATED, EXAMPLE):
            if rest is not None:
                raise InputError(Wording(one, f": {rest} was given for all other inputs before"))
            rest = name
        elif not (equals and source):
            hint = Wording("write ", Argument("inputs", {"x": "SOURCE"}), f"; SOURCE is {SOURCES}")
            raise InputError(Wording(one, ": which input, and from where?"), hint=hint)
        elif name in sources:
            raise InputError(Wording(one, f": {name} was given before"))
        elif name not in types:
            message = Wording(one, f": the graph has no input {name}")
            raise UnknownName(message, name, types, "its inputs are")
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
        unknown = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        raise UnboundSymbols(f"input {listed}, and nothing says how large {unknown}", unbound)


def concrete(name: str, t: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """The type with the symbols' sizes put in."""
    shape = tuple(evaluate(d, dict(sizes)) for d in t.shape)
    if any(not isinstance(d, int) or d < 0 for d in shape):
        raise InputError(f"input {name} is {t}: that makes the shape {shape}")
    return TensorType(t.dtype, shape)


def generate(name: str, t: TensorType, source: str, seed: int) -> np.ndarray:
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


def is_generated(source: str) -> bool:
    """Whether it is not a file: a word of `GENERATED`, or a number."""
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
            message = f"{path}: holds {name}, which the program does not declare"
            raise UnknownName(message, name, declared, "it declares")
        declared_type: TensorType = declared[name].type
        shape = ", ".join(map(str, array.shape))
        actual = f"{dtype_of(array.dtype).name}[{shape}]"
        if str(declared_type) != actual and declared_type.is_concrete:
            raise InputError(
                f"{path}: {name} is {actual}, and the program declares {declared_type}"
            )
    missing = [n for n, d in declared.items() if d.kind == "param" and n not in found]
    if missing:
        raise InputError(
            f"{path}: {len(missing)} of the program's params are not in it: {names_listed(missing)}"
        )
    for name, array in found.items():
        program.params[name] = array
