"""Compiles kernels for the CPU: a Python function over pointers becomes machine code, once, kept on
disk.

Every compiled kernel has one C signature, ``int f(void*, void*, int64* args, int64 lo, int64 hi,
int64 lane)`` (the first two are numba's slots for results and errors; a kernel has neither).
``args`` is a block of 64-bit words, packed by `device.cpu.device`. numba is imported only when
something has to be compiled: a warm start loads object code through llvmlite alone.

A kernel gives the same bits on every processor, because the compiler is free to change none: floats
are multiplied, added and ordered as the source says. No `contract` (a loop's vector body would fuse
what its remainder does not; `fma` says where to) and no `reassoc` (the width of the machine's
vectors would decide the order of sums; `fixed_sum` and its like have one of their own).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from opstep.runtime.device import source
from opstep.runtime.device.cache import cached, is_kept
from opstep.runtime.device.cpu import processor
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import DType

# How an argument travels in its word: "*f32" a pointer, "i" an int64, "f" a float in the kernel's
# dtype.
Signature = tuple[str, ...]

_lock = threading.RLock()
_addresses: dict[tuple, int] = {}
_engines: list[Any] = []  # llvmlite engines own the code that they loaded
_specialised: dict[tuple, Any] = {}


def address(kernel: Callable, signature: Signature, dtype: DType, distinct: bool = False) -> int:
    """The entry point of `kernel` compiled for these argument kinds; float literals become `dtype`.

    `distinct`: no pointer written through reaches what another one reads, other than element i of a
    result that takes over an operand's buffer. Loops then vectorise without a check for overlap,
    which would send every in-place op to the scalar loop.
    """
    return Kernel(kernel, signature, dtype, distinct).address()


class Kernel(NamedTuple):
    """What `address` takes, compiled when its address is asked for."""

    function: Callable
    signature: Signature
    dtype: DType
    distinct: bool = False

    def address(self) -> int:
        """See the function of that name."""
        key = self._key()
        found = _addresses.get(key)
        if found is None:
            with _lock:
                found = _addresses.get(key) or self._load()
                _addresses[key] = found
        return found

    def is_compiled(self) -> bool:
        """Whether no compiler is needed: it was loaded, or is kept on disk."""
        return self._key() in _addresses or is_kept(self._recipe(), ".o")

    def _key(self) -> tuple:
        return self.function, self.signature, self.dtype.name, self.distinct

    def _recipe(self) -> str:
        digest = source.digest(self.function, self.dtype, CPU)
        dtype, distinct = self.dtype.name, self.distinct
        return f"{digest} {self.signature} {dtype} {distinct} {_recipe()} {_machine()}"

    def _load(self) -> int:
        make = partial(_compile, *self)
        return cached(self._recipe(), ".o", self.function.__name__, make, _link)


class _Cpu:
    """The target: LLVM, through numba."""

    def body(self, function: FunctionType, dtype: DType) -> FunctionType:
        bodies = getattr(function, "by_dtype", {}) | getattr(function, "vectorised", {})
        return bodies.get(dtype.name, function)

    def callee(self, function: FunctionType, dtype: DType) -> Any:
        return _callee(function, dtype)

    def value(self, value: Any, dtype: DType) -> Any:
        return _intrinsic(value.name, value.shape) if isinstance(value, Intrinsic) else value


CPU = _Cpu()


# Modules that hold intrinsics. They are imported by name, where something is compiled.
_EMITTERS = (*("tiles", "windows", "winograd", "runs", "vectors", "terms", "packed", "intrinsics"),)


@cache
def _intrinsic(name: str, shape: tuple[int, ...]) -> Any:
    modules = (import_module(f"{__package__}.{emitter}") for emitter in _EMITTERS)
    return next(getattr(m, name) for m in modules if hasattr(m, name))(*shape)


@cache
def _recipe() -> str:
    """A digest of how kernels are compiled: of this file and of those that emit LLVM, or decide how
    they do it.
    """
    here = Path(__file__).parent
    files = [here / f"{n}.py" for n in ("jit", "emitting", "processor", *_EMITTERS)]
    files += [here.parent / f"{n}.py" for n in ("source", "compiling", "shared_intrinsics")]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


@cache
def _machine() -> str:
    from importlib.metadata import version  # slow to import, like tempfile

    return f"{version('numba')} {version('llvmlite')} {processor.this()}"


@cache
def _target_machine():
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(jit=True)


def _link(header: dict, code: bytes) -> int:
    """Loads object code; the address of its entry, 0 where it has none of that name."""
    import llvmlite.binding as llvm

    if type(header.get("numba")) is not bool:
        return 0
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


# --- compiling ------------------------------------------------------------------------------------


def _callee(function: FunctionType, dtype: DType, distinct: bool = False):
    import numba

    from opstep.runtime.device.cpu.emitting import Compiler, CompilerOfSwaps

    dtype = source.dtype_within(function, dtype)
    swaps = hasattr(function, "swaps")
    distinct = (distinct or hasattr(function, "distinct")) and not swaps
    key = (function, dtype.name, distinct)
    if key not in _specialised:
        pipeline = CompilerOfSwaps if swaps else Compiler
        dispatcher: Any = numba.njit(error_model="numpy", pipeline_class=pipeline)(
            source.specialise(function, dtype, CPU)
        )
        inline = not distinct and not source.has_loop(function.__code__)
        dispatcher._compiler._customize_flags = partial(_of_callee, noalias=distinct, inline=inline)
        _specialised[key] = dispatcher
    return _specialised[key]


def _of_callee(flags: Any, noalias: bool, inline: bool) -> Any:
    """`inline`: a call that is left in a loop keeps it from being vectorised."""
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True  # only kernels call it
    if noalias:
        flags.noalias = True
    if inline:
        flags.forceinline = True
    return flags


def _compile(kernel, signature: Signature, dtype: DType, distinct: bool) -> tuple[dict, bytes]:
    """({kernel, symbol, numba}, object code)."""
    made = compiled(kernel, signature, dtype, distinct)
    own = any(name.startswith(("numba_", "NRT_", "numba.")) for name in made.outside())
    header = {"kernel": kernel.__name__, "symbol": made.symbol, "numba": own}
    return header, made.object_code()


def compiled(kernel, signature: Signature, dtype: DType, distinct: bool) -> Any:
    """The `emitting.Entry` of `kernel`."""
    from numba.core import config as numba_config

    from opstep.runtime.device.cpu import emitting

    config: Any = numba_config
    config.CPU_NAME, config.CPU_FEATURES = processor.this()
    parameters = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    rest = 3 if parameters[-1] == "lane" else 2
    return emitting.Entry(_callee(kernel, dtype, distinct), signature, dtype, rest)
