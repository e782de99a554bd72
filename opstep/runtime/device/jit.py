"""Compiles kernels for the CPU: a Python function over pointers becomes machine code, once, kept on
disk.

Every compiled kernel has one C signature, ``int f(void*, void*, int64* args, int64 lo, int64 hi,
int64 lane)`` (the first two are numba's slots for results and errors; a kernel has neither).
``args`` is a block of 64-bit words, packed by `device.cpu`. numba is imported only when something
has to be compiled: a warm start loads object code through llvmlite alone.
"""

from __future__ import annotations

import dis
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from opstep.runtime.ir.types import DTYPES, DType

# How an argument travels in its word: "*f32" a pointer, "i" an int64, "f" a float in the kernel's
# dtype.
Signature = tuple[str, ...]

_lock = threading.RLock()
_addresses: dict[tuple, int] = {}
_digests: dict[tuple, str] = {}
_engines: list[Any] = []  # llvmlite engines own the code that they loaded


class Compiler:
    """Where object code is kept, and who is told when a kernel has to be compiled."""

    folder: Path | None = None  # None: the user's cache folder; set by the command line
    on_compile: Callable[[str], None] | None = None  # gets the kernel's name before it is compiled
    compiled: int = 0  # kernels compiled by this process

    @classmethod
    def cache_folder(cls) -> Path:
        if cls.folder is None:
            from platformdirs import user_cache_path

            return user_cache_path("opstep") / "kernels"
        return cls.folder


def address(kernel: Callable, signature: Signature, dtype: DType, distinct: bool = False) -> int:
    """The entry point of `kernel` compiled for these argument kinds; float literals become `dtype`.

    `distinct`: no pointer written through reaches what another one reads, other than element i of a
    result that takes over an operand's buffer. Loops then vectorise without a check for overlap,
    which would send every in-place op to the scalar loop.
    """
    key = (kernel, signature, dtype.name, distinct)
    found = _addresses.get(key)
    if found is None:
        with _lock:
            found = _addresses.get(key) or _load(kernel, signature, dtype, distinct)
            _addresses[key] = found
    return found


def _load(kernel, signature: Signature, dtype: DType, distinct: bool) -> int:
    text = f"{_digest(kernel, dtype)} {signature} {dtype.name} {distinct} {_recipe()} {_machine()}"
    path = Compiler.cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.o"
    kept = _read(path)
    if kept is not None and (found := _link(*kept)):
        return found
    if Compiler.on_compile:
        Compiler.on_compile(kernel.__name__)
    kept = _compile(kernel, signature, dtype, distinct)
    Compiler.compiled += 1
    _write(path, *kept)
    return _link(*kept)


# --- the cache ------------------------------------------------------------------------------------


@cache
def _recipe() -> str:
    """A digest of how kernels are compiled: of this file and of those that emit LLVM."""
    here = Path(__file__)
    files = (here, here.with_name("intrinsics.py"), here.with_name("tiles.py"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


@cache
def _machine() -> str:
    from importlib.metadata import version  # slow to import, like tempfile

    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    return f"{version('numba')} {version('llvmlite')} {llvm.get_host_cpu_name()} {features}"


def _read(path: Path) -> tuple[dict, bytes] | None:
    """Header and object code; None where there is no whole file (another process may be writing
    it).
    """
    try:
        head, _, code = path.read_bytes().partition(b"\n")
        header = json.loads(head)
        whole = header["sha256"] == hashlib.sha256(code).hexdigest()
        whole = whole and type(header["symbol"]) is str and type(header["numba"]) is bool
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return (header, code) if whole else None


def _write(path: Path, header: dict, code: bytes) -> None:
    """Atomically, so that processes may share the folder; a folder that cannot be written costs
    only time.
    """
    import tempfile

    header = {**header, "sha256": hashlib.sha256(code).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(header).encode() + b"\n" + code)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    except OSError:
        return


@cache
def _target_machine():
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(jit=True)


def _link(header: dict, code: bytes) -> int:
    """Loads object code; the address of its entry, 0 where it has none of that name."""
    import llvmlite.binding as llvm

    if header["numba"]:
        _numba_symbols()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address(header["symbol"])


@cache
def _numba_symbols() -> None:
    """Makes numba's own helper functions known to LLVM, for code that refers to them."""
    from numba.core.registry import cpu_target

    _ = cpu_target.target_context


# --- what the key covers --------------------------------------------------------------------------


def _referenced(function: FunctionType) -> dict[str, Any]:
    """Globals and closure cells that a function's code names, by name."""
    names = _loaded_globals(function.__code__)
    found = {n: function.__globals__[n] for n in sorted(names) if n in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return found | {name: cell.cell_contents for name, cell in cells}


def _loaded_globals(code: CodeType) -> set[str]:
    """Names of globals only: `co_names` also holds attributes, and `exp` may call `math.exp`."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return names.union(*map(_loaded_globals, inner))


def _digest(function, dtype: DType) -> str:
    """Of the function's code and of all that it reaches."""
    dtype = getattr(function, "pinned", dtype)
    key = (function, dtype.name)
    if key not in _digests:
        _digests[key] = "recursive"
        code = function.__code__
        consts = [c.co_code if isinstance(c, CodeType) else c for c in code.co_consts[:]]
        if function.__doc__ in consts:
            consts.remove(function.__doc__)
        parts = [code.co_code.hex(), repr(consts), repr(code.co_names), repr(_fastmath(function))]
        for name, value in _referenced(function).items():
            if isinstance(value, FunctionType):
                parts.append(f"{name}={_digest(_for_dtype(value, dtype), dtype)}")
            elif not isinstance(value, ModuleType):
                parts.append(f"{name}={_source_of(value)}")
        _digests[key] = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return _digests[key]


def _source_of(value) -> str:
    """What stands for a referenced object in the key: a digest, or a constant's value."""
    return getattr(value, "digest", None) or repr(value)


# --- compiling ------------------------------------------------------------------------------------


def reassociate(kernel):
    """Marks a kernel whose float sums may be reordered, so that LLVM vectorises them (the order is
    fixed).
    """
    kernel.fastmath = frozenset({"reassoc", "contract", "nsz"})
    return kernel


def vectorised(**by_dtype: Callable):
    """Gives a scalar function, which says plainly what it computes, bodies that LLVM can vectorise.

    ``@vectorised(f32=exp32)``: where a kernel of that dtype calls the function, the body given is
    compiled in its place.
    """

    def mark(function):
        function.by_dtype = by_dtype
        return function

    return mark


def _for_dtype(function: FunctionType, dtype: DType) -> FunctionType:
    return getattr(function, "by_dtype", {}).get(dtype.name, function)


def pinned(name: str):
    """Keeps a function's float literals in the dtype of that name, whatever the kernel's is."""

    def mark(function):
        function.pinned = DTYPES[name]
        return function

    return mark


def _fastmath(function) -> list[str]:
    return sorted(getattr(function, "fastmath", {"contract"}))


class Intrinsic:
    """A function that kernels may call and that only exists compiled: `make()` gives numba's
    intrinsic. In cache keys its name stands for it, and `_recipe` for what it does.
    """

    def __init__(self, name: str, make: Callable[[], Any]):
        self.name = name
        self.make = make
        self.digest = name
        self._made: Any = None

    def made(self):
        if self._made is None:
            self._made = self.make()
        return self._made

    def __call__(self, *args) -> Any:
        raise TypeError(f"{self.name} exists only inside a compiled kernel")


_specialised: dict[tuple, Any] = {}


def _literal(value, dtype: DType):
    """A float literal as the kernel's dtype: `0.5` in an f32 kernel must not make the sum f64."""
    if type(value) is not float or dtype.name == "f64":
        return value
    if dtype.is_float:
        return DTYPES["f32"].numpy.type(value)
    return dtype.numpy.type(value) if value == int(value) else value


def _specialise(function: FunctionType, dtype: DType) -> FunctionType:
    """A copy whose float literals are `dtype` and whose callees are compiled numba functions."""

    def compiled(value):
        if isinstance(value, FunctionType):
            return _callee(_for_dtype(value, dtype), dtype)
        return value.made() if isinstance(value, Intrinsic) else value

    code = function.__code__
    code = code.replace(co_consts=tuple(_literal(c, dtype) for c in code.co_consts))
    scope = dict(function.__globals__)
    for name, value in _referenced(function).items():
        scope[name] = compiled(value)
    cells = tuple(CellType(compiled(c.cell_contents)) for c in function.__closure__ or ())
    return FunctionType(code, scope, function.__name__, function.__defaults__, cells)


def _callee(function: FunctionType, dtype: DType, distinct: bool = False):
    import numba

    dtype = getattr(function, "pinned", dtype)
    key = (function, dtype.name, distinct)
    if key not in _specialised:
        fastmath = set(_fastmath(function))
        made: Any = numba.njit(error_model="numpy", fastmath=fastmath)(_specialise(function, dtype))
        if distinct:
            made._compiler._customize_flags = _with_noalias
        elif not _has_loop(function.__code__):
            made._compiler._customize_flags = _with_forced_inlining
        _specialised[key] = made
    return _specialised[key]


def _with_noalias(flags):
    flags.noalias = True
    return flags


def _with_forced_inlining(flags):
    """A call that is left in a loop keeps it from being vectorised."""
    flags.forceinline = True
    return flags


def _has_loop(code: CodeType) -> bool:
    return any(
        "JUMP_BACKWARD" in i.opname or i.opname == "FOR_ITER" for i in dis.get_instructions(code)
    )


def _compile(kernel, signature: Signature, dtype: DType, distinct: bool) -> tuple[dict, bytes]:
    """({symbol, numba}, object code)."""
    from numba.core import compiler, registry, types

    from opstep.runtime.device import intrinsics

    entry = _entry(kernel, signature, dtype, distinct, intrinsics)
    flags: Any = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.nrt = False  # no allocation inside a kernel
    flags.error_model = "numpy"
    flags.fastmath = set(_fastmath(kernel))
    target = registry.cpu_target
    words = types.CPointer(types.int64)
    result = compiler.compile_extra(
        target.typing_context,
        target.target_context,
        entry,
        (words, types.int64, types.int64, types.int64),
        types.none,
        flags,
        {},
    )
    text = result.library.get_llvm_str()
    outside = re.findall(r"^declare .*?@\"?([\w.$]+)", text, re.MULTILINE)
    own = any(name.startswith(("numba_", "NRT_", "numba.")) for name in outside)
    header = {"kernel": kernel.__name__, "symbol": result.fndesc.llvm_func_name, "numba": own}
    return header, result.library._get_compiled_object()


def _entry(kernel, signature: Signature, dtype: DType, distinct: bool, intrinsics) -> FunctionType:
    """``entry(args, lo, hi, lane)``, which unpacks the words and calls the kernel."""
    scope: dict[str, Any] = {"kernel": _callee(kernel, dtype, distinct)}
    passed = []
    for k, kind in enumerate(signature):
        if kind == "i":
            passed.append(f"args[{k}]")
            continue
        scope[f"as{k}"] = (
            intrinsics.pointer_to(kind[1:]) if kind[0] == "*" else intrinsics.float_from_bits(dtype)
        )
        passed.append(f"as{k}(args[{k}])")
    parameters = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    passed += ["lo", "hi"] + ["lane"] * (parameters[-1] == "lane")
    lines = f"def entry(args, lo, hi, lane):\n    kernel({', '.join(passed)})\n"
    exec(compile(lines, f"<entry of {kernel.__name__}>", "exec"), scope)
    return scope["entry"]
