"""Runs what `jax.jit` has traced, on JAX's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from opstep.api.devices import HOST
from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.frontends.jax.arguments import Leaf, called, leaves_of
from opstep.frontends.jax.assembling import program_of_traced
from opstep.frontends.jax.tracebacks import rules_seen
from opstep.frontends.jax.tracing import Traced
from opstep.frontends.jax.types import UNSIGNED, held, is_key, key_shape
from opstep.frontends.scripts.watching import Hunter, Watch
from opstep.runtime.nan.kinds import NO_ROLES, Roles


def shape_of(value: Any) -> jax.ShapeDtypeStruct:
    """What `jax.jit` knows of an argument."""
    aval: Any = jax.typeof(value)
    weak = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


def staged(jitted: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call as `jax.jit` traces it. What called this file is no part of the function."""
    with rules_seen():
        return jitted.trace(*args, **kwargs)


class Call:
    """A function for arguments of these shapes, as `jax.jit` traced it. `inputs`: what it takes.
    `out_tree`: of its results. `failed` is told what ends a call that JAX makes. Raises
    `ImportFailed`.
    """

    saved: set[str] = set()  # results that are kept for a backward pass

    def __init__(
        self, function: Any, stage: Any, inputs: list[Leaf], watch: Watch,
        failed: Callable[[BaseException], None],
    ):  # fmt: skip
        self.out_tree = stage.out_tree
        self.watch = watch
        self._failed = failed
        results = leaves_of(stage.out_info)
        traced = Traced(stage.jaxpr, inputs, results, stage.out_tree)
        self.program = program_of_traced(function, traced, title=called(function)).program
        graph = next(iter(self.program.graphs.values()))
        self._results = stage.jaxpr.out_avals
        types: Any = [b.type for b in graph.inputs]
        self.executable = Executable(
            self.program, graph.name.text, types, replace(watch.settings, device=HOST),
            watch.alarm, watch.hunting.masked,
        )  # fmt: skip
        self._names = [b.name.text for b in graph.inputs]
        self._hunter = Hunter(self, watch.hunting) if watch.alarm is not None else None

    def __call__(self, leaves: list[Any]) -> list[Any]:
        """JAX's arrays for JAX's arrays."""
        arrays = self._run(leaves)
        return [_given(a, t) for a, t in zip(arrays, self._results, strict=True)]

    def callback(self, *leaves: Any) -> list[Any]:
        """As JAX traces a call. Keys of random numbers are their integers there."""
        given = [jax.random.key_data(x) if is_key(x.dtype) else x for x in leaves]
        shapes = [
            jax.ShapeDtypeStruct((*t.shape, *key_shape(t.dtype)), np.uint32) if is_key(t.dtype)
            else jax.ShapeDtypeStruct(t.shape, t.dtype)
            for t in self._results
        ]  # fmt: skip
        found = jax.pure_callback(self._called_back, shapes, *given, vmap_method="sequential")
        return [
            jax.random.wrap_key_data(x) if is_key(t.dtype) else x
            for x, t in zip(found, self._results, strict=True)
        ]

    def _called_back(self, *leaves: Any) -> list[np.ndarray]:
        try:
            return self._run(leaves)
        except BaseException as error:
            self._failed(error)
            raise

    def _run(self, leaves: Any) -> list[np.ndarray]:
        """Results, of those JAX's elements, unsigned integers as such."""
        given = (x if isinstance(x, jax.Array) else jax.numpy.asarray(x) for x in leaves)
        inputs = [ExternalTensor.of(held(x)) for x in given]
        results = self.executable(inputs, recording=self.watch.recording)
        if self._hunter is not None:
            self._hunter.ran(self.watch.verdict(), inputs)
        arrays = []
        for tensor, alias, t in zip(results, self.executable.aliases, self._results, strict=True):
            array = np.array(tensor) if alias is not None else np.asarray(tensor)
            name = "uint32" if is_key(t.dtype) else t.dtype.name
            arrays.append(array.view(name) if name in UNSIGNED else array)
        return arrays

    def roles(self, inputs: list[ExternalTensor]) -> Roles:
        """Nothing is known of them."""
        return NO_ROLES

    def named(self, inputs: list[ExternalTensor]) -> dict[str, ExternalTensor]:
        """As a hunt takes them."""
        return dict(zip(self._names, inputs, strict=True))


def _given(array: np.ndarray, aval: Any) -> jax.Array:
    if is_key(aval.dtype):
        return jax.random.wrap_key_data(jax.numpy.asarray(array))
    if aval.weak_type and not aval.shape:
        return jax.numpy.asarray(array.item())
    return jax.numpy.asarray(array)
