"""The program of a function: its inputs, results and named tensors."""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from opstep.api.program import Program
from opstep.frontends.jax import control  # noqa: F401 - registers what it translates
from opstep.frontends.jax.arguments import Leaf, called, place_of, readable
from opstep.frontends.jax.calls import closed
from opstep.frontends.jax.closures import closed_over
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.origins import Function, Origins, function_of
from opstep.frontends.jax.rules import all_rules
from opstep.frontends.jax.shared import Shared
from opstep.frontends.jax.tracing import Traced, arguments, trace
from opstep.frontends.jax.translator import Broken, Scope
from opstep.frontends.jax.types import held, type_of
from opstep.frontends.jax.values import Entry, constant
from opstep.frontends.missing import ImportFailed, Missing
from opstep.frontends.statements import by_calls, renamed, unique
from opstep.kernels.stdlib import library
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module
from opstep.runtime.transforms.builder import Var


class Imported(NamedTuple):
    """`inputs`: what main's inputs, or the named tensors in their place, are called, leaf by leaf
    of the arguments that are arrays; `results`: likewise, of a tree of this `structure`.
    """

    program: Program
    inputs: list[str]
    results: list[str]
    structure: Any


def program_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], weights: Any
) -> Imported:  # fmt: skip
    all_rules()
    if not callable(function):
        raise InputError(f"a {type(function).__name__} is no function")
    chosen = _weights(function, args, kwargs, weights)
    return _Import(function, trace(function, args, kwargs), chosen).program()


def _weights(function: Any, args: Sequence[Any], kwargs: Any, weights: Any) -> set[str]:
    """The names of the arguments that are named tensors. Raises `InputError`."""
    listed = [weights] if isinstance(weights, str | int) else list(weights)
    names = list(dict.fromkeys(leaf.path[0] for leaf in arguments(function, args, kwargs)))
    found = set()
    for one in listed:
        if isinstance(one, int) and -len(args) <= one < len(args):
            one = names[one]
        if one not in names:
            raise InputError(
                f"weights: {called(function)} has no argument {one!r}",
                hint=f"it has: {', '.join(names) or 'none'}",
            )
        found.add(one)
    return found


def program_of_traced(function: Callable[..., Any], traced: Traced, title: str) -> Imported:
    """Of what was traced already; the graph that runs is called `title`."""
    all_rules()
    return _Import(function, traced, set(), title).program()


class _Import:
    def __init__(self, function: Any, traced: Traced, weights: set[str], title: str = "main"):
        self.function, self.traced, self.weights = function, traced, weights
        taken = {name for module in library() for name in module.graphs}
        self.shared = Shared(taken)
        self.types = []
        for variable, leaf in zip(traced.jaxpr.jaxpr.invars, traced.inputs, strict=True):
            try:
                self.types.append(type_of(variable.aval))
            except Untranslatable as error:
                self._note(f"argument {leaf.name}", error)
        if self.shared.missing:
            raise ImportFailed(self.shared.missing)
        for type in self.types:
            for dim in type.shape:
                if isinstance(dim, Expr):
                    self.shared.reserve(dim.symbols())
        self.title = title if title == "main" else self.shared.graph_name(title)

    def program(self) -> Imported:
        traced, shared = self.traced, self.shared
        jaxpr = traced.jaxpr
        scope = Scope(shared, Function("", "", 0))
        for leaf in traced.inputs:
            if leaf.path[0] in self.weights:
                shared.reserved.add(leaf.dotted)
        inputs = self._inputs(scope)
        env = dict(zip(jaxpr.jaxpr.invars, [v for v, _ in inputs], strict=True))
        scope.env |= env | self._constants(jaxpr)
        results = self._results(scope, jaxpr)
        if shared.missing:
            raise ImportFailed(shared.missing)
        for file, line in sorted(shared.left_out):
            text = "what jax.debug prints or calls here is left out: a breakpoint shows the values"
            warnings.warn_explicit(text, UserWarning, file or f"<{called(self.function)}>", line)
        names = self._result_names({v.name for v, _ in inputs})
        returned = self._returned(scope, results, names)
        scope.finish(self.title, returned, [v for v, is_weight in inputs if not is_weight])
        order = by_calls({g.name.text: g for g in shared.graphs}, self.title)
        text = print_module(Module((*shared.declared.values(), *order)))
        program = Program(parse(text, f"<{called(self.function)}>"))
        program.changed_in_place = frozenset()  # arrays are not changed
        for name, value in shared.values.items():
            program.params[name] = value
        program.example = {
            v.name: _array(leaf, v.type)
            for (v, is_weight), leaf in zip(inputs, traced.inputs, strict=True)
            if not is_weight and not isinstance(leaf.value, jax.ShapeDtypeStruct)
        }
        listed = [v.name for v in returned]
        return Imported(program, [v.name for v, _ in inputs], listed, traced.structure)

    def _inputs(self, scope: Scope) -> list[tuple[Var, bool]]:
        """Inputs and, in place of some, named tensors."""
        found = []
        for leaf, type in zip(self.traced.inputs, self.types, strict=True):
            if leaf.path[0] not in self.weights:
                found.append((scope.input(leaf.name, type), False))
                continue
            is_type = isinstance(leaf.value, jax.ShapeDtypeStruct)
            value = None if is_type else _array(leaf, type)
            found.append((self.shared.declare(leaf.dotted, type, value), True))
        return found

    def _constants(self, jaxpr: Any) -> dict[Any, Entry]:
        """What the function closes over; where it is reached from Python, under that name."""
        names = closed_over(self.function)
        found: dict[Any, Entry] = {}
        for variable, array in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True):
            name = names.get(id(array), "")
            found[variable] = constant(array, name, bool(name) and np.ndim(array) > 0)
        return found

    def _results(self, scope: Scope, jaxpr: Any) -> list[Var]:
        inner = jaxpr.jaxpr
        (equation,) = inner.eqns if len(inner.eqns) == 1 else (None,)
        if equation is not None and equation.primitive.name in ("jit", "pjit"):
            # a function that is jitted as a whole
            callee = closed(equation.params["jaxpr"])
            values = [scope.entry(v) for v in equation.invars]
            scope.function = function_of(callee.jaxpr)
            scope.origins = Origins(scope.function)
            outer = dict(scope.env)
            scope.env |= self._constants(callee)
            scope.env |= dict(zip(callee.jaxpr.invars, values, strict=True))
            scope.equations(callee.jaxpr)
            made = dict(zip(equation.outvars, callee.jaxpr.outvars, strict=True))
            atoms = [made.get(a, a) if isinstance(a, core.Var) else a for a in inner.outvars]
            scope.env |= outer
        else:
            scope.equations(inner)
            atoms = inner.outvars
        found = []
        for atom, leaf in zip(atoms, self.traced.results, strict=True):
            try:
                found.append(scope.var(scope.look_up(atom)))
            except Broken:
                if not self.shared.missing:
                    raise
            except Untranslatable as error:
                self._note(result_name(leaf, returned_names(self.function)), error)
        return found

    def _note(self, what: str, error: Untranslatable) -> None:
        """Of a value that the function takes or gives."""
        self.shared.missing.append(Missing(what, str(error), *place_of(self.function)))

    def _result_names(self, taken: set[str]) -> list[str]:
        returned = returned_names(self.function)
        used = taken | self.shared.reserved
        return [unique(result_name(leaf, returned), used) for leaf in self.traced.results]

    def _returned(self, scope: Scope, results: Sequence[Var], names: Sequence[str]) -> list[Var]:
        """The values, called as the results are to be."""
        b = scope.body
        made = {r.name.text for s in b.statements for r in getattr(s, "results", ())}
        kept = {v.name for v, name in zip(results, names, strict=True) if v.name == name}
        found: dict[str, str] = {}
        copied: dict[int, str] = {}  # results that are another one, or an input
        for k, (var, name) in enumerate(zip(results, names, strict=True)):
            if var.name == name:
                continue
            is_free = name not in b._used_names
            new = name if is_free else b.fresh(name)
            b._used_names.add(new)
            if is_free and var.name in made and var.name not in kept and var.name not in found:
                found[var.name] = new
            else:
                copied[k] = new
        b.statements[:] = [renamed(s, found) for s in b.statements]
        results = [Var(found.get(v.name, v.name), v.type) for v in results]
        return [
            b.apply(OPS["identity"], (v,), {}, copied[k]) if k in copied else v
            for k, v in enumerate(results)
        ]


def _array(leaf: Leaf, type: Any) -> np.ndarray:
    return held(leaf.value).astype(type.dtype.numpy, copy=False)


def result_name(leaf: Leaf, returned: Sequence[str]) -> str:
    """``loss``, or ``grads_Dense_0_kernel``: after what the function returns."""
    path = list(leaf.path)
    if len(returned) > 1 and path and path[0].isdigit() and int(path[0]) < len(returned):
        first = returned[int(path.pop(0))]
        if not first:
            return readable("_".join(["result", *leaf.path]))
    else:
        first = returned[0] if len(returned) == 1 and returned[0] else "result"
    return readable("_".join([first, *path]))


def returned_names(function: Any) -> list[str]:
    """What a function's last ``return`` names: a variable, or several; "" for anything else."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return []
    (definition,) = tree.body[:1] or (None,)
    if not isinstance(definition, ast.FunctionDef) or hasattr(function, "__wrapped__"):
        return []
    returns = [n for n in _own(definition) if isinstance(n, ast.Return) and n.value is not None]
    if not returns:
        return []
    value = returns[-1].value
    listed = value.elts if isinstance(value, ast.Tuple) else [value]
    return [n.id if isinstance(n, ast.Name) else "" for n in listed]


def _own(node: ast.AST) -> Any:
    """What is in a function, without what is in functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)
