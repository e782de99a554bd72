"""The three networks, forward, beside PyTorch eager on all cores with the same weights."""

from __future__ import annotations

import sys
from pathlib import Path

import known_networks
import numpy as np
from bench_runtime import EXAMPLES, bound
from harness import Timed, bench, times_peer

import opstep

sys.path.append(str(Path(__file__).parent.parent / "tests" / "shared"))

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


KNOWN = {
    "ResNet-50 batch 1": lambda: known_networks.resnet50(1),
    "BERT-base, 128 tokens": lambda: known_networks.bert_base(128),
    "GPT-2 small, 128 tokens": lambda: known_networks.gpt2_small(128),
}


@bench(
    "{} forward, one thread", peer="PyTorch eager, one thread", bars=[times_peer(1.0)], over=KNOWN
)
def known(which: str):
    import torch

    text, x, network = KNOWN[which]()
    program = opstep.loads(text)
    weights = {k: torch.from_numpy(v.copy()) for k, v in program.params.items()}
    given = torch.from_numpy(x)

    @torch.inference_mode()
    def peer():
        return network(torch, given, weights)

    def alone():  # PyTorch's number of threads is the process's
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return peer()
        finally:
            torch.set_num_threads(before)

    theirs = alone().numpy()
    outputs = program.run("main", {"x": x}, threads=1).outputs[0]
    difference = np.abs(outputs - theirs).max() / np.abs(theirs).max()
    if difference > 1e-4:
        raise ValueError(f"results differ by {difference:.1e} of the largest")
    ours = bound(program, "main", {"x": x}, threads=1)
    return Timed(ours, alone, unit="ms", rounds=9, least_s=0.05, settle_s=0.2)
