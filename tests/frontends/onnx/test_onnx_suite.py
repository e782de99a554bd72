"""ONNX's own tests of backends: all by the oracles of our ops, one of each operator by kernels, or
with ``--every-op`` all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
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
    from onnx.backend.test.case import node
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

BAR = 0.97
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PATTERN = re.compile("|".join(f"^{p}" for group in EXCLUDED.values() for p in group))


def _loaded(case: Any) -> Any:
    """The model of a case, and what goes in and comes out."""
    if case.model_dir is None:
        return case.model, case.data_sets
    folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
    return _model(case), [[_tensors(f, kind) for kind in ("input", "output")] for f in folders]


def _tensors(folder: Path, kind: str) -> list[np.ndarray]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(p.read_bytes())) for p in files]


def _arrays(given: list[Any]) -> list[Any]:
    return [numpy_helper.to_array(g) if isinstance(g, onnx.TensorProto) else g for g in given]


def _has_our_types(model: Any) -> bool:
    return all(
        v.type.WhichOneof("value") == "tensor_type" and v.type.tensor_type.elem_type in DTYPES
        for v in (*model.graph.input, *model.graph.output)
    )


# Cases of operators are computed where their modules are imported, which takes seconds in all.
MODULES = [m.name for m in pkgutil.walk_packages(node.__path__, f"{node.__name__}.") if not m.ispkg]
GROUPS = [*MODULES, *KINDS[1:]]
_along: set[str] = set()  # modules that another one imported: their cases are among its own


@cache
def _cases(group: str) -> dict[str, Any]:
    """Those whose element types we have, by name. Those with files are told by their models."""
    if group == "node":
        return {name: case for module in MODULES for name, case in _cases(module).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in _load(group) if _has_our_types(_model(case))}


def _load(group: str) -> list[Any]:
    if group in KINDS:
        return load_model_tests(kind=group)
    if group in _along:
        return []
    assert group not in sys.modules, "its cases are not told from others if it was imported"
    before, loaded = len(node._NodeTestCases), set(sys.modules)
    importlib.import_module(group)
    _along.update((sys.modules.keys() & set(MODULES)) - loaded - {group})
    return node._NodeTestCases[before:]


def _model(case: Any) -> Any:
    return onnx.load(Path(case.model_dir) / "model.onnx") if case.model_dir else case.model


def _is_taken(name: str) -> bool:
    return not PATTERN.search(name)


def compare(cases: list[Any], device: str | None) -> None:
    """All of them, by the kernels of a device or by oracles; fails with what is wrong of each."""
    wrong = []
    for case in cases:
        try:
            _compare_one(case, device)
        except Exception as error:
            error.add_note(f"in {case.name}")
            wrong.append(error)
    if wrong:
        raise ExceptionGroup(f"{len(wrong)} of {len(cases)} cases", wrong)


def _compare_one(case: Any, device: str | None) -> None:
    model, sets = _loaded(case)
    prepared = backend.prepare(model, device or "CPU")
    for inputs, outputs in sets:
        inputs, outputs = map(_arrays, (inputs, outputs))
        if device:
            found = prepared.run(inputs)
        else:
            named = prepared.named(inputs)
            found = Evaluation(prepared.program(inputs)).main(named)
        Runner.assert_similar_outputs(outputs, found, case.rtol, case.atol)


def taken(group: str) -> list[Any]:
    return [case for name, case in _cases(group).items() if _is_taken(name)]


def _one_each(cases: list[Any]) -> list[Any]:
    """The first case of each operator; others show the same kernels with other numbers."""
    seen: dict[tuple[str, str], Any] = {}
    for case in cases:
        if not case.name.endswith("_expanded") and len(case.model.graph.node) == 1:
            (one,) = case.model.graph.node
            seen.setdefault((one.domain, one.op_type), case)
    return list(seen.values())


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_standard_tests(group):
    compare(taken(group), device=None)


@pytest.mark.parametrize("group", GROUPS)
def test_kernels_of_each_operator(group, request):
    if request.config.getoption("--every-op"):
        compare(taken(group), "CPU")
    elif group in MODULES:
        compare(_one_each(taken(group)), "CPU")


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
