"""ONNX's own interface of backends, by which its tests run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from opstep.api.program import Program
from opstep.frontends.onnx.assembling import program_of
from opstep.frontends.onnx.errors import ImportFailed
from opstep.runtime.ir.errors import InputError


class Prepared(BackendRep):
    """A model. Its program is made for the shapes of the first inputs, and for their elements
    where these decide shapes.
    """

    def __init__(self, model: onnx.ModelProto, device: str):
        self._model, self._device = model, device
        initializers = {t.name for t in model.graph.initializer}
        self._names = [i.name for i in model.graph.input if i.name not in initializers]

    def program(self, inputs: Sequence[np.ndarray]) -> Program:
        """The program for such inputs."""
        given = dict(zip(self._names, inputs, strict=False))
        if not all(isinstance(v, np.ndarray | np.generic) for v in given.values()):
            raise InputError("sequences and optional values are not taken")
        shapes = {name: np.shape(v) for name, v in given.items()}
        try:
            return program_of(self._model, "<model>", None, {}, shapes, given)
        except ImportFailed:
            small = {n: v for n, v in given.items() if _may_decide(v)}
            if not small:
                raise
            return program_of(self._model, "<model>", None, small, shapes)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        if isinstance(inputs, dict):
            inputs = [inputs[n] for n in self._names if n in inputs]
        program = self.program(inputs)
        graph = program.graph("main")
        taken = {b.name.text for b in graph.inputs}
        named = self.named(inputs)
        found = program.run(
            "main", {n: v for n, v in named.items() if n in taken}, device=self._device
        )
        return tuple(found[n] for n in _results(graph))

    def named(self, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
        from opstep.frontends.onnx.naming import readable

        return {readable(n): np.asarray(v) for n, v in zip(self._names, inputs, strict=False)}


def _may_decide(value: Any) -> bool:
    """Whether an input is like those that decide shapes."""
    return np.ndim(value) == 0 or (np.ndim(value) == 1 and np.asarray(value).dtype.kind in "iub")


def _results(graph: Any) -> list[str]:
    return [v.text for v in graph.body[-1].values]


class OnnxBackend(Backend):
    """``prepare``, ``run_model`` and ``run_node`` as any backend has them."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Raises `InputError` where the model is none, when it is run `ImportFailed`."""
        return Prepared(model, _DEVICES[Device(device).type])

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return Device(device).type in _DEVICES


_DEVICES = {DeviceType.CPU: "cpu", DeviceType.CUDA: "cuda"}
prepare, run_model, run_node = OnnxBackend.prepare, OnnxBackend.run_model, OnnxBackend.run_node
supports_device = OnnxBackend.supports_device
