"""Compiles CUDA kernels: a Python function over pointers becomes PTX, then machine code for one
architecture, kept on disk.

numba is imported only when something has to be compiled; a warm start reads machine code. Neither
step needs a GPU, so every kernel can be compiled anywhere.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

from opstep.runtime.device import source
from opstep.runtime.device.cache import cached
from opstep.runtime.device.cuda.compiling import names
from opstep.runtime.device.launch import with_rest
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import DType

_lock = threading.RLock()  # numba compiles for one architecture at a time

Signature = tuple[str, ...]
"""How the arguments travel: "*f32" a pointer, "*bf16:f32" one whose elements are stored as bf16 and
seen as f32, "i" an int64, "f" a float in the kernel's dtype."""


class Code(NamedTuple):
    """Machine code of one kernel. `log`: what the assembler said of registers and memory."""

    name: str
    symbol: str
    cubin: bytes
    log: str


class Kernel(NamedTuple):
    """What is compiled: a function, its kinds of arguments, the dtype of its float literals.

    `per_unit`: a kernel of the CPU, which takes a range; a thread gives it one unit at a time.
    `threads`, `blocks`: of a block, and how many a multiprocessor should hold (0: no matter).
    """

    function: Callable
    signature: Signature
    dtype: DType
    per_unit: bool = False
    threads: int = 0
    blocks: int = 0


class _Cuda:
    """The target: NVVM, through numba.cuda."""

    def body(self, function: FunctionType, dtype: DType) -> FunctionType:
        return getattr(function, "by_dtype", {}).get(dtype.name, function)

    def callee(self, function: FunctionType, dtype: DType) -> Any:
        return _callee(function, source.dtype_within(function, dtype))

    def value(self, value: Any, dtype: DType) -> Any:
        if isinstance(value, Intrinsic):
            return _intrinsic(value.name, value.shape)
        if isinstance(value, names.Deferred):
            return value.load()
        if isinstance(value, names.Real):
            return _real(dtype)
        return value


CUDA = _Cuda()


def code_for(kernel: Kernel, arch: str) -> Code:
    """Machine code for an architecture such as "sm_90", from the cache where it is there."""
    digest = source.digest(kernel.function, kernel.dtype, CUDA)  # pyright: ignore[reportArgumentType]
    key = f"{digest} {kernel[1:]} {arch} {_recipe()} {_versions()}"

    def make() -> tuple[dict, bytes]:
        ptx, symbol = to_ptx(kernel, arch)
        cubin, log = _assembled(ptx, arch)
        return {"kernel": kernel.function.__name__, "symbol": symbol, "log": log}, cubin

    def load(header: dict, cubin: bytes) -> Code | None:
        if not (cubin.startswith(b"\x7fELF") and header["symbol"].encode() in cubin):
            return None
        return Code(kernel.function.__name__, header["symbol"], cubin, str(header.get("log", "")))

    return cached(key, f".{arch}.cubin", kernel.function.__name__, make, load)


def to_ptx(kernel: Kernel, arch: str) -> tuple[str, str]:
    """PTX, and the name of the kernel in it."""
    _need_compiler()
    from numba import cuda

    function = entry(kernel, CUDA)
    bounds = (kernel.threads, kernel.blocks) if kernel.blocks else kernel.threads or None
    number = arch.removeprefix("sm_").rstrip("a")
    cc = (int(number[:-1]), int(number[-1]))
    with _compiling_for(cc):
        ptx, _ = cuda.compile(  # pyright: ignore[reportPrivateImportUsage]
            function, _numba_types(kernel), device=False, abi="numba", cc=cc, launch_bounds=bounds
        )
    if "wgmma." in ptx:  # instructions of this architecture alone, which numba has no name for
        ptx = ptx.replace(f".target {arch}", f".target {arch}a", 1)
    symbol = re.search(r"\.visible \.entry (\w+)\(", ptx)
    assert symbol, "PTX of a kernel has an entry"
    return ptx, symbol[1]


@contextmanager
def _compiling_for(cc: tuple[int, int]) -> Iterator[None]:
    """numba asks the driver for which GPU functions that are called are compiled; this tells it,
    so that neither a GPU nor a context of numba's own is needed. Its passes are those of kernels.
    """
    from numba.cuda import compiler as numba_compiler
    from numba.cuda import dispatcher as numba_dispatcher
    from numba.cuda.descriptor import cuda_target

    from opstep.runtime.device import compiling

    dispatcher: Any = numba_dispatcher
    pipeline: Any = numba_compiler.CUDACompiler  # pyright: ignore[reportAttributeAccessIssue]

    def define_pipelines(self: Any) -> list[Any]:
        (manager,) = defined(self)
        manager.passes = compiling.needed(manager.passes)
        return [manager]

    with _lock, compiling.remembering(cuda_target.typing_context):
        asked, defined = dispatcher.get_current_device, pipeline.define_pipelines
        dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
        pipeline.define_pipelines = define_pipelines
        try:
            yield
        finally:
            dispatcher.get_current_device = asked
            pipeline.define_pipelines = defined


def _assembled(ptx: str, arch: str) -> tuple[bytes, str]:
    from cuda.core import Program, ProgramOptions  # pyright: ignore[reportAttributeAccessIssue]

    if f".target {arch}a" in ptx:
        arch += "a"
    options = ProgramOptions(arch=arch, ptxas_options=["-v"])
    program = Program(ptx, code_type="ptx", options=options)
    made = program.compile("cubin")
    return bytes(made.code), ""


@cache
def _need_compiler() -> None:
    """Raises `DeviceError` where the compiler's parts are not there."""
    try:
        import cuda.core  # noqa: F401

        from opstep.runtime.device.cuda.compiling import ufuncs
    except ImportError as error:
        raise DeviceError(
            f"CUDA kernels cannot be compiled here: {error}",
            hint="pip install 'opstep[cuda]'",
        ) from None
    ufuncs.install()


@cache
def _recipe() -> str:
    """A digest of how kernels are compiled."""
    here = Path(__file__).parent
    modules = ("compiler", "elements", "intrinsics", "score_tiles", "tiles", "ufuncs")
    files = [here / f"{n}.py" for n in modules]
    files += [here.parents[1] / f"{n}.py" for n in ("source", "compiling", "shared_intrinsics")]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


@cache
def _versions() -> str:
    from importlib.metadata import version

    return " ".join(version(name) for name in ("numba-cuda", "llvmlite"))


# --- what numba is given --------------------------------------------------------------------------


@cache
def _intrinsic(name: str, shape: tuple[int, ...]) -> Any:
    from opstep.runtime.device.cuda.compiling import intrinsics, score_tiles, tiles

    for module in (intrinsics, tiles, score_tiles):
        if name in vars(module):
            return vars(module)[name](*shape)
    raise NotImplementedError(f"{name} is not for CUDA kernels")


def _real(dtype: DType):
    from numba import types

    return types.float64 if dtype.name == "f64" else types.float32


@cache
def _callee(function: FunctionType, dtype: DType) -> Any:
    from numba import cuda

    return cuda.jit(device=True)(source.specialise(function, dtype, CUDA))


def _numba_types(kernel: Kernel) -> tuple:
    from numba import types

    from opstep.runtime.device.cuda.compiling.elements import pointer_type

    found = []
    for kind in kernel.signature:
        if kind == "i":
            found.append(types.int64)
        elif kind == "f":
            found.append(_real(kernel.dtype))
        else:
            stored, _, seen = kind[1:].partition(":")
            found.append(pointer_type(stored, seen or stored))
    if kernel.per_unit:
        return (*found, types.int64)
    passed = with_rest(kernel.function, tuple(found))
    return tuple(types.Tuple(t) if isinstance(t, tuple) else t for t in passed)


def entry(kernel: Kernel, target: source.Target) -> FunctionType:
    """The function that becomes a kernel of the target."""
    function: Any = kernel.function
    if not kernel.per_unit:
        return source.specialise(function, source.dtype_within(function, kernel.dtype), target)
    return _per_unit(kernel, target)


def _per_unit(kernel: Kernel, target: source.Target) -> FunctionType:
    """Gives each thread its units: ``entry(*args, units)``."""
    function: Any = kernel.function
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    args = [f"a{k}" for k in range(len(kernel.signature))]
    passed = [*args, "unit", "unit + 1"] + ["thread"] * (parameters[-1] == "lane")
    lines = (
        f"def entry({', '.join([*args, 'units'])}):\n"
        "    thread = cuda.grid(1)\n"
        "    for unit in range(thread, units, cuda.gridsize(1)):\n"
        f"        kernel({', '.join(passed)})\n"
    )
    callee = target.callee(function, kernel.dtype)
    scope: dict[str, Any] = {"kernel": callee, "cuda": target.value(names.cuda, kernel.dtype)}
    exec(compile(lines, f"<entry of {function.__name__}>", "exec"), scope)
    scope["entry"].__name__ = function.__name__
    return scope["entry"]
