"""A run of another library's as one in a workspace, beside that of the program: with the program's
ops, and statistics of what the other side had for their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from opstep.api.program import Program
from opstep.api.settings import RunSettings
from opstep.runtime.device.cpu.device import statistics_words
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.plan.plan import Plan
from opstep.runtime.recording import Activation, Layout, Outputs, RunInfo, StreamRecord
from opstep.runtime.statistics import WORDS
from opstep.trace.describe import frame_path
from opstep.trace.recording import Recording

Known = Callable[[str], np.ndarray | None]  # what the other side had, by site


def record_reference(
    recording: Recording, program: Program, known: Known, inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray], settings: RunSettings, name: str, title: str,
) -> str:  # fmt: skip
    """Records a run whose values were these; gives its key. `name`: what ran it, "torch:cuda"."""
    types = [TensorType(dtype_of(a.dtype), a.shape) for a in inputs.values()]
    plan = program.plan("main", types, settings.policy, settings.device, setup=settings.setup)
    recorder = recording.begin_run(
        RunInfo(program, "main", inputs, settings.policy, name, None, program.seed, 1, title)
    )
    error: BaseException | None = None
    try:
        wanted = recorder.values_to_record(plan)
        step, _ = recorder.begin_step()
        before = recorder.run.numbers_before(plan)
        kept = [place for place in wanted if place[1] in before]
        given = dict(zip(kept, (_given(plan, v, inputs, program) for _, v in kept), strict=True))
        recorder.add_record(_record(plan, given | dict(_values(plan, known)), recorder, step))
        shapes = [a.shape for a in outputs.values()]
        recorder.end_step(Outputs(list(outputs), shapes, list(outputs.values()).__getitem__))
    except BaseException as caught:
        error = caught
        raise
    finally:
        recorder.end_run(error, [])
    return recorder.run.key


def _given(
    plan: Plan, value: int, inputs: Mapping[str, np.ndarray], program: Program
) -> np.ndarray:
    """The elements that the plan found for a value: an input, or a named tensor."""
    buffer = plan.buffers[plan.values[value].buffer]
    named = buffer.kind == "param"
    return program.params[buffer.name] if named else inputs[plan.values[value].name]


def _record(
    plan: Plan, found: Mapping[tuple[int, int], np.ndarray], recorder: Recorder, step: int
) -> StreamRecord:
    layout = Layout(plan, [[]], [[*found]])
    words = [statistics_words(array) for array in found.values()]
    stats = np.array(words, np.int64).reshape(-1, WORDS)
    none = np.zeros((0, 2), np.int64)
    activation = Activation(recorder.next_number(), step, layout)
    return StreamRecord(activation, 0, none, none, stats)


def _values(plan: Plan, known: Known) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """What there was for results of the plan's steps: (step, value) and elements."""
    for number, step in enumerate(plan.steps):
        for v in step.results if step.launches else ():
            value: Any = plan.values[v]
            array = known(f"{frame_path(plan, step.frame)}/{value.name}")
            if array is None:
                continue
            if (dtype_of(array.dtype), array.shape) == (value.type.dtype, value.type.shape):
                yield (number, v), array
