"""The values of a graph under construction: tensors, and what is known of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from opstep.frontends.constants import written_constant
from opstep.frontends.onnx.body import Body
from opstep.frontends.onnx.errors import OF_DATA, Untranslatable
from opstep.frontends.onnx.naming import readable
from opstep.frontends.onnx.shared import Shared
from opstep.frontends.onnx.values import Known, Value
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DType, TensorType, boolean
from opstep.runtime.transforms.builder import Var

# An input of a function that its call leaves out.
ABSENT = Known(TensorType(boolean, (0,)), "", np.zeros(0, bool))


class Broken(Exception):
    """An input of a node is the result of one that could not be translated."""


class Values:
    """The values of one graph, by their names in the file. `around`: those of the graph that this
    one is a part of, which it reads. `attrs`: of the call, where this is a function's.
    """

    def __init__(
        self, shared: Shared, around: Values | None = None,
        attrs: Mapping[str, Any] | None = None, versions: Mapping[str, int] | None = None,
    ):  # fmt: skip
        self.program, self.around = shared, around
        self.attrs = attrs if attrs is not None else around.attrs if around else None
        self.versions: Mapping[str, int] = (
            versions or (around.versions if around else None) or shared.versions
        )
        self.body = Body(set(), shared.reserved, shared.seen)
        self.body.constant = self.var
        self.env: dict[str, Value | None] = {}
        self.captured: dict[str, tuple[Var, Var]] = {}  # by outer name: outer and inner value
        self.wanted: dict[str, str] = {}  # names that results are to have
        self.prefixes: tuple[str, ...] = ()  # what is left out of names
        self.labels: Mapping[str, str] = {}  # what some values are called
        self.numbered: dict[str, str] = {}  # what values are called whose names are only numbers
        self._made: dict[tuple, Var] = {}  # constants, by what they are
        self._written_names: set[str] = set()  # theirs

    def named(self, name: str) -> str:
        """A name of the file as it is here."""
        if name in self.labels:
            return self.labels[name]
        if name in self.numbered:
            return readable(self.numbered[name])
        for prefix in self.prefixes:
            if prefix and name.startswith(prefix) and name != prefix:
                return readable("/" + name.removeprefix(prefix))
        return readable(name)

    def input(self, name: str, type: TensorType, wanted: str = "") -> Var:
        """A value that the graph is given."""
        var = Var(self.body.fresh(wanted or self.named(name)), type)
        self.env[name] = var
        return var

    def look_up(self, name: str) -> Value | None:
        """The value of that name; None for "". Raises `Broken`."""
        if not name:
            return None
        if name in self.env:
            found = self.env[name]
            if found is None:
                raise Broken
            return None if found is ABSENT else found
        if self.around is None:
            raise InputError(f"{self.program.path}: nothing is called {name}")
        found = self.around.look_up(name)
        if isinstance(found, Var) and self.body is not self.around.body:
            return self.capture(found)
        return found

    def mark(self) -> tuple:
        """Where the graph is, for `reset`."""
        return len(self.body.statements), len(self.program.graphs), dict(self._made)

    def reset(self, mark: tuple) -> None:
        """Drops what was written since."""
        statements, graphs, made = mark
        del self.body.statements[statements:]
        del self.program.graphs[graphs:]
        kept = {g.name.text for g in self.program.graphs}
        called = self.program.called
        for key in [k for k, (name, _) in called.items() if name and name not in kept]:
            del called[key]
        self._made.clear()
        self._made.update(made)

    def values(self) -> Iterable[Var]:
        """The tensors of this graph that have names in the file."""
        return [v for v in self.env.values() if isinstance(v, Var)]

    def share(self, other: Values) -> None:
        """Writes into the graph of another scope from now on."""
        self.body, self.captured = other.body, other.captured
        self._made, self._written_names = other._made, other._written_names

    def capture(self, outer: Var) -> Var:
        """A value of the graph around this one, as an input of this one; a named tensor is read
        where it is.
        """
        if outer.name in self.program.declared:
            return outer
        if outer.name not in self.captured:
            inner = Var(self.body.fresh(outer.name), outer.type)
            self.captured[outer.name] = outer, inner
        return self.captured[outer.name][1]

    def var(self, value: Value | None) -> Var:
        """A value as a tensor: what is known is written down. Raises `Untranslatable`."""
        if value is None:
            raise Untranslatable("an input that is left out")
        if isinstance(value, Var):
            return value
        if value.is_weight:
            return self.program.tensor(value)
        key = value.key
        if key not in self._made:
            self._made[key] = self._written(value)
            self._written_names.add(self._made[key].name)
        return self._made[key]

    def _written(self, value: Known) -> Var:
        b, stem = self.body, readable(value.name) if value.name else self.body.prefix
        before, b.prefix = b.prefix, stem
        try:
            return self._statement(value)
        finally:
            b.prefix = before

    def _statement(self, value: Known) -> Var:
        b, dtype, shape = self.body, value.dtype, value.shape
        elements = value.elements
        if value.is_symbolic:
            parts = [self._size(e, dtype) for e in elements.flat]
            if not shape:
                return parts[0]
            return b.reshaped(b.stack(*parts), shape)
        return written_constant(b, elements, value.type) or self.program.tensor(value)

    def _size(self, element: Any, dtype: DType) -> Var:
        if isinstance(element, Expr):
            return self.body.extent(of=[element], dtype=dtype)
        return self.body.full(shape=[], value=int(element), dtype=dtype)

    def elements(self, value: Value | None) -> Any:
        """What is known of a value; raises `Untranslatable` where that is nothing."""
        if value is None:
            return None
        if isinstance(value, Known):
            return value.elements
        found = self._given(value)
        if found is None:
            raise Untranslatable(OF_DATA)
        return found

    def _given(self, var: Var) -> np.ndarray | None:
        """The elements of an input that were given at import."""
        scope: Values | None = self
        while scope is not None and scope.around is not None:
            outer = next((o for o, i in scope.captured.values() if i.name == var.name), None)
            if outer is None:
                return None
            var, scope = outer, scope.around
        assert scope is not None
        name = next((n for n, v in scope.env.items() if v is var), "")
        if name in self.program.given:
            self.program.used_given.add(name)
            return self.program.given[name]
        return None
