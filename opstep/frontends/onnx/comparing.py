"""Who is right: a model as it runs here beside ONNX Runtime, node by node.

Both sides run the same model, in which every value is an output.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.api.origins import portable
from opstep.api.settings import RunSettings
from opstep.differing.elements import Elements, is_float
from opstep.differing.errors import TOLERANCE, error_of
from opstep.differing.judging import apart
from opstep.differing.models import (
    ModelComparison,
    OpDifference,
    OutputErrors,
    Own,
    verdict,
)
from opstep.frontends.onnx.importing import check_installed
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply, Return
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import dtype_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto
    from onnxruntime import InferenceSession

    from opstep.api.program import Program
    from opstep.trace.recording import Recording

OURS, THEIRS = "opstep", "onnxruntime"
GROWS, PEAKS = 4, 16  # times what came in: as much as an op makes of it that is right
_NAMED = {  # ONNX Runtime's words for element types
    "tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(int16)": 5,
    "tensor(int32)": 6, "tensor(int64)": 7, "tensor(bool)": 9, "tensor(float16)": 10,
    "tensor(double)": 11,
}  # fmt: skip
_FOLDER = "session.model_external_initializers_file_folder_path"


class Distance(NamedTuple):
    """Of two results, by the root mean square of the second: on average, and at most."""

    norm: float
    peak: float

    def explained_by(self, came: Distance, scale: float) -> bool:
        """Whether rounding by `scale`, or what came in, is as much."""
        average = self.norm <= GROWS * max(came.norm, scale / GROWS)
        return average and self.peak <= PEAKS * max(came.peak, scale)


NEAR = Distance(0.0, 0.0)


class Compared:
    """A model that can be run on both sides. `program` is it here, and gives all `values`."""

    def __init__(self, path: str | Path):
        check_installed()
        _check_runtime()
        from opstep.frontends.onnx import attributes
        from opstep.frontends.onnx.assembling import program_of
        from opstep.frontends.onnx.reading import read

        self.path = Path(path)
        self.model = _flat(read(self.path), self.path)
        self.outputs = [o.name for o in self.model.graph.output]
        self.nodes = _open(self.model)
        self.constants: dict[str, Any] = {t.name: t for t in self.model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant":
                self.constants[node.output[0]] = attributes.constant(attributes.of(node, None))
        self.session = self._session()
        self._type_outputs()
        self.program = program_of(self._without_sizes(), str(path), self.path, {}, flat=True)
        self.values = [o.name for o in self.model.graph.output]

    def compare(
        self, inputs: Mapping[str, Any], settings: RunSettings = RunSettings(),
        rtol: float | None = None, recording: Recording | None = None,
    ) -> ModelComparison:  # fmt: skip
        """`inputs`: by the names that the program has for them. `rtol`: a relative difference that
        is rounding, by default 8 units in the last place. `recording`: takes down both sides.
        """
        graph = self.program.graph("main")
        taken = [b.name.text for b in graph.inputs]
        given = dict(zip(self._input_names(), (np.asarray(inputs[n]) for n in taken), strict=True))
        typed = {b.name.text: b.type for b in graph.inputs}
        for name, own in zip(given, taken, strict=True):
            t = typed[own]
            assert t is not None
            given[name] = given[name].astype(t.dtype.numpy)
        result = self.program.run("main", inputs, recording=recording, **vars(settings))
        ours = dict(zip(self.ours, result.outputs, strict=True))
        theirs = dict(zip(self.values, self._run_theirs(given), strict=True))
        found = self._compared(given, ours, theirs, rtol)
        if recording is not None:
            inputs = dict(zip(taken, given.values(), strict=True))
            outputs = {n: np.asarray(theirs[v]) for n, v in zip(result, self.ours, strict=True)}
            self._record(recording, inputs, outputs, settings)
            found.runs = tuple(run.key for run in recording.runs[-2:])
        return found

    def _record(
        self, recording: Recording, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray],
        settings: RunSettings,
    ) -> None:  # fmt: skip
        """The other side's run, as that of the program."""
        import onnxruntime

        from opstep.frontends.recorded import record_reference

        known = {f"main/{name}": array for name, array in outputs.items()}
        title = f"ONNX Runtime {onnxruntime.__version__}"
        record_reference(
            recording, self.program, known.get, inputs, outputs, settings, THEIRS, title
        )

    def _input_names(self) -> list[str]:
        initializers = {t.name for t in self.model.graph.initializer}
        return [i.name for i in self.model.graph.input if i.name not in initializers]

    def _session(self) -> InferenceSession:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised as well
        options.add_session_config_entry(_FOLDER, str(self.path.absolute().parent))
        content = self.model.SerializeToString()
        with self._refused():
            return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """What ONNX Runtime says, in our words."""
        try:
            yield
        except Exception as error:  # of many kinds, one for each of its codes
            reason = " ".join(str(error).split())
            raise InputError(f"{self.path}: ONNX Runtime cannot run it: {reason[:300]}") from None

    def _type_outputs(self) -> None:
        """The types of all outputs, which ONNX Runtime has inferred; those of tensors stay."""
        from onnx import helper

        outputs = []
        for given, inferred in zip(
            self.model.graph.output, self.session.get_outputs(), strict=True
        ):
            dtype = _NAMED.get(inferred.type)
            if dtype is not None:
                shape = [d if isinstance(d, int | str) else None for d in inferred.shape]
                outputs.append(helper.make_tensor_value_info(given.name, dtype, shape))
        del self.model.graph.output[:]
        self.model.graph.output.extend(outputs)

    def _without_sizes(self) -> ModelProto:
        """The model as it is imported: sizes are no values here, but part of types."""
        from onnx import ModelProto

        sizes = {t.name for t in self.model.graph.initializer}
        fixed = len(sizes)
        for node in self.nodes:
            known = node.op_type == "Constant" or all(n in sizes for n in node.input if n)
            if node.op_type in ("Shape", "Size") or (known and not node.domain):
                sizes.update(node.output)
        model = ModelProto()
        model.CopyFrom(self.model)
        if len(sizes) > fixed:
            kept = [
                o for k, o in enumerate(self.model.graph.output)
                if k < len(self.outputs) or o.name not in sizes
            ]  # fmt: skip
            del model.graph.output[:]
            model.graph.output.extend(kept)
        self.ours = [o.name for o in model.graph.output]
        return model

    def _run_theirs(self, given: Mapping[str, np.ndarray]) -> Sequence[Any]:
        with self._refused():
            return self.session.run(self.values, dict(given))

    def _compared(
        self, given: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray],
        theirs: Mapping[str, Any], rtol: float | None,
    ) -> ModelComparison:  # fmt: skip
        found = ModelComparison((OURS, THEIRS))
        distances: dict[str, Distance] = {}
        known = {**theirs, **ours, **given}, {**theirs, **given}
        stepped = False  # from integers that differ on, a small fault would be lost in what came
        for node in self.nodes:
            for k, name in enumerate(node.output):
                if name not in ours or not isinstance(theirs[name], np.ndarray):
                    continue
                found.compared += 1
                a, b = ours[name], theirs[name]
                if a.shape != b.shape or a.dtype != b.dtype:
                    raise InputError(
                        f"{name} is {a.dtype}{list(a.shape)} here and "
                        f"{b.dtype}{list(b.shape)} in ONNX Runtime"
                    )
                away = distances[name] = distance_of(a, b)
                through = max(
                    (i for i in node.input if i in distances),
                    key=lambda i: distances[i].norm, default="",
                )  # fmt: skip
                came = distances.get(through, NEAR)
                stepped |= not is_float(a.dtype) and away is not NEAR
                enough = NEAR if stepped else came
                elements = None if away.explained_by(enough, _scale(a, rtol)) else apart(a, b, rtol)
                if elements:
                    one = self._difference(node, k, elements, came, through, known, rtol)
                    found.differing.append(one)
        for name in self.outputs:
            error = error_of(ours[name], np.asarray(theirs[name]))
            found.outputs[name] = OutputErrors(error, None, None)
        return found

    def _difference(
        self, node: NodeProto, k: int, elements: Elements, came: Distance, through: str,
        known: tuple[Mapping[str, Any], Mapping[str, Any]], rtol: float | None,
    ) -> OpDifference:  # fmt: skip
        name = node.output[k]
        own = (self._own(node, k, known[0], rtol), self._own(node, k, known[1], rtol))
        statement, file, line = _place(self.program, self.ours.index(name))
        source = linecache.getline(file, line).strip() if line else ""
        return OpDifference(
            op=node.op_type, value=name, type=f"{dtype_of(known[0][name].dtype)}"
            f"[{', '.join(map(str, known[0][name].shape))}]",
            file=portable(file) if file else "", line=line, source=source, module="",
            statement=statement, site=f"{self.model.graph.name}/{name}", elements=elements,
            total=error_of(known[0][name], known[1][name]), came=came.norm, through=through,
            own=own, verdict=verdict(*own),
        )  # fmt: skip

    def _own(
        self, node: NodeProto, k: int, known: Mapping[str, Any], rtol: float | None
    ) -> Own | None:
        from opstep.frontends.onnx.judging import own_error

        operands: dict[str, np.ndarray] = {}
        for name in filter(None, node.input):
            found = self._operand(name, known)
            if found is None:
                return None
            operands[name] = found
        results = {n: np.asarray(known[n]) for n in node.output if n in known}
        return own_error(self.model, node, k, operands, results, rtol)

    def _operand(self, name: str, known: Mapping[str, Any]) -> np.ndarray | None:
        from onnx import TensorProto, numpy_helper

        found = known.get(name, self.constants.get(name))
        if isinstance(found, TensorProto):
            return numpy_helper.to_array(found, str(self.path.absolute().parent))
        return None if found is None else np.asarray(found)


def diff_onnx(
    path: str | Path, inputs: Mapping[str, Any], *, settings: RunSettings = RunSettings(),
    rtol: float | None = None, recording: Recording | None = None,
) -> ModelComparison:  # fmt: skip
    """Runs a model here and by ONNX Runtime, on a CPU, and finds the first node whose result
    differs by more than what rounding and the node's operands explain. Raises `OpstepError` where
    one of them cannot run it.
    """
    return Compared(path).compare(inputs, settings, rtol, recording)


def _check_runtime() -> None:
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        reason = " ".join(str(error).split())[:300]
        message = f"comparing with ONNX Runtime needs it, and it cannot be imported: {reason}"
        raise InputError(message, hint="pip install onnxruntime") from None


def _flat(model: ModelProto, path: Path) -> ModelProto:
    """The model with its functions in place of their calls, so that what they compute is seen."""
    from onnx import inliner

    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: its functions cannot be written out: {reason[:200]}") from None


def _open(model: ModelProto) -> list[NodeProto]:
    """Makes every value an output; gives the nodes."""
    from onnx import ValueInfoProto

    there = {o.name for o in model.graph.output}
    nodes = list(model.graph.node)
    for node in nodes:
        new = [o for o in node.output if o and o not in there]
        if node.op_type != "Constant":
            model.graph.output.extend(ValueInfoProto(name=o) for o in new)
            there.update(new)
    return nodes


def _place(program: Program, k: int) -> tuple[str, str, int]:
    """What computes a result here, and the line that it was imported from."""
    body = program.graph("main").body
    (name,) = (s.values[k].text for s in body if isinstance(s, Return))
    for s in body:
        if isinstance(s, Apply) and any(b.name.text == name for b in s.results):
            text = print_statement(replace(s, at=None))
            if len(s.results) > 1:
                text = f"{name}, … = {text.partition(' = ')[2]}"
            return text, s.at.file if s.at else "", s.at.line if s.at else 0
    return "", "", 0


def distance_of(a: np.ndarray, b: np.ndarray) -> Distance:
    """In one pass or two, as most results differ by rounding alone."""
    small = np.float32 if is_float(a.dtype) and a.itemsize < 8 else np.float64
    x, y = (v.reshape(-1).astype(small, copy=False) for v in (a, b))
    for _ in range(2):
        with np.errstate(all="ignore"):
            d = x - y
            top = max(float(d.max()), -float(d.min())) if d.size else 0.0
            squares, size = float(np.dot(d, d)), float(np.dot(y, y))
        if top == 0.0:
            return NEAR
        if math.isfinite(squares) and math.isfinite(size) and size:
            return Distance(math.sqrt(squares / size), top / math.sqrt(size / y.size))
        x, y = x.astype(np.float64), y.astype(np.float64)
        odd = ~np.isfinite(x) | ~np.isfinite(y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if (odd & ~same).any():
            return Distance(math.inf, math.inf)
        x, y = np.where(odd, 0.0, x), np.where(odd, 0.0, y)
    return Distance(math.inf, math.inf)


def _scale(a: np.ndarray, tolerance: float | None) -> float:
    """What rounding is, relative to a result."""
    if not is_float(a.dtype):
        return 0.0
    return TOLERANCE[dtype_of(a.dtype).name] if tolerance is None else tolerance
