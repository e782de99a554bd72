"""Models of torchvision and transformers against eager PyTorch, in f32 at two sizes; every sixth in
bf16 too. Some stand for those that are made as they are; ``--every-op`` takes each, in both.
"""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch")
import torch
import zoo

import opstep

pytestmark = pytest.mark.skipif(not zoo.AVAILABLE, reason="needs opstep[models]")
SIZED = ("Only", "Named")  # wrappers that take *args
KINDRED = {  # stands for
    "resnet50": ("resnet18",), "mobilenet_v3_small": ("mobilenet_v2",), "swin_v2_t": ("swin_t",),
    "vit": ("vit_b_32",), "bert": ("roberta", "distilbert"), "gpt2": ("opt",),
    "llama": ("mistral", "qwen2"), "gpt_neox": ("phi",),
}  # fmt: skip


def imported(case: zoo.Case, model, args, dynamic: bool) -> opstep.Program:
    shapes = None
    if dynamic:
        dims = tuple(zoo.dynamic(case))
        shapes = (dims,) if type(model).__name__ in SIZED else dims
    return opstep.from_torch(model, args, dynamic_shapes=shapes)


def results(program: opstep.Program, args) -> list:
    names = [b.name.text for b in program.graphs["main"].inputs]
    return program.run("main", dict(zip(names, args, strict=True))).outputs


def test_a_model_computes_as_eager_does(name):
    case = zoo.CASES[name]
    model, args = zoo.model_of(case)
    program = imported(case, model, args, dynamic=True)
    for given in (args, zoo.resized(case, args)):
        ours, theirs = results(program, given), zoo.outputs_of(model, given)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert zoo.distance(a, b) <= case.tolerance


def pytest_generate_tests(metafunc):
    every = metafunc.config.getoption("--every-op")
    if "name" in metafunc.fixturenames:
        left = set() if every else {n for names in KINDRED.values() for n in names}
        metafunc.parametrize("name", [n for n in zoo.CASES if n not in left])
    if "low" in metafunc.fixturenames:
        names = [n for n, case in zoo.CASES.items() if case.low]
        metafunc.parametrize("low", names[:: 1 if every else 6])


@pytest.mark.slow
def test_in_bf16_it_is_as_near_to_f64_as_pytorch(low):
    case = zoo.CASES[low]
    model, args = zoo.model_of(case, torch.bfloat16)
    program = imported(case, model, args, dynamic=False)
    exact = zoo.outputs_of(copy.deepcopy(model).double(), zoo.cast(args, torch.float64))
    eager = zoo.outputs_of(model, args)
    for ours, theirs, wanted in zip(results(program, args), eager, exact, strict=True):
        assert zoo.distance(ours, wanted) <= 2 * zoo.distance(theirs.float(), wanted)
