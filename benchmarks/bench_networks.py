"""The three networks, forward, beside PyTorch eager on all cores with the same weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from bench_runtime import EXAMPLES, bound
from harness import Timed, bench, times_peer

import opstep

sys.path.append(str(Path(__file__).parent.parent / "tests"))

INPUTS = {"lenet": ("lenet", (1, 8, 8)), "alexnet": ("main", (1, 224, 224))}
INPUTS["unet"] = ("main", (1, 64, 64))


@bench(
    "{} forward",
    peer="PyTorch eager",
    bars=[times_peer(2.0)],
    over=[f"{name} batch {batch}" for name in INPUTS for batch in (1, 32)],
)
def forward(which: str):
    import peers
    import torch

    name, _, batch = which.split()
    graph, shape = INPUTS[name]
    program = opstep.load(EXAMPLES / f"{name}.opg")
    x = np.random.default_rng(0).standard_normal((int(batch), *shape), np.float32)
    weights = {k: torch.from_numpy(v.copy()) for k, v in program.params.items()}
    network, given = getattr(peers, name), torch.from_numpy(x)

    @torch.inference_mode()
    def peer():
        return network(given, weights)

    ours = bound(program, graph, {"x": x})
    theirs = peer().numpy()
    outputs = program.run(graph, {"x": x}).outputs[0]
    difference = np.abs(outputs - theirs).max() / np.abs(theirs).max()
    if difference > 1e-5:
        raise ValueError(f"results differ by {difference:.1e} of the largest")
    return Timed(ours, peer, unit="ms", rounds=9, least_s=0.05, settle_s=0.2)
