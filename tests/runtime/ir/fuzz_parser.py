"""Feeds the language broken texts: mutated programs and plain noise.

    python tests/runtime/ir/fuzz_parser.py --count 1000000 --seed 1

Nothing but OpstepError may come out, no input may take a second, and what parses must print, read
back the same, and go through the verifier. The first input that breaks this is kept in a file.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from small_ops import SMALL_OPS  # noqa: E402

import opstep.kernels  # noqa: E402, F401 - registers the ops
from opstep.runtime.ir.diagnostics import OpstepError, render_all  # noqa: E402
from opstep.runtime.ir.op import OPS  # noqa: E402
from opstep.runtime.ir.parser import parse, parse_with_diagnostics  # noqa: E402
from opstep.runtime.ir.printer import print_module  # noqa: E402
from opstep.runtime.ir.verify import verify_with_diagnostics  # noqa: E402

ALL_OPS = {**OPS, **SMALL_OPS}
SLOWEST = 1.0  # seconds of the processor that an input may take
HANGS = 20  # seconds after which one is stopped
LONGEST = 3_000  # characters of a usual input

WORDS = """
    param state graph return assert at true false none inf nan f32 bool i64 bf16 N M x y w.b a.0.b
    in "f":1, "g":2 `w` `0.w` `` `
    relu add while cond test body then else shape dtype axis 0 1 -1 3.5 1e3 1e999 3x .5 1. 1.2.3
    9223372036854775808 99999999999999999999999999 "" "text" "a\\n" "\\q" "\\ud800" "open ' `
    < > <T> <T: float> T T[N] T: any
    ( ) [ ] { } , : = + - * / // % -> <- # ## . ; @ ! & | ^ ~ ? \\ $ é λ 变量
"""
BLANKS = [" ", "  ", "\n", "\t", "\r", "\r\n", "\x0b", "\u00a0", "\u2028"]
ODD = ["\0", "\x1b", "\x7f", "\ud800", "\ufeff", "\U0001f600"]
TOKENS = WORDS.split() + BLANKS + ODD
LARGE = [
    "(",
    "[",
    "{",
    "f(",
    "graph g() {\n",
    "- ",
    "a,",
    "#\n",
    "y = f(x)\n",
    "N*",
    "(N//",
    '"',
    "\\",
]


class Hang(Exception):
    """An input takes too long."""


def corpus() -> list[str]:
    """Programs to mutate, cut into pieces of a usual size."""
    files = sorted(Path(__file__).parent.glob("errors/[!s]*.opg"))
    files += sorted(ROOT.glob("examples/**/*.opg"))
    files += sorted(ROOT.glob("opstep/**/*.opg"))
    pieces = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        parts = text.split("\n}\n")
        for k in range(0, len(parts), 3):
            pieces.append("\n}\n".join(parts[k : k + 3])[:LONGEST])
    return pieces


def mutate(rng: random.Random, text: str, other: str) -> str:
    """One change: of a character, a token, a line or a stretch."""
    a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    how = rng.randrange(10)
    if how == 0:
        return text[:a] + text[min(a + 1, len(text)) :]
    if how == 1:
        return text[:a] + rng.choice(TOKENS) + text[a:]
    if how == 2:
        return text[:a] + rng.choice(TOKENS) + text[min(a + rng.randrange(8), len(text)) :]
    if how == 3:
        return text[:a] + text[a : a + rng.randrange(40)] + text[a:]
    if how == 4:
        return text[:a] + text[min(b, a + 60) :]
    if how == 5:
        c = rng.randrange(len(other) + 1)
        return text[:a] + other[c : c + rng.randrange(80)] + text[a:]
    if how == 6:
        return text[:a]
    if how == 7:
        character = chr(rng.randrange(rng.choice((128, 0x3000, 0x110000))))
        return text[:a] + character + text[a:]
    lines = text.split("\n")
    k, m = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[k], lines[m] = lines[m], lines[k]
    if how == 9:
        del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def make(rng: random.Random, pieces: list[str], number: int) -> str:
    """The input of a number."""
    kind = rng.randrange(20)
    if kind == 0:
        return "".join(
            rng.choice(TOKENS) + " " * rng.randrange(2) for _ in range(rng.randrange(60))
        )
    if kind == 1:
        return "".join(chr(rng.randrange(0x250)) for _ in range(rng.randrange(120)))
    if kind == 2 and number % 100 == 0:  # seldom: large, and all the same
        unit = rng.choice(TOKENS + LARGE)
        start = rng.choice(["", "graph g() {\n  y = f(", "param w: f32["])
        return start + unit * rng.randrange(20_000)
    text = rng.choice(pieces)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 8))):
        text = mutate(rng, text, rng.choice(pieces))
    return text


def check(text: str, thorough: bool) -> str:
    """Feeds one text; says what became of it."""
    module, diagnostics = parse_with_diagnostics(text)
    if thorough:
        render_all(diagnostics, color=True)
    if diagnostics:
        return "syntax errors"
    printed = print_module(module)
    if parse(printed) != module:
        raise AssertionError("it reads back as something else")
    _, errors = verify_with_diagnostics(module, ALL_OPS)
    if thorough:
        render_all(errors)
    return "other errors" if errors else "right"


def run(
    count: int, seed: int, seconds: float = float("inf"), say=lambda text: None
) -> dict[str, int]:
    """Feeds `count` inputs, or as many as fit the time; returns how many of each kind."""
    pieces = corpus()
    totals = {"syntax errors": 0, "other errors": 0, "right": 0}
    began = time.monotonic()
    slowest = 0.0
    signal.signal(signal.SIGPROF, _stop)
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        text = make(rng, pieces, number)
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, HANGS)
        try:
            totals[check(text, thorough=number % 16 == 0)] += 1
        except OpstepError as error:  # parse() of what was printed, or the verifier
            raise _kept(text, seed, number, f"a valid program was refused: {error}") from error
        except Exception as error:
            raise _kept(text, seed, number, f"{type(error).__name__}: {error}") from error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        took = time.process_time() - start
        slowest = max(slowest, took)
        if took > SLOWEST:
            raise _kept(text, seed, number, f"it took {took:.1f} s")
        if number % 10_000 == 9_999:
            rate = (number + 1) / (time.monotonic() - began)
            say(f"{number + 1:,} inputs, {rate:,.0f}/s, slowest {slowest * 1e3:.0f} ms, {totals}")
        if time.monotonic() - began > seconds:
            break
    return totals


def _stop(signum, frame):
    raise Hang(f"it takes more than {HANGS} s")


def _kept(text: str, seed: int, number: int, why: str) -> AssertionError:
    path = Path(f"fuzz-{seed}-{number}.opg")
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return AssertionError(f"input {number} of seed {seed}, kept as {path}: {why}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    began = time.monotonic()
    totals = run(arguments.count, arguments.seed, arguments.seconds, print)
    took = time.monotonic() - began
    print(f"{sum(totals.values()):,} inputs in {took:,.0f} s, none broke it: {totals}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
