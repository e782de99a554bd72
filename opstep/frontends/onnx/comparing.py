"""Who is right: a model as it runs here beside ONNX Runtime, node by node.

Both sides run the same model, in which every value is an output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api.settings import RunSettings
from opstep.differing.distance import NEAR, Distance, distance_of, scale_of
from opstep.differing.elements import Elements, is_float
from opstep.differing.errors import error_of
from opstep.differing.judging import apart
from opstep.differing.models import (
    ModelComparison,
    OpDifference,
    OutputErrors,
    Own,
    verdict,
)
from opstep.frontends.onnx.opened import Opened, type_text
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from onnx import NodeProto
    from onnxruntime import InferenceSession

    from opstep.trace.recording import Recording

OURS, THEIRS = "opstep", "onnxruntime"
_EXACTLY = "session.x64quantprecision"
_FOLDER = "session.model_external_initializers_file_folder_path"


def exact_session(model: bytes | str, options: Any = None) -> InferenceSession:
    """A session whose products of bytes are exact: on x86-64 processors without VNNI ONNX Runtime
    adds two at a time in 16 bits, where they saturate, unless it is asked not to. Of some models it
    cannot do what it takes for that. `options`: a `SessionOptions`.
    """
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    options, providers = options or onnxruntime.SessionOptions(), ["CPUExecutionProvider"]
    options.add_session_config_entry(_EXACTLY, "1")
    try:
        return onnxruntime.InferenceSession(model, options, providers)
    except Fail:
        options.add_session_config_entry(_EXACTLY, "0")
        return onnxruntime.InferenceSession(model, options, providers)


class Compared(Opened):
    """A model that can be run on both sides. What only depends on sizes is part of types here: its
    values are ONNX Runtime's.
    """

    def __init__(self, path: str | Path):
        _check_runtime()
        super().__init__(path)
        made = [o for n in self.nodes if n.op_type != "Constant" for o in n.output if o]
        self._folded: dict[str, Any] = {n: None for n in made if n not in self.named}
        self.session = self._session()

    def compare(
        self, inputs: Mapping[str, Any], settings: RunSettings = RunSettings(),
        rtol: float | None = None, recording: Recording | None = None,
    ) -> ModelComparison:  # fmt: skip
        """`inputs`: by the names that the program has for them. `rtol`: a relative difference that
        is rounding, by default 8 units in the last place. `recording`: takes down both sides.
        """
        given = self.given(inputs)
        result = self.program.run("main", inputs, recording=recording, **vars(settings))
        ours = self.values(result)
        wanted = [*self.named, *self._folded]
        with self._refused():
            theirs = dict(zip(wanted, self.session.run(wanted, given), strict=True))
        self._folded = {name: theirs.pop(name) for name in self._folded}
        found = self._compared(given, ours, theirs, rtol)
        if recording is not None:
            taken = {own: given[name] for name, own in self.inputs.items()}
            outputs = {own: np.asarray(theirs[name]) for name, own in self.named.items()}
            self._record(recording, taken, outputs, settings)
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

    def _session(self) -> InferenceSession:
        import onnxruntime
        from onnx import ModelProto, ValueInfoProto

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised as well
        options.add_session_config_entry(_FOLDER, str(self.path.absolute().parent))
        model = ModelProto()
        model.CopyFrom(self.model)
        others = (n for n in (*self.named, *self._folded) if n not in self.outputs)
        model.graph.output.extend(ValueInfoProto(name=n) for n in others)
        content = model.SerializeToString()
        with self._refused():
            return exact_session(content, options)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """What ONNX Runtime says, in our words."""
        try:
            yield
        except Exception as error:  # of many kinds, one for each of its codes
            reason = " ".join(str(error).split())
            raise InputError(f"{self.path}: ONNX Runtime cannot run it: {reason[:300]}") from None

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
                        f"{name} is {type_text(a)} here and {type_text(b)} in ONNX Runtime"
                    )
                away = distances[name] = distance_of(a, b)
                through = max(
                    (i for i in node.input if i in distances),
                    key=lambda i: distances[i].norm, default="",
                )  # fmt: skip
                came = distances.get(through, NEAR)
                stepped |= not is_float(a.dtype) and away is not NEAR
                enough = NEAR if stepped else came
                fine = away.explained_by(enough, scale_of(a.dtype, rtol))
                elements = None if fine else apart(a, b, rtol)
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
        return OpDifference(
            op=node.op_type, value=name, type=type_text(known[0][name]), module="",
            site=f"{self.model.graph.name}/{name}", elements=elements,
            total=error_of(known[0][name], known[1][name]), came=came.norm, through=through,
            own=own, verdict=verdict(*own), **self.place(name),
        )  # fmt: skip

    def _own(
        self, node: NodeProto, k: int, known: Mapping[str, Any], rtol: float | None
    ) -> Own | None:
        from opstep.frontends.onnx.judging import own_error

        operands: dict[str, np.ndarray] = {}
        for name in filter(None, node.input):
            found = known.get(name, self._folded.get(name))
            found = self.constant(name) if found is None else np.asarray(found)
            if found is None:
                return None
            operands[name] = found
        results = {n: np.asarray(known[n]) for n in node.output if n in known}
        return own_error(self.model, node, k, operands, results, rtol)


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
