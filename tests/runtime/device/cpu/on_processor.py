"""Runs the ops' test graphs with kernels compiled for a processor, and prints what came out.

    python on_processor.py CACHE NAME FEATURES DTYPES OP...

NAME and FEATURES are LLVM's, and +bytes-in-turn: words hold four bytes, as on a processor that adds
their products by one instruction, but are multiplied plainly. DTYPES "f32,f64" are those of the
graphs. Without OPs it is all of them. The output is JSON: for each graph and dtype a digest of the
results, in which any NaN is the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from llvmlite import ir

TESTS = Path(__file__).parents[3]
sys.path[:0] = [str(TESTS / "shared"), str(TESTS / "kernels")]

from cases import cases, inputs, program  # noqa: E402

import opstep.kernels  # noqa: E402, F401 - registers the ops
from opstep.runtime.device.cache import Compiler  # noqa: E402
from opstep.runtime.device.cpu import device, packed, processor  # noqa: E402
from opstep.runtime.ir.op import OPS, complete  # noqa: E402

IN_TURN = ",+bytes-in-turn"
SIZES = (1, 2, 3, 5, 8, 13, 31, 64, 67, 127, 513, 1030)  # of rows: about vectors, chains and blocks


def digest(arrays) -> str:
    found = hashlib.sha256()
    for array in arrays:
        plain = np.array(array)
        if plain.dtype.kind in "fV" or plain.dtype.name == "bfloat16":
            plain[np.isnan(plain)] = np.nan
        found.update(plain.tobytes())
    return found.hexdigest()[:16]


def graphs(wanted, dtypes) -> dict[str, str]:
    found = {}
    for case in cases():
        if case.file not in wanted:
            continue
        for dtype in set(case.dtypes) & set(dtypes):
            made = program(case.id, dtype)
            result = made.run(case.graph.name.text, inputs(case, dtype), threads=1)
            found[f"{case.id}-{dtype}"] = digest(result.outputs)
    return found


def rows(wanted, dtypes) -> dict[str, str]:
    """What is made of rows, at sizes where vectors end."""
    found = {}
    for op, attrs in ROWS:
        if op not in wanted:
            continue
        rng = np.random.default_rng(7)
        for size in SIZES:
            for dtype in {"f32", "f64"} & set(dtypes):
                x = (rng.standard_normal((3, size)) * 3).astype(
                    dtype.replace("f32", "f4").replace("f64", "f8")
                )
                operands = [x] * (2 if op in PAIRS else 1)
                results = device.execute(OPS[op], operands, complete(OPS[op], attrs), lanes=1)
                found[f"{op} of {size} {dtype}"] = digest(results)
    return found


def large(wanted, dtypes) -> dict[str, str]:
    """What takes other kernels than small operands do."""
    found = {}
    if "conv2d" in wanted and "f32" in dtypes:
        rng = np.random.default_rng(7)
        for size in (24, 29):
            x = rng.standard_normal((2, 64, size, size), np.float32)
            w = rng.standard_normal((72, 64, 3, 3), np.float32)
            attrs = complete(OPS["conv2d"], {"padding": (1, 1)})
            y = device.execute(OPS["conv2d"], [x, w, None], attrs, lanes=1)
            found[f"conv2d of 64 channels of {size}"] = digest(y)
    if "f32" in dtypes:
        found |= large_bytes(wanted)
    return found


def large_bytes(wanted) -> dict[str, str]:
    """Of both types, with zero points, and of numbers that fill neither words nor tiles."""
    found = {}
    rng = np.random.default_rng(7)
    for kinds in ("BB", "Bb", "bB", "bb"):

        def made(of: str, *shape: int) -> np.ndarray:
            return rng.integers(0, 256, shape).astype(np.uint8).view(of)

        a, b = kinds
        if "conv2d_integer" in wanted:
            for size in (1, 3):
                x, w = made(a, 2, 67, 15, 15), made(b, 43, 67, size, size)
                given = [x, w, rng.integers(-9, 9, 43, np.int32), made(a)[()], made(b, 43)]
                attrs = complete(OPS["conv2d_integer"], {"padding": (size // 2, size // 2)})
                y = device.execute(OPS["conv2d_integer"], given, attrs, lanes=1)
                found[f"conv2d_integer of {kinds}, {size}"] = digest(y)
        if "matmul_integer" in wanted:
            given = [made(a, 70, 303), made(b, 303, 91), made(a)[()], made(b, 91)]
            y = device.execute(
                OPS["matmul_integer"], given, complete(OPS["matmul_integer"], {}), lanes=1
            )
            found[f"matmul_integer of {kinds}"] = digest(y)
    return found


class InTurn(processor.Processor):
    multiplies_bytes = True


def in_turn(self, a, b, c):
    """`Packed.multiply_add` of four bytes, without the instruction."""
    signed, unsigned = (a, b) if self.kind == packed.SIGNED_LEFT else (b, a)
    places = [ir.Constant(self.type, [8 * k] * self.length) for k in range(4)]
    for up in reversed(places):
        s, u = (self.builder.shl(word, up) for word in (signed, unsigned))
        s, u = self.builder.ashr(s, places[3]), self.builder.lshr(u, places[3])
        c = self.builder.add(c, self.builder.mul(s, u))
    return c


PAIRS = ("add", "mse_loss", "softmax_grad", "matmul")
ROWS: list[tuple[str, dict]] = [
    *((op, {}) for op in ("exp", "log1p", "tanh", "erf", "sin", "cos", "gelu", "sigmoid")),
    *((op, {"axes": (1,)}) for op in ("sum", "mean", "prod", "var", "logsumexp", "norm", "max")),
    *((op, {"axis": 1}) for op in ("softmax", "log_softmax", "cumsum", "softmax_grad")),
    ("mse_loss", {}),
    ("matmul", {"transpose_b": True}),
    ("matmul", {"transpose_a": True}),
]


def digests(dtypes: str, *wanted: str) -> dict[str, str]:
    """Of all graphs with these dtypes, or of those of the ops that are named."""
    chosen = wanted or {case.file for case in cases()}
    kinds = dtypes.split(",")
    return graphs(chosen, kinds) | rows(chosen, kinds) | large(chosen, kinds)


if __name__ == "__main__":
    folder, name, features, dtypes, *wanted = sys.argv[1:]
    Compiler.folder = Path(folder)
    chosen = processor.Processor(name, features)
    if IN_TURN in features:
        chosen = InTurn(name, features.replace(IN_TURN, ""))
        packed.Packed.multiply_add = in_turn
    processor.this = lambda: chosen
    print(json.dumps(digests(dtypes, *wanted)))
