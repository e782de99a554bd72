"""What the CUDA compiler makes of a kernel, and what it keeps."""

from __future__ import annotations

import json
import re

import pytest

from opstep.runtime.device.cache import Compiler
from opstep.runtime.device.cuda.compiling.compiler import CUDA, Kernel, code_for, to_ptx
from opstep.runtime.device.cuda.compiling.names import cuda, load4, real, store4
from opstep.runtime.device.source import digest
from opstep.runtime.ir.types import DTYPES, f32


def tenth_of(x):
    return x * 0.1


def third_of(x):
    return x / 3.0


def applied(function):
    def kernel(x, y, n):
        i = cuda.grid(1)
        if i < n:
            y[i] = function(x[i])

    return kernel


lowered = applied(tenth_of)


def quads(x, y, n):
    i = cuda.grid(1)
    if i * 4 < n:
        a, b, c, d = load4(x, i * 4)
        store4(y, i * 4, (a + 1.0, b, c, d))


def through_shared(x, y, n):
    tile = cuda.shared.array(64, real)
    tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    y[cuda.threadIdx.x] = tile[63 - cuda.threadIdx.x]


def by_units(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i] + 1.0


def kernel(function, stored: str = "f32", seen: str = "f32", **more) -> Kernel:
    pointer = f"*{seen}" if stored == seen else f"*{stored}:{seen}"
    return Kernel(function, (pointer, pointer, "i"), DTYPES[seen], **more)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Compiler, "folder", tmp_path)
    return tmp_path


def count(monkeypatch) -> list[str]:
    compiled: list[str] = []
    monkeypatch.setattr(Compiler, "on_compile", compiled.append)
    return compiled


def test_machine_code_is_kept_and_read(folder, monkeypatch):
    compiled = count(monkeypatch)
    first = code_for(kernel(lowered), "sm_90")
    assert first.cubin.startswith(b"\x7fELF")
    assert code_for(kernel(lowered), "sm_90") == first
    assert compiled == ["kernel"]
    assert [p.suffixes[-2:] for p in folder.iterdir()] == [[".sm_90", ".cubin"]]


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "another", "no_header"])
def test_a_damaged_file_is_compiled_anew(folder, monkeypatch, damage):
    first = code_for(kernel(lowered), "sm_90")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    head, _, code = whole.partition(b"\n")
    header = json.dumps({**json.loads(head), "symbol": "somebody_else"}).encode()
    path.write_bytes(
        {
            "cut": whole[:-100],
            "changed": whole[:-100] + bytes(100),
            "emptied": b"",
            "another": header + b"\n" + code,
            "no_header": code,
        }[damage]
    )
    compiled = count(monkeypatch)
    again = code_for(kernel(lowered), "sm_90")  # under a symbol of its own
    assert (again.name, len(again.cubin)) == (first.name, len(first.cubin))
    assert compiled == ["kernel"]
    assert code_for(kernel(lowered), "sm_90") == again
    assert compiled == ["kernel"]


def test_architectures_and_types_have_files_of_their_own(folder):
    for arch in ("sm_80", "sm_90"):
        for stored in ("f32", "bf16"):
            code_for(kernel(lowered, stored), arch)
    assert len(list(folder.iterdir())) == 4


def test_a_key_covers_what_a_kernel_calls_and_closes_over():
    keys = {digest(applied(f), f32, CUDA) for f in (tenth_of, third_of)}
    assert len(keys) == 2
    assert digest(applied(tenth_of), f32, CUDA) == digest(lowered, f32, CUDA)


@pytest.mark.parametrize("stored", ["f16", "bf16"])
def test_halves_are_computed_with_in_f32(stored):
    ptx, _ = to_ptx(kernel(lowered, stored), "sm_90")
    assert re.search(r"mul(\.\w+)*\.f32", ptx)
    assert ".f64" not in ptx
    assert re.search(rf"cvt\.rn(\.\w+)*\.{stored}(x2)?\.f32", ptx)
    assert re.search(r"ld\.global(\.\w+)*\.[ub]16", ptx)


@pytest.mark.parametrize(
    "stored, seen, wide",
    [("f32", "f32", r"v4\.[fb]32"), ("bf16", "f32", r"v2\.[ub]32"), ("f64", "f64", r"v2\.[fb]64")],
)
def test_vectors_are_wide_accesses(stored, seen, wide):
    ptx, _ = to_ptx(kernel(quads, stored, seen), "sm_90")
    assert re.search(rf"ld\.global(\.\w+)*\.{wide}", ptx)
    assert re.search(rf"st\.global(\.\w+)*\.{wide}", ptx)
    assert "__local_depot" not in ptx


@pytest.mark.parametrize("dtype, size", [("f32", 256), ("f64", 512)])
def test_shared_arrays_have_the_type_that_is_computed_in(dtype, size):
    ptx, _ = to_ptx(kernel(through_shared, dtype, dtype), "sm_80")
    assert re.search(rf"\.shared .*\[{size}\]", ptx)


def test_a_kernel_of_the_cpu_runs_a_unit_a_thread():
    pointers = ("*f32", "*f32")
    ptx, _ = to_ptx(Kernel(by_units, pointers, f32, per_unit=True, threads=128), "sm_80")
    assert ".maxntid 128" in ptx
    assert "%tid.x" in ptx and "%nctaid.x" in ptx


def test_registers_are_bounded_where_blocks_are_asked_for():
    ptx, _ = to_ptx(kernel(lowered, threads=256, blocks=4), "sm_90")
    assert ".maxntid 256" in ptx
    assert ".minnctapersm 4" in ptx
