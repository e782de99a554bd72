"""Recording the past of a Python script: what it costs beside debugpy alone, which has a breakpoint
in the file.
"""

from __future__ import annotations

from statistics import median

from harness import Measured, bench, times_peer
from recording_python import measured

ROUNDS = 3


def compared(kind: str) -> Measured:
    """By turns, so that what else the machine does meets both."""
    pairs = [(measured(kind, "past"), measured(kind, "debugpy")) for _ in range(ROUNDS)]
    ours, peer = (median(values) for values in zip(*pairs, strict=True))
    return Measured(ours, peer, unit="µs")


@bench("record the past, a loop of short lines", peer="debugpy", bars=[times_peer(3)])
def loop():
    return compared("loop")


@bench("record the past, data preparation", peer="debugpy", bars=[times_peer(2)])
def prepare():
    return compared("prepare")


@bench("record the past, LeNet b64 step", peer="debugpy", bars=[times_peer(2)])
def lenet():
    return compared("lenet")


@bench("record the past, GPT of 6 layers, b4 step", peer="debugpy", bars=[times_peer(2)])
def gpt():
    return compared("gpt")
