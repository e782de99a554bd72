"""A graph of AOTAutograd's as a program, and what its placeholders and outputs are there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx

from opstep.api.program import Program, loads
from opstep.frontends.missing import Missing
from opstep.frontends.torch.aliases import View, take_views
from opstep.frontends.torch.body import Var
from opstep.frontends.torch.bounds import indices
from opstep.frontends.torch.definitions import Definitions, without_definition
from opstep.frontends.torch.dims import ConcreteSizes, Sizes, Symbols, hinted
from opstep.frontends.torch.drafts import Draft, Value, value_of
from opstep.frontends.torch.drawing import is_random, take_out
from opstep.frontends.torch.errors import OF_DATA, ImportFailed
from opstep.frontends.torch.fused_attention import single_attention
from opstep.frontends.torch.in_place import Line
from opstep.frontends.torch.inlining import drop_tokens
from opstep.frontends.torch.labels import Labels
from opstep.frontends.torch.modules import Call, set_root
from opstep.frontends.torch.pooling import drop_indices
from opstep.frontends.torch.products import fold_products
from opstep.frontends.torch.sources import frames_of, last_line
from opstep.frontends.torch.translator import Leaves, Translator
from opstep.frontends.torch.writing import Writer
from opstep.runtime.ir.graph import Graph, Module, Name, Return
from opstep.runtime.ir.printer import print_module


class _Forward(Translator):
    by_line = True


class _Backward(Translator):
    """Modules of PyTorch's own are no graphs: no line of the model is in them, and that of the call
    is what one looks for.
    """

    by_module = False

    def _called(self, call: Call, draft: Draft, env: dict[Value, Var]) -> bool:
        return not call.kind.startswith("torch.nn.") and super()._called(call, draft, env)


class Output(NamedTuple):
    """What AOTAutograd is given back. `kind`: ``result`` of the program, ``input`` (a placeholder),
    both by `index`, or ``value``: a number, which may be symbolic, or None. `view`: what is given
    of the result or input, where that is not the whole.
    """

    kind: str
    index: int = -1
    value: Any = None
    view: View | None = None

    def is_of_data(self) -> bool:
        """Whether a number of it depends on a tensor's elements."""
        numbers = (self.value, *(self.view.numbers() if self.view else ()))
        return any(isinstance(n, torch.SymInt) and hinted(n) is None for n in numbers)


class AtenGraph:
    """What is known of a graph before it is run.

    `inputs`: numbers of the placeholders that are inputs of the program; behind them come
    `constants`, tensors of the model. `drawn`: random numbers, which are arguments behind the
    others. `results`: what the program is to give.
    """

    def __init__(
        self, module: fx.GraphModule, name: str, labels: Labels, fallback: bool = False,
        changing: frozenset[Line] | None = None,
    ):  # fmt: skip
        """`name`: of the program's graph: ``forward``, ``backward`` or ``inference``. `fallback`:
        PyTorch runs single ops. `changing`: lines of the model that change tensors in place.
        """
        self.name, self.labels, self._changing = name, labels, changing
        self._leaves = without_definition() if fallback else None
        self.graph = _copied(module)
        self._module = module
        output = self.graph.output_node()
        returned: Any = output.args[0]
        self._returned = list(returned)
        self._names = [n.name if isinstance(n, fx.Node) else "" for n in returned]
        self._described = output.meta.get("desc") or [None] * len(self._names)
        drop_tokens(self.graph)
        seen = [k for k, d in enumerate(self._described) if not self._is_saved(d)]
        self._views = take_views(self.graph, seen)
        set_root(self.graph.nodes)
        self.drawn = take_out(self.graph)
        single_attention(self.graph)
        drop_indices(self.graph)
        fold_products(self.graph)
        self.placeholders = self.graph.find_nodes(op="placeholder")
        for node in self.placeholders:
            node.meta["label"] = label = labels.placeholder(node)
            if "." in label:  # a parameter or buffer
                node.meta["named"] = label
        self.is_dynamic = any(_is_symbolic(n.meta["val"]) for n in self.placeholders)
        self._look()
        # the forward has looked at those that the backward takes
        self.indices = () if name == "backward" else tuple(indices(self.graph))

    def _look(self) -> None:
        """Finds what the graph takes and gives."""
        self.results: list[Value] = []
        returned: Any = self.graph.output_node().args[0]
        self.outputs = [
            self._output(node)._replace(view=view)
            for node, view in zip(returned, self._views, strict=True)
        ]
        read = self._read()
        self.inputs = [k for k, n in enumerate(self.placeholders) if n in read]
        constants = [n for n in self.graph.find_nodes(op="get_attr") if n in read]
        self.constants = [getattr(self._module, str(n.target)) for n in constants]
        self.sources = [*(self.placeholders[k] for k in self.inputs), *constants]

    def _output(self, node: Any) -> Output:
        if not isinstance(node, fx.Node):
            return Output("value", value=node)
        if node.op == "placeholder":
            return Output("input", self.placeholders.index(node))
        if not isinstance(node.meta["val"], torch.Tensor):
            return Output("value", value=node.meta["val"])
        value = value_of(node)
        if value not in self.results:
            self.results.append(value)
        return Output("result", self.results.index(value))

    def _read(self) -> set[fx.Node]:
        """The nodes whose tensors the results are computed from."""
        live = Translator(self.graph, Symbols(), self.results)
        read = {v.node for n in live.tree.nodes() for v in live._reads(n)}
        return read | {v.node for v in self.results}

    def sizes(self, args: Sequence[Any]) -> Sizes:
        """What the symbols are in a call."""
        found: dict[Any, int] = {}
        for node, argument in zip(self.placeholders, args, strict=False):  # what is drawn is not
            for size, number in zip(_sizes(node.meta["val"]), _sizes(argument), strict=True):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    found[size.node.expr] = int(number)
        return found

    def expected(self, k: int) -> torch.Tensor:
        """PyTorch's k-th result, without elements."""
        value = self.results[k]
        found = value.node.meta["val"]
        return found if isinstance(found, torch.Tensor) else found[value.index]

    def saved(self) -> list[int]:
        """Numbers of the results that only the backward sees."""
        numbers = range(len(self.results)) if self.name == "forward" else ()
        return [k for k in numbers if self.is_kept(k)]

    def is_kept(self, k: int) -> bool:
        """Whether only the backward sees the k-th result."""
        return all("Saved" in type(d).__name__ or d is None for d in self._descriptions(k))

    def _is_saved(self, description: Any) -> bool:
        """Whether a result of that description is only for the backward."""
        return self.name == "forward" and "Saved" in type(description).__name__

    def hidden(self, k: int) -> str:
        """For whom the k-th result of a forward is, if the caller does not see it: the "backward",
        or "updates", where PyTorch overwrites an input with it. Else "".
        """
        found = {
            "backward"
            if "Saved" in type(d).__name__
            else "updates"
            if hasattr(d, "mutated_input")
            else ""
            for d in self._descriptions(k)
        }
        if self.name != "forward" or "" in found:
            return ""
        return min(found, default="")  # it lives as long as the backward needs it

    def _descriptions(self, k: int) -> list[Any]:
        """What PyTorch says that the k-th result is, for each time that it is given back."""
        pairs = zip(self.outputs, self._described, strict=False)
        return [d for o, d in pairs if o.kind == "result" and o.index == k]

    def updated(self) -> list[int]:
        """Numbers of the inputs that PyTorch overwrites with results once they are there."""
        found = [getattr(d, "mutated_input", None) for d in self._described]
        named = [n.meta.get("desc") for n in self.sources]
        return [k for k, d in enumerate(named) if d is not None and d in found]

    def devices(self) -> set[str]:
        """The kinds of devices that its tensors are on."""
        given = [n.meta["val"] for n in self.sources]
        made = [self.expected(k) for k in range(len(self.results))]
        return {t.device.type for t in (*given, *made)}

    # --- the program ---

    def program(self) -> Program | None:
        """One for all sizes; None where sizes cannot be kept open. Raises `ImportFailed` where ops
        have no counterpart.
        """
        nested = [n for n in self.placeholders if any(map(_is_ragged, _sizes(n.meta["val"])))]
        if nested:
            name = nested[0].meta["label"].partition(".size")[0]
            what = "nested tensors have no counterpart: pad them"
            raise ImportFailed([Missing(name, what, "", 0)])
        of_data = [
            Missing(f"the result {n.name}", OF_DATA, *last_line(frames_of(n)))
            for n, output in zip(self._returned, self.outputs, strict=True) if output.is_of_data()
        ]  # fmt: skip
        if of_data:
            raise ImportFailed(of_data)
        try:
            if not (self.is_dynamic and self._computes_numbers()):
                return self._program(Symbols())
        except _Unbound:
            pass
        except ImportFailed:
            if not self.is_dynamic:
                raise
        for n in self.placeholders:
            if None in map(hinted, _sizes(n.meta["val"])):
                raise ImportFailed([Missing(n.meta.get("label", n.name), OF_DATA, "", 0)])
        hints = [n.meta["val"] for n in self.placeholders]
        self.program_for(self.sizes([_hinted(h) for h in hints]))
        return None

    def _computes_numbers(self) -> bool:
        """From sizes: a mean's 1 / n, which is known where the sizes are."""
        return any(isinstance(n.meta.get("val"), torch.SymFloat) for n in self.graph.nodes)

    def program_for(self, sizes: Sizes) -> Program:
        """One for these sizes alone. Raises `ImportFailed`."""
        return self._program(ConcreteSizes(sizes))

    def _program(self, symbols: Symbols) -> Program:
        translator, main = self._translated(symbols, self._leaves)
        reasons = dict(translator.missing)
        definitions = Definitions()
        while definitions.expand(self.graph, translator.undefined):
            self._look()
            translator, main = self._translated(symbols, self._leaves)
        if translator.missing and self._leaves:
            translator, main = self._translated(symbols, lambda op: True)
        if translator.missing:
            wanted = {node.meta.get("defines", node): m for node, m in translator.missing}
            shown = [(reasons.get(node, m), m) for node, m in wanted.items()]
            raise ImportFailed([definitions.explained(*pair) for pair in shown])
        if main.unbound():
            raise _Unbound
        text = print_module(Module(tuple(self._written(translator, main))))
        return _loaded(text, self.name, self._changing)

    def _translated(self, symbols: Symbols, leaves: Leaves | None) -> tuple[Translator, Draft]:
        kind = _Backward if self.name == "backward" else _Forward
        saved = [self.results[k] for k in self.saved()]
        translator = kind(self.graph, symbols, self.results, leaves=leaves, saved=saved)
        main = translator.translate([Value(n) for n in self.sources], self.results)
        for node in translator.tree.nodes():
            if is_random(node.target) and node.target is not torch.ops.aten.native_dropout.default:
                translator._note(node, "its random numbers depend on data")
        return translator, main

    def _written(self, translator: Translator, main: Draft) -> list[Graph]:
        from opstep.kernels.stdlib import library

        used = {name for module in library() for name in module.graphs}
        is_backward = self.name == "backward"
        forward = self.labels.values if is_backward else None
        ending = "_backward" if is_backward else ""
        writer = Writer(translator.drafts, set(), used, ending, forward)
        inputs = {
            v.name: self.labels.placeholder(n)
            for v, n in zip(main.inputs, self.sources, strict=True)
        }
        first, *others = writer.write(main, {}, inputs, self._labels())
        self._keep_names(first)
        if not is_backward:
            found = writer.nodes(main).items()
            self.labels.values = {
                v.node.meta.get("in_joint", ""): site.rpartition("/")[2]
                for site, v in found if not v.index
            }  # fmt: skip
        body = first.body if self.results else first.body[:-1]  # nothing is returned
        return [replace(first, name=Name(self.name), body=body), *others]

    def _labels(self) -> list[str]:
        """What results are to be called."""
        found = [""] * len(self.results)
        for output, described in zip(self.outputs, self._described, strict=False):
            if output.kind == "result":
                found[output.index] = found[output.index] or self.labels.result(described)
        return found

    def _keep_names(self, graph: Graph) -> None:
        """For the backward, which takes some results as inputs."""
        returned = next((s.values for s in graph.body if isinstance(s, Return)), ())
        for name, output in zip(self._names, self.outputs, strict=True):
            if output.kind == "result" and output.view is None:
                self.labels.saved[name] = returned[output.index].text


def is_gradient(node: fx.Node) -> bool:
    """Whether a placeholder of a backward is the gradient of a result."""
    return type(node.meta.get("desc")).__name__ == "TangentAOTInput"


def _copied(module: fx.GraphModule) -> fx.Graph:
    """The graph, to be changed: PyTorch runs its own where ours cannot be made."""
    graph = fx.Graph(owning_module=module)
    returned = graph.graph_copy(module.graph, {})
    output = graph.output(returned)
    output.meta = dict(module.graph.output_node().meta)
    for node in graph.find_nodes(op="get_attr"):
        node.meta.setdefault("val", getattr(module, str(node.target)))
    return graph


class _Unbound(Exception):
    """A symbol that is no size of an input."""


def _sizes(value: Any) -> Sequence[Any]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)


def _is_ragged(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and size.node.is_nested_int()


def _is_symbolic(value: Any) -> bool:
    return any(isinstance(s, torch.SymInt | torch.SymFloat) for s in _sizes(value))


def _hinted(value: Any) -> Any:
    """A tensor or number with the sizes that it had when it was traced."""
    sizes = list(map(hinted, _sizes(value)))
    return torch.empty(sizes, device="meta") if isinstance(value, torch.Tensor) else sizes[0]


_programs: dict[tuple[str, frozenset[Line] | None], Program] = {}


def _loaded(text: str, name: str, changing: frozenset[Line] | None) -> Program:
    """The program of a text: what is compiled again gives the same one, with its plans."""
    key = hashlib.sha256(text.encode()).hexdigest()
    if (key, changing) not in _programs:
        program = loads(text, f"{name}-{key[:8]}.opg", fallback="torch")
        program.changed_in_place = changing
        _programs[key, changing] = program
    return _programs[key, changing]
