"""Which values of an exported file are which of the PyTorch model's.

Exporters keep names: PyTorch's new one those of its graph, the modules and lines in the metadata of
nodes; the old one the modules in names (``/layer1/conv/Conv_output_0``). Values are paired where
these agree: by names, as results of modules, and in the order of ops of like names in a module.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opstep.frontends.onnx.origins import SCOPES, STACK, fx_of, lines_of, module_path
from opstep.frontends.onnx.restoring import metadata_of

if TYPE_CHECKING:
    from onnx import NodeProto

MOST = 25_000_000  # pairs of a module that are looked at
EXACT, LIKE, LAST = 8, 4, 2  # what names, ops and parts of ops count
_DIMS = re.compile(r"[123]d$")
# What an op of PyTorch ends with in ONNX, where that is called otherwise.
ENDS = {
    "addmm": "gemm add", "linear": "gemm add matmul", "mm": "matmul gemm", "bmm": "matmul",
    "baddbmm": "add", "convolution": "conv convtranspose add", "convtranspose": "convtranspose",
    "view": "reshape flatten", "flatten": "reshape", "unflatten": "reshape",
    "permute": "transpose", "t": "transpose", "select": "gather", "embedding": "gather",
    "cat": "concat", "stack": "concat", "pad": "pad", "constantpadnd": "pad",
    "adaptiveavgpool": "globalaveragepool averagepool reducemean", "avgpool": "averagepool",
    "adaptivemaxpool": "globalmaxpool maxpool", "clamp": "clip", "hardtanh": "clip",
    "relu6": "clip", "silu": "mul", "gelu": "mul", "rsqrt": "reciprocal div",
    "layernorm": "add mul", "groupnorm": "add mul", "instancenorm": "add mul",
    "rmsnorm": "mul", "scaleddotproductattention": "matmul", "clone": "dropout identity",
    "contiguous": "identity", "masked_fill": "where", "upsamplenearest": "resize",
    "upsamplebilinear": "resize", "interpolate": "resize", "std": "sqrt", "var": "div",
    "toCopy": "cast", "to": "cast", "type_as": "cast", "expandas": "expand",
    "linalgvectornorm": "reducel2 reducel1", "gt": "greater", "lt": "less", "ge": "greaterorequal",
    "le": "lessorequal", "eq": "equal", "reciprocal": "div", "square": "mul pow",
    "celu": "elu", "swish": "mul", "batchnorm": "batchnormalization conv",
}  # fmt: skip
ENDS = {k.replace("_", "").lower(): tuple(v.split()) for k, v in ENDS.items()}


class Site(NamedTuple):
    """A value: in which module, and by which op. `label`: what PyTorch's graph calls it; `line`:
    of Python, the file without its folder.
    """

    key: Hashable
    label: str
    module: str
    line: tuple[str, int]
    op: str
    shape: tuple[int, ...]
    kind: str  # of elements
    uses: tuple[str, ...] | None  # the modules that take it; None: the model gives it


def sites_of(
    nodes: Sequence[NodeProto], shapes: Mapping[str, np.ndarray], modules: Collection[str],
    outputs: Collection[str],
) -> list[Site]:  # fmt: skip
    """Of the file. `modules`: those that the model has."""
    known = {"", *modules}
    places = [_place(node, known) for node in nodes]
    users: dict[str, list[str]] = defaultdict(list)
    for node, (module, *_) in zip(nodes, places, strict=True):
        for name in node.input:
            users[name].append(module)
    last = {label: k for k, (_, _, label, _) in enumerate(places) if label}
    found = []
    for k, (node, (module, line, label, op)) in enumerate(zip(nodes, places, strict=True)):
        if label and last[label] != k:  # a part of an op
            continue
        for name in node.output:
            if name in shapes:
                array = shapes[name]
                uses = None if name in outputs else tuple(users[name])
                own = name if label else ""
                found.append(Site(
                    name, own, module, line, op, array.shape, _kind(array.dtype), uses
                ))  # fmt: skip
    return found


def pairs_of(ours: Sequence[Site], theirs: Sequence[Site]) -> dict[Hashable, Hashable]:
    """By the keys of the first."""
    found: dict[Hashable, Hashable] = {}
    forced = dict(_results_of_modules(ours, theirs))
    by_module: dict[str, tuple[list[Site], list[Site]]] = defaultdict(lambda: ([], []))
    for side, sites in enumerate((ours, theirs)):
        for site in sites:
            by_module[site.module][side].append(site)
    for mine, others in by_module.values():
        if mine and others and len(mine) * len(others) <= MOST:
            found.update(_aligned(mine, others, forced))
    return {k: found.get(k, forced.get(k)) for k in {**forced, **found}}


def _results_of_modules(ours: Sequence[Site], theirs: Sequence[Site]) -> Iterator[tuple]:
    """What a module gives to others, where both sides have as many of the same shapes."""
    given = [_given_by_modules(sites) for sites in (ours, theirs)]
    for module, mine in given[0].items():
        others = given[1].get(module, [])
        if [(s.shape, s.kind) for s in mine] == [(s.shape, s.kind) for s in others]:
            yield from ((a.key, b.key) for a, b in zip(mine, others, strict=True))


def _given_by_modules(sites: Sequence[Site]) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        path = site.module
        while path:
            inside = (path, f"{path}.")
            if site.uses is None or any(
                u != path and not u.startswith(inside[1]) for u in site.uses
            ):
                found[path].append(site)
            path = path.rpartition(".")[0]
    return found


def _aligned(
    ours: Sequence[Site], theirs: Sequence[Site], forced: Mapping[Hashable, Hashable]
) -> Iterator[tuple[Hashable, Hashable]]:
    """The pairs of two sequences, in order, that count most."""
    scores = np.array([[_score(a, b, forced) for b in theirs] for a in ours], np.int32)
    best = np.zeros((len(ours) + 1, len(theirs) + 1), np.int32)
    for i in range(len(ours)):
        taken = np.maximum(best[i, 1:], np.where(scores[i] > 0, best[i, :-1] + scores[i], 0))
        best[i + 1, 1:] = np.maximum.accumulate(taken)
    i, j = len(ours), len(theirs)
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            yield ours[i].key, theirs[j].key


def _score(a: Site, b: Site, forced: Mapping[Hashable, Hashable]) -> int:
    """0: they are not the same."""
    if a.shape != b.shape or a.kind != b.kind:
        return 0
    like = _likeness(a.op, b.op)
    moved = a.line[0] == b.line[0] and a.line != b.line  # another line of the same file
    if a.label and a.label == b.label and like == LIKE:
        return LIKE if moved else EXACT
    if moved:
        return 0
    return EXACT if a.key in forced and forced[a.key] == b.key else like


def _likeness(a: str, b: str) -> int:
    """`a`: an op of ONNX, or one of PyTorch as `b`."""
    a, b = _plain(a), _plain(b)
    if a == b or a == f"reduce{b}" or (min(len(a), len(b)) > 3 and (a in b or b in a)):
        return LIKE
    ends = ENDS.get(b, ())
    if a not in ends:
        return 0
    return LIKE if ends[:1] == (a,) else LAST


def _plain(op: str) -> str:
    """``_native_batch_norm`` and ``BatchNorm`` are one word."""
    return _DIMS.sub("", op.lower().strip("_")).replace("native_", "").replace("_", "")


def _kind(dtype: np.dtype) -> str:
    return "f" if dtype.name == "bfloat16" else dtype.kind


def _place(node: NodeProto, modules: Collection[str]) -> tuple[str, tuple[str, int], str, str]:
    """Of a node: the module, the line, the name in PyTorch's graph, and the op."""
    found = metadata_of(node)
    if SCOPES in found:
        lines = lines_of(found.get(STACK, ""))
        file, number = next(iter(lines), ("", 0))
        line = PurePath(file).name, number
        module = next(reversed(module_path(found[SCOPES])), "")
        label, op = fx_of(node)
        return module, line, label, op or node.op_type
    name = node.name if node.name.startswith("/") else next(iter(node.output), "")
    scopes = name.split("/")[1:-1] if name.startswith("/") else []
    return _joined(scopes, modules), ("", 0), "", node.op_type


def _joined(scopes: Sequence[str], modules: Collection[str]) -> str:
    """``layer1``, ``layer1.0`` and ``conv`` are ``layer1.0.conv``: containers are named twice."""
    path: list[str] = []
    for scope in scopes:
        parts = scope.split(".")
        shared = (k for k in range(min(len(path), len(parts)), 0, -1) if path[-k:] == parts[:k])
        tried = [path + parts[k:] for k in (*shared, 0)]
        path = next((p for p in tried if ".".join(p) in modules), tried[-1])
    return ".".join(path)
