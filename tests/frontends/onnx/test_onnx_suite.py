"""ONNX's own tests of backends: all by the oracles of our ops, one of each operator by kernels, or
with ``--every-op`` all of them.
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from evaluating import Evaluation  # noqa: E402
from excluded import EXCLUDED  # noqa: E402
from onnx import numpy_helper  # noqa: E402

import opstep.onnx_backend as backend  # noqa: E402
from opstep.frontends.onnx.types import DTYPES  # noqa: E402

with warnings.catch_warnings():  # its cases compute what NumPy warns of
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner, _normalize_tensor

BAR = 0.97
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PATTERN = re.compile("|".join(f"^{p}" for group in EXCLUDED.values() for p in group))


def _loaded(case: Any) -> Any:
    """The model of a case, and what goes in and comes out."""
    if case.model_dir is None:
        return case.model, case.data_sets
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for one in sorted(folder.glob("test_data_set_*")):
        sets.append(tuple(_tensors(one, kind) for kind in ("input", "output")))
    return model, sets


def _tensors(folder: Path, kind: str) -> list[np.ndarray]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(p.read_bytes())) for p in files]


def _has_our_types(model: Any) -> bool:
    return all(
        v.type.WhichOneof("value") == "tensor_type" and v.type.tensor_type.elem_type in DTYPES
        for v in (*model.graph.input, *model.graph.output)
    )


@cache
def _cases(kind: str) -> dict[str, Any]:
    """Those whose element types we have, by name. Those with files are told by their models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {}
        for case in load_model_tests(kind=kind):
            model = case.model
            if case.model_dir is not None:
                model = onnx.load(Path(case.model_dir) / "model.onnx")
            if model is not None and _has_our_types(model):
                found[case.name] = case
        return found


def _is_taken(name: str) -> bool:
    return not PATTERN.search(name)


def _compare(case: Any, by_kernels: bool) -> None:
    model, sets = _loaded(case)
    prepared = backend.prepare(model)
    for inputs, outputs in sets:
        inputs = [_normalize_tensor(t) for t in inputs]
        outputs = [_normalize_tensor(t) for t in outputs]
        if by_kernels:
            found = prepared.run(inputs)
        else:
            named = prepared.named(inputs)
            found = Evaluation(prepared.program(inputs)).main(named)
        Runner.assert_similar_outputs(outputs, found, case.rtol, case.atol)


def pytest_generate_tests(metafunc):
    if "taken" in metafunc.fixturenames:
        names = [(k, n) for k in KINDS for n in _cases(k) if _is_taken(n)]
        metafunc.parametrize("taken", names, ids=[n for _, n in names])
    if "computed" in metafunc.fixturenames:
        names = [(k, n) for k in KINDS for n in _cases(k) if _is_taken(n)]
        if not metafunc.config.getoption("--every-op"):
            names = _one_each(names)
        metafunc.parametrize("computed", names, ids=[n for _, n in names])


def _one_each(names: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first case of each operator; others show the same kernels with other numbers."""
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for kind, name in names:
        case = _cases(kind)[name]
        if kind == "node" and not name.endswith("_expanded") and len(case.model.graph.node) == 1:
            (node,) = case.model.graph.node
            seen.setdefault((node.domain, node.op_type), (kind, name))
    return list(seen.values())


def test_what_the_standard_tests(taken):
    kind, name = taken
    _compare(_cases(kind)[name], by_kernels=False)


def test_kernels_of_each_operator(computed):
    kind, name = computed
    _compare(_cases(kind)[name], by_kernels=True)


def test_few_are_left_out():
    cases = _cases("node")
    taken = [n for n in cases if _is_taken(n)]
    assert len(taken) / len(cases) >= BAR


def test_each_reason_is_one():
    """A pattern matches tests, and what it leaves out cannot be done."""
    names = [n for k in KINDS for n in _cases(k)]
    for patterns in EXCLUDED.values():
        for pattern in patterns:
            assert any(re.match(pattern, n) for n in names), pattern


def test_the_documentation_says_what_is_left_out():
    text = (Path(__file__).resolve().parents[3] / "docs" / "onnx.md").read_text(encoding="utf-8")
    counts = {k: len(_cases(k)) for k in KINDS}
    left = dict.fromkeys(EXCLUDED, 0)
    for kind in KINDS:
        for name in _cases(kind):
            for reason, patterns in EXCLUDED.items():
                left[reason] += any(re.match(p, name) for p in patterns)
    for reason, count in left.items():
        assert f"| {reason} | {count} |" in text
    assert str(counts["node"]) in text
