"""From a graph of ATen ops to graphs of ours: one for each kind of module that is called.

Values are numbered while a graph is written, so that two calls of alike modules give equal bodies;
those are one graph, which is called twice. Names come last (`writing`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from opstep.frontends.missing import Missing
from opstep.frontends.torch import fallback as pytorch
from opstep.frontends.torch.body import Body, Mismatch, Var
from opstep.frontends.torch.control import CONTROL
from opstep.frontends.torch.dims import Symbols, memory_order
from opstep.frontends.torch.drafts import Draft, Made, Value, value_of
from opstep.frontends.torch.errors import Disagreement, Refused, Untranslatable
from opstep.frontends.torch.inlining import live_nodes
from opstep.frontends.torch.modules import Call, call_tree, split_frames
from opstep.frontends.torch.probing import check_types
from opstep.frontends.torch.recurrent import RECURRENT, places_in_result
from opstep.frontends.torch.rules.registry import RULES, check_alike, key_of
from opstep.frontends.torch.sources import (
    Frame,
    frames_of,
    label,
    last_line,
    library_line,
    origin,
    relative,
)  # fmt: skip
from opstep.runtime.ir.types import TensorType, f32

CHECKS = {  # of sizes: what the types say anyway
    "_assert_tensor_metadata.default", "_assert_scalar.default", "sym_constrain_range.default",
    "sym_constrain_range_for_size.default",
}  # fmt: skip
ASSERTS = {"_assert_async.default", "_assert_async.msg", "_linalg_check_errors.default"}
COMPARISONS = {
    operator.gt: "greater", operator.ge: "greater_equal", operator.lt: "less",
    operator.le: "less_equal", operator.eq: "equal", operator.ne: "not_equal",
}  # fmt: skip
ITEMS = {"item.default", "_local_scalar_dense.default"}

ANY = TensorType(f32, ())  # in place of what has no type here: the import fails

Leaves = Callable[[Any], bool]


class Translator:
    """Translates one fx graph. `missing` has what could not be. `around`: the translator of the
    graph that this one is a part of, as the branch of a `cond` is. `leaves`: whether an op
    without a counterpart is left to PyTorch (`fallback`); `left` has those that are. `saved`: those
    of the outputs that are only for a backward. `tries`: whether PyTorch may be asked by a call
    which element types an op takes.
    """

    by_module = True  # whether a small module's only result is called after it
    by_line = False  # whether what calls a module tells its calls apart: nothing else does

    def __init__(
        self, graph: fx.Graph, symbols: Symbols, outputs: Sequence[Value],
        around: Translator | None = None, leaves: Leaves | None = None,
        saved: Collection[Value] = (), tries: bool = True,
    ):  # fmt: skip
        self.symbols = symbols
        self._tries = around._tries if around else tries
        self._leaves = around._leaves if around else leaves
        self.left: list[fx.Node] = around.left if around else []
        self.missing: list[tuple[fx.Node, Missing]] = around.missing if around else []
        # in the order in which they were first called
        self.drafts: list[Draft] = around.drafts if around else []
        self._known: dict[tuple, Draft] = around._known if around else {}
        self._seeds: Iterator[int] = around._seeds if around else count()
        # ops that another definition may help
        self.undefined: set[Any] = around.undefined if around else set()
        self._broken: set[Value] = set()  # what could not be translated, or depends on it
        live = live_nodes([*(v.node for v in outputs), *filter(_acts, graph.nodes)])
        nodes = [n for n in graph.nodes if n.op == "call_function" and n in live]
        self.tree = call_tree((n for n in nodes if self._makes_tensors(n)), self.by_line)
        named = (n for n in graph.nodes if n.meta.get("named") is not None)
        self._places = {n: k for k, n in enumerate(named)}
        self._position = {n: k for k, n in enumerate(self.tree.nodes())}
        self._last_use = self._last_uses(outputs)
        self._last_own_use = self._last_uses([v for v in outputs if v not in saved])
        self._spans: dict[Call, tuple[int, int]] = {}

    # --- what is where ---

    def _makes_tensors(self, node: fx.Node) -> bool:
        if node.target is getitem:
            return False
        found = node.meta.get("val")
        return not isinstance(
            found, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool
        )

    def _last_uses(self, outputs: Sequence[Value]) -> dict[Value, int]:
        found: dict[Value, int] = {}
        for node, k in self._position.items():
            for value in self._reads(node):
                found[value] = k
        found.update(dict.fromkeys(outputs, len(self._position)))
        return found

    def _reads(self, node: fx.Node) -> Iterator[Value]:
        for argument in node.all_input_nodes:
            found = argument.meta.get("val")
            if _is_item(argument):
                yield value_of(argument.args[0])  # pyright: ignore[reportArgumentType]
            elif isinstance(found, list | tuple) and argument.target is not getitem:
                yield from (Value(argument, k) for k in range(len(found)))
            elif isinstance(found, torch.SymBool):
                yield from self._reads(argument)
            elif isinstance(found, torch.Tensor):
                yield value_of(argument)

    def _span(self, call: Call) -> tuple[int, int]:
        if call not in self._spans:
            positions = [self._position[n] for n in call.nodes()]
            self._spans[call] = (min(positions), max(positions) + 1)
        return self._spans[call]

    def _is_outside(self, value: Value, call: Call) -> bool:
        first, _ = self._span(call)
        return self._position.get(value.node, -1) < first

    def _inputs(self, call: Call) -> list[Value]:
        """What a call reads from outside: values in the order of first use, then named tensors in
        the model's own.
        """
        found = {v: None for n in call.nodes() for v in self._reads(n) if self._is_outside(v, call)}
        return sorted(found, key=lambda v: self._places.get(v.node, -1))

    def _outputs(self, call: Call) -> list[Value]:
        """What others read of what a call makes: what it returns before what is only saved."""
        _, end = self._span(call)
        found = []
        for node in call.nodes():
            for k in range(len(_results(node))):
                if self._last_use.get(Value(node, k), -1) >= end:
                    found.append(Value(node, k))
        return sorted(found, key=lambda v: not self._is_returned(v, end))

    def _is_returned(self, value: Value, end: int) -> bool:
        """Whether what is behind a call's end reads it, not only the backward."""
        return self._last_own_use.get(value, -1) >= end

    # --- writing ---

    def translate(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Draft:
        """The graph of the whole."""
        return self._draft(self.tree, inputs, outputs)

    def part(self, module: fx.GraphModule, title: str, returned: int) -> Draft:
        """The graph of a function that an op of control flow calls. Its last `returned` inputs are
        results, too.
        """
        inputs = [Value(n) for n in module.graph.nodes if n.op == "placeholder"]
        if not all(isinstance(v.node.meta.get("val"), torch.Tensor) for v in inputs):
            raise Untranslatable("an operand of control flow that is no tensor")
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        outputs = [value_of(n) for n in pytree.tree_leaves(output.args)]
        outputs += inputs[len(inputs) - returned :]
        draft = Translator(module.graph, self.symbols, outputs, self).translate(inputs, outputs)
        draft.title = title
        if draft.unbound():
            raise Untranslatable("a size that no operand of control flow has")
        return self._shared(draft)

    def written(
        self, title: str, inputs: Sequence[tuple[str, TensorType]],
        write: Callable[..., Sequence[Var]],
    ) -> Draft:  # fmt: skip
        """A graph that no function of the model's is: ``write(body, *inputs)`` writes it, and gives
        its results.
        """
        body = Body()
        body.part = self.written
        made = [body.value(type, name) for name, type in inputs]
        draft = Draft("", Call("", "", 0), made, [], body, [], title=title)
        draft.results = list(write(body, *made))
        if draft.unbound():
            raise Untranslatable("a size that no operand has alone")
        return self._shared(draft)

    def _draft(self, call: Call, inputs: Sequence[Value], outputs: Sequence[Value]) -> Draft:
        body = Body()
        made = [body.value(self._declared(v), "x") for v in inputs]
        env: dict[Value, Var] = dict(zip(inputs, made, strict=True))
        draft = Draft(f"%g{len(self.drafts)}", call, made, list(inputs), body, [])
        self._items(call, draft, env)
        draft.results = [env[v] for v in outputs]
        body.merge_reshapes({v.name for v in draft.results})
        return draft

    def _items(self, call: Call, draft: Draft, env: dict[Value, Var]) -> None:
        for item in call.items:
            if isinstance(item, fx.Node):
                self._op(item, call, draft, env)
            elif item.inlined or not self._called(item, draft, env):
                self._items(item, draft, env)

    def _called(self, call: Call, draft: Draft, env: dict[Value, Var]) -> bool:
        """Writes a call of the module's graph; False where it cannot be a graph of its own."""
        inputs, outputs = self._inputs(call), self._outputs(call)
        if not outputs:  # it only asserts something
            return False
        before = len(self.drafts)
        inner = self._draft(call, inputs, outputs)
        if inner.unbound():
            del self.drafts[before:]
            self._known = {k: d for k, d in self._known.items() if d in self.drafts}
            return False
        known = self._shared(inner)
        frames = self._frames(next(call.nodes()), draft.call, call)
        inside = relative(call.path, draft.call.path)
        draft.body.at = origin(frames, inside)
        results = draft.body.call(
            known.name, [env[v] for v in inputs], [v.type for v in inner.results]
        )
        env.update(zip(outputs, results, strict=True))
        draft.calls[results[0].name] = known.name, inner
        _, end = self._span(call)
        own = [v for v in outputs if self._is_returned(v, end)] or outputs
        made = tuple(env[v] for v in own)
        places = places_in_result(own) if call.kind in RECURRENT else ()
        draft.made.append(Made(frames, made, is_call=True, places=places))
        for result in results:
            stem = label(inside) if self.by_module else ""
            draft.body.stems[result.name] = stem or call.class_name.lower()
        return True

    def _shared(self, draft: Draft) -> Draft:
        """The draft that does the same, if there is one already."""
        known = self._known.setdefault(draft.key, draft)
        if known is draft:
            draft.name = f"%g{len(self.drafts)}"
            self.drafts.append(draft)
        return known

    def _op(self, node: fx.Node, call: Call, draft: Draft, env: dict[Value, Var]) -> None:
        body = draft.body
        frames = self._frames(node, draft.call)
        body.at = origin(frames, relative(call.path, draft.call.path))
        begin = len(body.statements), len(body.stems)
        try:
            results = self._translated(node, body, env)
        except (Untranslatable, Mismatch) as error:
            body.cut(*begin)
            is_cause = self._broken.isdisjoint(self._reads(node))
            if is_cause:
                self._note(node, str(error))
            ends = isinstance(error, Disagreement | Refused)
            if not ends and (is_cause or not _is_known(node)):
                self.undefined.add(node.target)
            results = [
                None if t is None else self._stand_in(Value(node, k), body)
                for k, t in enumerate(_results(node))
            ]
        env.update({Value(node, k): v for k, v in enumerate(results) if v is not None})
        for k, v in enumerate(results):
            if v is not None:
                draft.nodes.setdefault(v.name, Value(node, k))
        own = tuple(v for v in results if v is not None)
        if own:
            values = [Value(node, k) for k, v in enumerate(results) if v is not None]
            draft.made.append(Made(frames, own, places=places_in_result(values)))
            if self.by_module and call is not draft.call and len(own) == 1:
                stem = label(relative(call.path, draft.call.path))
                body.stems[own[0].name] = stem or body.stems[own[0].name]

    def _stand_in(self, value: Value, body: Body) -> Var:
        """For what could not be translated, so that the rest is looked at, too."""
        self._broken.add(value)
        return body.value(self._type_or_any(value), "x")

    def _translated(
        self, node: fx.Node, body: Body, env: Mapping[Value, Var]
    ) -> Sequence[Var | None]:
        key = key_of(node.target)
        if key in CHECKS and not _is_assert(node):
            return []
        if not self._broken.isdisjoint(self._reads(node)):
            raise Untranslatable("an operand could not be translated")
        self._describe(node, body)
        if key in CHECKS:
            condition = self._condition(node.args[0], body, env)
            RULES["_assert_async.msg"](body, condition, "the model's check of a number it computes")
            return []
        if key in CONTROL:
            return CONTROL[key](self.part, node, body, lambda a: self._argument(a, env))
        begin = len(body.statements), len(body.stems)
        try:
            return self._by_rule(key, node, body, env)
        except (Untranslatable, Mismatch) as error:
            there_is_more = not isinstance(error, Disagreement)  # a definition will be tried
            if isinstance(error, Refused) or self._leaves is None:
                raise
            if there_is_more and not self._leaves(node.target):
                raise
            body.cut(*begin)
            self.left.append(node)
            return pytorch.statement(node, body, lambda a: self._argument(a, env), error)

    def _by_rule(
        self, key: str, node: fx.Node, body: Body, env: Mapping[Value, Var]
    ) -> Sequence[Var | None]:
        if self._tries:
            check_types(node)
        if not _is_known(node):
            raise Untranslatable("there is no op for it")
        args = [self._argument(a, env) for a in node.args]
        kwargs = {k: self._argument(a, env) for k, a in node.kwargs.items()}
        check_alike(key, (*args, *kwargs.values()))
        found = RULES[key](body, *args, **kwargs)
        if found is None:
            return []
        listed = (
            list(found)
            if isinstance(found, tuple | list) and not isinstance(found, Var)
            else [found]
        )
        listed += [None] * (len(body.expected) - len(listed))
        for k, result in enumerate(listed):
            if result is None and self._last_use.get(Value(node, k), -1) >= 0:
                raise Untranslatable(f"its result {k + 1} has no counterpart")
        return [
            None if r is None else body.conformed(r, e)
            for r, e in zip(listed, body.expected, strict=False)
        ]

    def _describe(self, node: fx.Node, body: Body) -> None:
        """Tells rules what they cannot see in their arguments."""
        found = _results(node)
        body.expected = tuple(
            self.symbols.type_of(t) if isinstance(t, torch.Tensor) else None for t in found
        )
        body.used = tuple(self._last_use.get(Value(node, k), -1) >= 0 for k in range(len(found)))
        body.seeds, body.part = self._seeds, self.written
        first = node.args[0] if node.args else None
        value = first.meta.get("val") if isinstance(first, fx.Node) else None
        body.memory_order = memory_order(value) if isinstance(value, torch.Tensor) else None

    def _argument(self, argument: Any, env: Mapping[Value, Var]) -> Any:
        """An argument of an ATen op as rules take it."""
        if isinstance(argument, list | tuple):
            return [self._argument(a, env) for a in argument]
        if not isinstance(argument, fx.Node):
            return argument
        found = argument.meta.get("val")
        if isinstance(found, torch.SymFloat) and _is_item(argument):
            return env[value_of(argument.args[0])]  # pyright: ignore[reportArgumentType]
        if isinstance(found, torch.SymInt):
            return self.symbols.dim(found)
        if isinstance(found, int | float | bool):
            return found
        if isinstance(found, torch.SymFloat | torch.SymBool):
            return self.symbols.number(found)
        value = value_of(argument)
        if isinstance(found, list | tuple) and argument.target is not getitem:
            return [env[Value(argument, k)] for k in range(len(found))]
        if value not in env:
            raise Untranslatable("an operand could not be translated")
        return env[value]

    def _condition(self, node: Any, body: Body, env: Mapping[Value, Var]) -> Var:
        """A comparison of numbers that the model computes."""
        if node.target not in COMPARISONS:
            raise Untranslatable("a check of a number that is computed while the model runs")
        arguments: Any = node.args
        items = (isinstance(a, fx.Node) and _is_item(a) for a in arguments)
        sides = [
            env[value_of(a.args[0])] if item else a
            for a, item in zip(arguments, items, strict=True)
        ]
        if any(isinstance(a, fx.Node) for a in sides):
            raise Untranslatable("a check of a number that is computed while the model runs")
        computed = next(a for a in sides if isinstance(a, Var))
        return body.binary(COMPARISONS[node.target], *sides, dtype=computed.dtype)

    def _type(self, value: Value) -> TensorType:
        return self.symbols.type_of(_results(value.node)[value.index])

    def _declared(self, value: Value) -> TensorType:
        """The type of a graph's input."""
        try:
            return self._type(value)
        except Untranslatable as error:
            node = value.node
            if node.op == "placeholder":
                what = node.meta.get("named") or node.meta.get("label") or node.name
                frames = next(filter(None, map(frames_of, node.users)), ())
                self.missing.append((node, Missing(what, str(error), *last_line(frames))))
            self._broken.add(value)
            return ANY

    def _type_or_any(self, value: Value) -> TensorType:
        """A type, where what is missing is noted anyway."""
        try:
            return self._type(value)
        except (Untranslatable, AttributeError):
            return ANY

    def _note(self, node: fx.Node, reason: str) -> None:
        line = last_line(frames_of(node))
        target: Any = node.target
        name = str(target) if hasattr(target, "_schema") else key_of(target) or str(target)
        self.missing.append((node, Missing(name, reason, *line)))

    def _frames(self, node: fx.Node, graph: Call, upto: Call | None = None) -> tuple[Frame, ...]:
        """The frames of a node that belong to a graph's module; with `upto`, those that lead to
        that call.
        """
        if upto is None:
            found = split_frames(node, graph.chain())[-1]
        else:
            split = split_frames(node, upto.chain())
            found = tuple(f for part in split[graph.depth : -1] for f in part)
        return found or library_line(node.meta.get("stack_trace") or "")


def _results(node: fx.Node) -> Sequence[Any]:
    found = node.meta.get("val")
    return found if isinstance(found, list | tuple) else (found,)


def _acts(node: fx.Node) -> bool:
    """Whether it does something though nothing reads its results: it asserts, or PyTorch knows that
    it has an effect, such as printing. Marks for PyTorch's profiler are none.
    """
    if _is_assert(node) or "effect" in node.meta:
        return True
    is_op = isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
    is_mark = key_of(node.target) in CHECKS or getattr(node.target, "namespace", "") == "profiler"
    return is_op and not is_mark and node.is_impure(impure_random=False)


def _is_assert(node: fx.Node) -> bool:
    """Whether it asserts something of what is computed."""
    key = key_of(node.target)
    if key != "_assert_scalar.default":
        return key in ASSERTS
    (condition,) = node.args[:1]
    return isinstance(condition, fx.Node) and any(map(_is_item, condition.all_input_nodes))


def _is_item(node: fx.Node) -> bool:
    return node.op == "call_function" and key_of(node.target) in ITEMS


def _is_known(node: fx.Node) -> bool:
    key = key_of(node.target)
    return key in RULES or key in CONTROL or key in CHECKS
