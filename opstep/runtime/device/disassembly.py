"""The contents of compiled kernels: machine code, PTX and LLVM's IR as texts; registers and shared
memory.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.device.cpu import jit

if TYPE_CHECKING:
    from opstep.runtime.device.cuda.compiling.compiler import Kernel

PATIENCE_S = 60.0  # for NVIDIA's disassembler


class Section(NamedTuple):
    """One text of a kernel. `obstacle`: why there is none, if there is none."""

    title: str
    lines: list[str]
    obstacle: str = ""


class Resources(NamedTuple):
    """The resources that a block of a kernel takes; None where the machine code does not say."""

    registers: int | None
    shared: int | None


# --- the CPU --------------------------------------------------------------------------------------


def compiled_at(entry: int) -> tuple[Any, jit.Signature, Any, bool] | None:
    """The source of an entry point: the kernel, its signature, its dtype, `distinct`."""
    from opstep.runtime.ir.types import DTYPES

    for (kernel, signature, dtype, distinct), address in list(jit._addresses.items()):
        if address == entry:
            found = next(t for t in _each(DTYPES) if t.name == dtype)
            return kernel, signature, found, distinct
    return None


def _each(table: Any) -> Any:
    return table.values() if isinstance(table, dict) else table


def cpu_sections(entry: int) -> list[Section]:
    """Native assembly and LLVM's IR of the kernel that is entered there; compiles it anew."""
    found = compiled_at(entry)
    if found is None:
        return []
    with jit._lock:
        made = jit.compiled(*found)
    return [
        Section("native assembly", made.assembly().splitlines()),
        Section("LLVM IR", made.llvm().splitlines()),
    ]


# --- CUDA -----------------------------------------------------------------------------------------


def cuda_sections(kernel: Kernel, arch: str) -> list[Section]:
    """SASS, where NVIDIA's tools are there to write it, and PTX."""
    from opstep.runtime.device.cuda.compiling.compiler import code_for, to_ptx
    from opstep.runtime.device.cuda.compiling.target import targeting
    from opstep.runtime.ir.errors import DeviceError

    with targeting(arch):
        try:
            ptx, _ = to_ptx(kernel, arch)
        except DeviceError as error:
            return [Section("PTX", [], error.diagnostics[0].message)]
        sass = _sass(code_for(kernel, arch).cubin)
    return [sass, Section(f"PTX for {arch}", ptx.splitlines())]


def cuda_resources(kernel: Kernel, arch: str) -> Resources:
    """Registers of a thread and shared memory of a block. Raises `DeviceError`."""
    from opstep.runtime.device.cuda.compiling.compiler import code_for
    from opstep.runtime.device.cuda.compiling.target import targeting

    with targeting(arch):
        code = code_for(kernel, arch)
    return resources(code.cubin, code.symbol)


def resources(cubin: bytes, symbol: str) -> Resources:
    """From the machine code itself, an ELF file: `.nv.info` has the registers of each kernel (older
    files: the highest byte of the text section's `sh_info`), `.nv.shared.*` its shared memory. The
    same that `cuobjdump --dump-resource-usage` writes.
    """
    try:
        sections = {s.name: s for s in _elf_sections(cubin)}
        text = sections.get(f".text.{symbol}")
        if text is None:
            return Resources(None, None)
        shared = sections.get(f".nv.shared.{symbol}")
        registers = _registers(cubin, sections, symbol) or text.info >> 24
    except (struct.error, IndexError, ValueError, KeyError):
        return Resources(None, None)
    return Resources(registers or None, shared.size if shared else 0)


class _ElfSection(NamedTuple):
    name: str
    start: int
    size: int
    link: int
    info: int


def _elf_sections(data: bytes) -> list[_ElfSection]:
    """Of a 64-bit ELF file."""
    (at,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, at + k * size) for k in range(count)]
    table = headers[names][4]
    return [_ElfSection(_word(data, table + h[0]), h[4], h[5], h[6], h[7]) for h in headers]


def _word(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("ascii", "replace")


REGISTERS_OF = 0x2F  # `.nv.info`: EIATTR_REGCOUNT, a symbol's number and its registers
LONG = 0x04  # an entry that has its payload behind it


def _registers(data: bytes, sections: dict[str, _ElfSection], symbol: str) -> int:
    """From `.nv.info`; 0 where it does not say."""
    info, symbols = sections[".nv.info"], sections[".symtab"]
    texts = sections[".strtab"].start
    at = info.start
    while at < info.start + info.size:
        form, what, size = struct.unpack_from("<BBH", data, at)
        if form == LONG and what == REGISTERS_OF:
            number, registers = struct.unpack_from("<II", data, at + 4)
            (name,) = struct.unpack_from("<I", data, symbols.start + 24 * number)
            if _word(data, texts + name) == symbol:
                return registers
        at += 4 + (size if form == LONG else 0)
    return 0


def _sass(cubin: bytes) -> Section:
    for tool, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])):
        path = shutil.which(tool) or _in_toolkit(tool)
        if path is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "kernel.cubin"
            file.write_bytes(cubin)
            try:
                done = subprocess.run(
                    [path, *options, str(file)],
                    capture_output=True, text=True, timeout=PATIENCE_S, check=True,
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                return Section("SASS", [], f"{tool} failed: {str(error)[:200]}")
        return Section("SASS", done.stdout.splitlines())
    return Section("SASS", [], "neither nvdisasm nor cuobjdump of the CUDA toolkit is here")


def _in_toolkit(tool: str) -> str | None:
    path = Path("/usr/local/cuda/bin") / tool
    return str(path) if path.is_file() else None
