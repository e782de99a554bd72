"""What a run is given, in words: ``x=FILE.npy``, ``random``, ``N=32``, a file of params. As arrays.

The command line and the debugger's server take the same words.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api import drawing
from opstep.api.drawing import Draw, Readers
from opstep.api.inputs import as_array, check_kinds, default_types, given_symbol
from opstep.runtime import arrays
from opstep.runtime.ir.calls import bind_symbols
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.errors import InputError, MissingInputs, UnboundSymbols, UnknownName
from opstep.runtime.ir.graph import Graph, Module
from opstep.runtime.ir.types import DTYPES, DType, TensorType, dtype_of
from opstep.runtime.ir.wording import Argument, Wording

if TYPE_CHECKING:
    from opstep.api.program import Program

GENERATED = ("random", "zeros", "ones")
EXAMPLE = "example"  # the inputs that were saved with the program
FILES = "FILE.npy, FILE.npz:KEY, FILE.safetensors:KEY"
_DIGITS = 32  # of a size
_ASKED = 64 << 20  # bytes; only above this it matters whether there is room for them
_MOST = 1 << 63  # bytes; no machine has an address for them
SOURCES = f"{FILES}, random, LOW..HIGH, zeros, ones, example or a number"


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


def parse_symbols(texts: Sequence[str]) -> dict[str, int | DType]:
    """``N=32`` as {"N": 32}; ``T=f16`` with the element type."""
    symbols: dict[str, int | DType] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        one = Argument("symbols", [text])
        is_size = value.isdecimal() and len(value) <= _DIGITS
        if not (equals and name.isidentifier() and (is_size or value in DTYPES)):
            several = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
            several = several if len(several) > 1 else {name if equals else "N": 32}
            hint = Wording("write ", Argument("symbols", several))
            raise InputError(Wording(one, ": not the name of a dimension and its size"), hint=hint)
        size = int(value) if is_size else DTYPES[value]
        if symbols.setdefault(name, size) != size:
            what = "size" if isinstance(symbols[name], int) else "type"
            raise InputError(Wording(one, f": {name} was given the {what} {symbols[name]} before"))
    return symbols


def check_symbols(graph: Graph, symbols: Mapping[str, int | DType]) -> None:
    """Complains of a size for a symbol that the graph's inputs do not have, and of a type that a
    type variable cannot be.
    """
    dims = [d for b in graph.inputs if b.type for d in b.type.shape if isinstance(d, Expr)]
    variables = {p.name.text for p in graph.type_parameters}
    names = sorted(variables | {s for d in dims for s in d.symbols()})
    for name, size in symbols.items():
        if name not in names:
            kind = "dimension or type" if variables else "dimension"
            problem = f": graph {graph.name.text} has no {kind} {name}"
            message = Wording(given_symbol(name, size), problem)
            raise UnknownName(message, name, names, "its inputs have")
    check_kinds(graph, symbols)


def gather(
    program: Program,
    graph: Graph,
    words: Sequence[str],
    symbols: Mapping[str, int | DType],
    seed: int,
    at_hand: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """An array for every input of the graph, from files or made here.

    `words` holds ``name=source`` and may hold one bare ``random``, ``zeros``, ``ones`` or
    ``example`` for all inputs that have no source of their own. Symbols get their sizes from
    `symbols` and the files, and so do type variables, which are f32 or i32 where nothing says what
    they are. `at_hand`: arrays of inputs that need no source, and may have none by
    name.
    """
    types = {b.name.text: b.type for b in graph.inputs if b.type is not None}
    available = dict(at_hand or {})
    sources = {n: s for n, s in parse_inputs(words, types).items() if n not in available}
    missing = [name for name in types if name not in sources and name not in available]
    if missing:
        listed = ", ".join(f"{name}: {types[name]}" for name in missing)
        message = f"graph {graph.name.text} has inputs that nothing was given for: {listed}"
        saved = all(name in program.example for name in missing)
        sizes = bound_by(types, available, symbols)
        unbound = symbols_of({n: types[n] for n in missing}, sizes)
        raise MissingInputs(message, missing, saved, unbound)
    found = dict(available)
    for binding in graph.inputs:
        name = binding.name.text
        if name in sources and not is_generated(sources[name]):
            expect = partial(_check_type, program, replace(graph, inputs=(binding,)))
            found[name] = _read(program, name, sources[name], expect)
    sizes = default_types(graph) | bound_by(types, found, symbols)
    check_sizes({n: types[n] for n, s in sources.items() if is_generated(s)}, sizes)
    readers: Readers = {}
    for name, source in sources.items():
        if is_generated(source):
            t = concrete(name, types[name], sizes)
            draw = draw_of(program, graph, name, t, source, sizes, readers)
            found[name] = generate(name, t, draw or source, seed)
    return {name: found[name] for name in types}


def _check_type(program: Program, graph: Graph, dtype: DType, shape: tuple[int, ...]) -> None:
    """Complains, before it is read, of an array that the only input of `graph` does not take."""
    (binding,) = graph.inputs
    assert binding.type is not None
    as_array(f"input {binding.name.text}", np.empty(0, dtype.numpy), binding.type.dtype)
    if all(not isinstance(d, Expr) or d.lone_symbol() for d in binding.type.shape):
        bind_symbols(graph, [TensorType(dtype, shape)], program.module.source)


def _read(program: Program, name: str, source: str, expect: arrays.Expect) -> np.ndarray:
    """An input from a file, or from what was saved with the program."""
    if source != EXAMPLE:
        return arrays.load(source, expect=expect)
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
            _check_range(one, source)
            sources[name] = source
    if rest is not None:
        sources = {name: sources.get(name, rest) for name in types}
    return sources


def bound_by(
    types: Mapping[str, TensorType], found: Mapping[str, np.ndarray], symbols: Mapping[str, Any]
) -> dict[str, Any]:
    """Sizes of the symbols that stand alone as a dim of an array that is there, and the types of
    variables that are its element type.
    """
    sizes: dict[str, Any] = dict(symbols)
    for name, array in found.items():
        declared = types[name].dtype
        if declared.is_generic:
            actual = dtype_of(array.dtype)
            if sizes.setdefault(declared.name, actual) is not actual:
                raise InputError(
                    f"{declared.name} is bound to two types: {sizes[declared.name]}, and {actual} "
                    f"by {name}, which is {types[name]}"
                )
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


def check_sizes(types: Mapping[str, TensorType], sizes: Mapping[str, Any]) -> None:
    """Complains of symbols of these inputs that have no size: of all of them at once."""
    unbound = symbols_of(types, sizes)
    if unbound:
        listed = ", ".join(f"{name} is {types[name]}" for name in dict.fromkeys(unbound.values()))
        *others, last = unbound
        unknown = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        raise UnboundSymbols(f"input {listed}, and nothing says how large {unknown}", unbound)


def symbols_of(types: Mapping[str, TensorType], sizes: Mapping[str, Any]) -> dict[str, str]:
    """The symbols of inputs that have no size, each with the first input that has it."""
    unbound: dict[str, str] = {}
    for name, t in types.items():
        for d in t.shape:
            for symbol in sorted(d.symbols() if isinstance(d, Expr) else ()):
                if symbol not in sizes:
                    unbound.setdefault(symbol, name)
    return unbound


def concrete(name: str, t: TensorType, sizes: Mapping[str, Any]) -> TensorType:
    """The type with the symbols' sizes put in, and what type variables are."""
    shape = tuple(evaluate(d, dict(sizes)) for d in t.shape)
    if any(not isinstance(d, int) or d < 0 for d in shape):
        raise InputError(f"input {name} is {t}: that makes the shape {shape}")
    return TensorType(t.dtype.bound(sizes), shape)


def draw_of(
    program: Program, graph: Graph, name: str, t: TensorType, source: str,
    sizes: Mapping[str, Any], readers: Readers,
) -> Draw | None:  # fmt: skip
    """How the elements of an input are drawn; None where none are, or the source is a file."""
    if source == "random":
        return drawing.choice(program.verified, graph.name.text, name, t, sizes, readers).draw
    low_high = range_of(source)
    if low_high is None:
        return None
    low, high = low_high
    if not _holds(t.dtype, low, high):
        raise InputError(f"input {name} is {t} and cannot hold {source}")
    if t.dtype.is_float:
        return drawing.between(low, high)
    return drawing.integers(int(low), int(high))


def _holds(dtype: DType, low: float, high: float) -> bool:
    """Whether a type has both ends of a range, and those of integers are whole."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return bool(np.isfinite([*np.array([low, high]).astype(dtype.numpy), high - low]).all())
    whole = low == int(low) and high == int(high)
    if dtype.kind == "b":
        return whole and low >= 0 and high <= 1
    limits = np.iinfo(str(dtype.numpy))
    return whole and limits.min <= int(low) and int(high) <= limits.max


def range_of(source: str) -> tuple[float, float] | None:
    """``0..100`` as its two ends; None where it is something else."""
    low, dots, high = source.partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        return None
    return ends if dots and -np.inf < ends[0] <= ends[1] < np.inf else None


def _check_range(one: Argument, source: str) -> None:
    """Complains of ``5..1`` and ``1..inf``: there are no files of such names."""
    low, dots, high = source.partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        return
    if dots and range_of(source) is None:
        hint = f"write {high}..{low}" if np.isfinite(ends).all() else "both ends are finite numbers"
        raise InputError(Wording(one, f": {low} to {high} is no range from low to high"), hint=hint)


def described(
    program: Program, graph: Graph, words: Sequence[str], arrays: Mapping[str, np.ndarray],
    given: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """What each input is made of that comes from no file: ``x random: positive numbers (sqrt,
    a.opg:3)``. `arrays`: of all inputs; `given`: those of them that `words` do not make.
    """
    types = {b.name.text: b.type for b in graph.inputs if b.type is not None}
    sizes = default_types(graph) | bound_by(types, arrays, {})
    found, readers = [], {}
    made = {name: t for name, t in types.items() if name not in given}
    for name, source in parse_inputs(words, made).items():
        if source == "random":
            t = concrete(name, types[name], sizes)
            chosen = drawing.choice(program.verified, graph.name.text, name, t, sizes, readers)
            found.append(f"{name} random: {chosen}")
        elif source in GENERATED or range_of(source):
            found.append(f"{name} {source}")
    return found


def generate(name: str, t: TensorType, source: str | Draw, seed: int) -> np.ndarray:
    """An array of zeros, ones, one number, or drawn at random.

    Each input has its own generator, so that giving one more leaves the others as they were.
    """
    shape: Any = t.shape
    nbytes: Any = t.nbytes
    if _ASKED < nbytes < _MOST:
        from opstep.runtime.device.cpu.memory import want_memory

        want_memory(nbytes, lambda: f"input {name}, {t}")
    try:
        if isinstance(source, str):
            value = {"zeros": 0, "ones": 1}.get(source)
            number = float(source) if value is None else value
            if not t.dtype.is_float and number != int(number):
                raise InputError(f"input {name} is {t} and cannot hold {source}")
            return np.full(shape, number, t.dtype.numpy)
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return source.make(generator, shape).astype(t.dtype.numpy)
    except (ValueError, OverflowError):
        what = source if isinstance(source, str) else source.text
        raise InputError(f"input {name} is {t}: too large, or cannot hold {what}") from None


def is_generated(source: str) -> bool:
    """Whether it is not a file: a word of `GENERATED`, a range, or a number."""
    if source in GENERATED or range_of(source) is not None:
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
    declared = program.verified.tensors
    found = program.params.read(path)
    for name, array in found.items():
        if name not in declared:
            message = f"{path}: holds {name}, which the program does not declare"
            raise UnknownName(message, name, declared, "it declares")
        declared_type: TensorType = declared[name].type
        shape = ", ".join(map(str, array.shape))
        actual = f"{dtype_of(array.dtype).name}[{shape}]"
        whole = name in program.params.shards  # which was looked at as it was read
        if str(declared_type) != actual and declared_type.is_concrete and not whole:
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
