"""The same bits on every processor: kernels compiled for others, as far as this one can run them,
give what they give here.

Each other processor needs a process of its own: kernels are compiled once a process. Some ops stand
for all, those whose kernels are made of vectors or that add, and two processors for the others;
``pytest tests/runtime/device/cpu/test_processors.py --every-op`` compiles all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys

import on_processor
import pytest

from opstep.runtime.device.cpu import processor

OPS = {
    "f32": ("conv2d", "conv2d_integer", "layer_norm", "matmul", "matmul_integer", "softmax", "sum"),
    "f64": ("conv2d", "matmul"),  # whose tiles are of fewer elements than some loops step by
}
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool")

_V2 = "sse2 sse3 ssse3 sse4.1 sse4.2 popcnt cx16"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
PROCESSORS = {
    "avx2": ("x86-64-v3", _V3, "-avx512f"),
    "avx512, vectors of 512 bits": ("x86-64-v4", _V4, "-prefer-256-bit"),
    "avx512, vectors of 256 bits": ("x86-64-v4", _V4, "+prefer-256-bit"),
    "without fma": ("x86-64-v2", _V2, "-avx"),
    "products of bytes in 256 bits": ("x86-64-v4", f"{_V3} avx512vl avx512vnni", "-avx10.1"),
    "without instructions that we name": ("x86-64", "", "-avx"),
}
ALWAYS = {"f32": 2, "f64": 1}  # of them


def ops(config, dtype: str) -> tuple[str, ...]:
    """None are all."""
    return () if every_op(config) else OPS[dtype]


def elsewhere(
    folder: str, name: str, features: str, dtype: str, wanted: tuple[str, ...]
) -> dict[str, str]:
    command = [sys.executable, on_processor.__file__, folder, name, features, dtype, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compare(here: dict[str, str], there: dict[str, str]) -> None:
    assert len(there) == len(here) > 0
    assert {k for k in here if here[k] != there[k]} == set()


def pytest_generate_tests(metafunc):
    """Of those that this processor can stand in for, all or the first two."""
    if "which" in metafunc.fixturenames:
        able = [w for w, (_, needs, _) in PROCESSORS.items() if can(needs)]
        every = every_op(metafunc.config)
        cases = [
            (dtype, which)
            for dtype in (DTYPES if every else OPS)
            for which in (able if every else able[: ALWAYS[dtype]])
        ]
        metafunc.parametrize("dtype, which", cases, scope="module")


def can(features: str) -> bool:
    return all(processor.this().has(f) for f in features.split())


def every_op(config) -> bool:
    return config.getoption("--every-op", default=False)


@pytest.fixture(scope="module")
def here(request, dtype) -> dict[str, str]:
    return on_processor.digests(dtype, *ops(request.config, dtype))


@pytest.mark.slow
def test_same_bits(which, dtype, here, request, tmp_path):
    name, features, setting = PROCESSORS[which]
    flags = ",".join([*(f"+{f}" for f in features.split()), setting])
    there = elsewhere(str(tmp_path), name, flags, dtype, ops(request.config, dtype))
    compare(here, there)


@pytest.mark.slow
def test_words_of_four_bytes(tmp_path):
    """As a processor takes them that has an instruction for their products, whether this one has it
    or not; one without takes two bytes a word.
    """
    this, wanted = processor.this(), ("conv2d_integer", "matmul_integer")
    flags = this.features + on_processor.IN_TURN
    there = elsewhere(str(tmp_path), this.name, flags, "f32", wanted)
    compare(on_processor.digests("f32", *wanted), there)
