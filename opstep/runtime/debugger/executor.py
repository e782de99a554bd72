"""Runs ops on a device, one at a time, for the debugger's machine; keeps and recomputes values.

With ``alloc=fresh`` each result has memory of its own. With ``alloc=reuse`` results lie where the
plan puts them, in one arena for each activation, so what a run would overwrite is overwritten here
too; a value whose bytes are gone is computed again into memory of its own when somebody looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Arena, Node, Producer
from opstep.runtime.debugger.meeting import MetProducer
from opstep.runtime.device.cpu.host_statistics import Rent, statistics_words
from opstep.runtime.device.errors import error_in, error_of_op
from opstep.runtime.device.protocols import Device, Memory, Stream
from opstep.runtime.device.routine import BoundCall
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Policy
from opstep.runtime.statistics import ENABLED, RECORD, WORDS, Statistics, decode, step_for

SPARED = 64  # of the nodes made last, none is dropped
HOST_CHECKED = 1 << 16  # elements up to which the host looks for NaNs itself, if it can


class Executor:
    """Of one run. `budget`: bytes that results may hold together before old ones are dropped.
    `all_ranks`: the executors of those whose values this one may need.
    """

    def __init__(
        self, device: Device, policy: Policy, budget: int,
        all_ranks: Callable[[], Iterable[Executor]] = tuple,
    ):  # fmt: skip
        self.device = device
        self.policy = policy
        self.budget = budget
        self.all_ranks = all_ranks
        self.bytes_held = 0
        self.computed = 0  # ops that were run, recomputed ones too
        self.streams: list[Stream] = [device.stream()]
        self._nodes: deque[Node] = deque()
        self._arenas: dict[int, Arena] = {}  # by the id of their memory, which they keep
        self._busy: list[Any] = []  # what work that is under way uses
        self._scratch: dict[str, Memory] = {}
        self._constants: dict[tuple, Node] = {}

    # --- values from outside ---

    def new_node(self, t: TensorType, array: Any, name: str) -> Node:
        """A node that holds a copy of an array, or a number for each element."""
        memory = self.device.alloc(t.nbytes, "values under the debugger")
        self.device.write(memory, 0, t, array)
        return Node(t, name, memory)

    def constant(self, t: TensorType, number: int | float) -> Node:
        key = (t, repr(number))
        if key not in self._constants:
            self._constants[key] = self.new_node(t, number, repr(number))
        return self._constants[key]

    def literal(self, node: Node) -> float | None:
        """The number that a constant is of, before it was rounded to its type."""
        key = (node.type, node.name)
        return float(node.name) if self._constants.get(key) is node else None

    def copied(self, memory: Memory) -> Memory:
        """Other memory with the same bytes."""
        self.settle()
        copy = self.device.alloc(memory.nbytes, "values under the debugger")
        stream = self.streams[0]
        stream.submit(self.device.copy(memory.address, copy.address, memory.nbytes))
        stream.synchronize()
        return copy

    # --- reading ---

    def array(self, node: Node) -> np.ndarray:
        """All elements, on the host: not to be written to."""
        self.ensure(node)
        self.settle()
        found = self.device.read(node.memory, node.offset, node.type)
        found = found.view()
        found.flags.writeable = False
        return found

    def arrays(self, nodes: Iterable[Node | None]) -> list[Any]:
        """Likewise of several, such as the operands of an op: None for one that is absent."""
        return [None if node is None else self.array(node) for node in nodes]

    def operands(self, producer: Producer) -> list[Any]:
        """The arrays that an op took: None for one that is absent, also after the last."""
        found = self.arrays(producer.operands)
        return found + [None] * (len(producer.step.operand_types) - len(found))

    def part(self, node: Node, first: int, count: int) -> np.ndarray:
        """Elements of the flattened tensor; nothing else is copied."""
        self.ensure(node)
        self.settle()
        dtype = node.type.dtype
        t = TensorType(dtype, (count,))
        found = self.device.read(node.memory, node.offset + first * dtype.itemsize, t).view()
        found.flags.writeable = False
        return found

    def statistics(self, node: Node) -> Statistics:
        """Taken on the device, once."""
        if node.figures is None:
            self.ensure(node)
            self.settle()
            filled = self.policy.fill == "nan" and node.producer is not None
            step, types = step_for(node.type, filled)
            launches, size = self.device.prepare(step, types)
            words = self._words_by_host(node, filled, launches)
            if words is not None:
                node.figures = decode(words, node.type.dtype)
                return node.figures
            enabled = self.constant(ENABLED, 1)
            record = self._reused("record", WORDS * 8)
            scratch = self._reused("statistics", size)
            addresses = [node.address, enabled.address, record.address]
            self.device.run_now(self.device.bind(launches, addresses, scratch.address))
            node.figures = decode(self.device.read(record, 0, RECORD), node.type.dtype)
        return node.figures

    def _words_by_host(self, node: Node, filled: bool, launches: list[Any]) -> np.ndarray | None:
        """The same words, where the device would have to compile first and the host sees them."""
        if not self.device.in_host_memory or not self.device.uncompiled(launches):
            return None
        array = self.array(node)
        if Rent.exceeds_a_kernel(array):
            self.device.compile_ahead(launches)
        return statistics_words(array, filled)

    def nonfinite(self, node: Node) -> tuple[bool, bool]:
        """Whether an element is NaN, and whether one is infinite."""
        dtype = node.type.dtype
        if not dtype.is_float:
            return False, False
        if node.figures is None and self.device.in_host_memory and dtype.itemsize > 2:
            array = self.array(node)
            if array.size <= HOST_CHECKED:
                if np.isfinite(array).all():
                    return False, False
                return bool(np.isnan(array).any()), bool(np.isinf(array).any())
        s = self.statistics(node)
        return s.nan > 0, s.posinf + s.neginf > 0

    def _reused(self, what: str, nbytes: int) -> Memory:
        memory = self._scratch.get(what)
        if memory is None or memory.nbytes < nbytes:
            memory = self._scratch[what] = self.device.alloc(max(nbytes, 1))
        return memory

    # --- running ---

    def run(self, producer: Producer, names: list[str], stream: int = 0, slots=None) -> None:
        """Computes an op's results, which become nodes. `slots`: the arena and, for each result
        and then for the working memory, its offset there.
        """
        nodes = self._results(producer, names)
        if producer.op.traits.reinterprets:
            self._view(producer)
            return
        self._execute(producer, nodes, stream, slots)
        self._evict()

    def begin(
        self, producer: Producer, names: list[str], slots=None
    ) -> tuple[list[Any], Memory | None]:
        """Like `run`, but leaves the launches to the caller: one at a time (`launch`). Their
        working memory has to live until the last is done.
        """
        nodes = self._results(producer, names)
        self.settle()
        bound, kept = self._prepared(producer, nodes, 0, slots, own=True)
        self.computed += 1
        self.streams[0].synchronize()
        return bound, kept

    def launch(self, producer: Producer, one: Any) -> None:
        """One launch of an op, to its end."""
        try:
            self.device.run_now([one])
        except DeviceError as error:
            raise error_of_op(producer.plan, producer.step, error, 0) from None

    def _results(self, producer: Producer, names: list[str]) -> tuple[Node, ...]:
        plan, step = producer.plan, producer.step
        types = [plan.values[v].type for v in step.results]
        producer.results = tuple(
            Node(t, n, None, 0, producer, k)
            for k, (t, n) in enumerate(zip(types, names, strict=True))
        )
        for operand in producer.sources:
            if operand is not None and operand.memory is None:
                self.ensure(operand)
        return producer.results

    def _execute(self, producer: Producer, nodes, stream: int = 0, slots=None) -> None:
        if isinstance(producer, MetProducer):
            self._met(producer, nodes, slots)
            return
        bound, kept = self._prepared(producer, nodes, stream, slots)
        if bound:
            self.streams[stream].submit(self.device.capture(bound))
            self.computed += 1
        self.wait(producer, stream)
        if self.policy.sync != "op":
            self._busy.append((bound, kept, producer))

    def _prepared(
        self, producer: Producer, nodes, stream: int, slots, own: bool = False
    ) -> tuple[list[Any], Memory | None]:
        """An op's launches over memory that results have now, and its own working memory."""
        self._assign_memory(nodes, slots)
        scratch, kept = self._workspace(producer, slots, own)
        bound = self.bound(producer, nodes, scratch)
        self._fill(producer, nodes, stream)
        if slots is not None:
            self._claim(producer, nodes, slots)
        return bound, kept

    def _met(self, producer: MetProducer, nodes: Sequence[Node], slots) -> None:
        """Computes the result of a collective for this rank."""
        self.settle()  # what was queued may compute operands, or read the memory of the result
        array = producer.meeting.result(producer.index)
        self._assign_memory(nodes, slots)
        (node,) = nodes
        self.device.write(node.memory, node.offset, node.type, array)
        self.computed += 1
        if slots is not None:
            self._claim(producer, nodes, slots)

    def _assign_memory(self, nodes: Sequence[Node], slots) -> None:
        """Gives results their memory."""
        for k, node in enumerate(nodes):
            if slots is not None:
                node.memory, node.offset = slots[0].memory, slots[1][k]
                continue
            nbytes: Any = node.type.nbytes  # concrete here
            node.memory, node.offset = self.device.alloc(nbytes, "values under the debugger"), 0
            node.owned = nbytes
            self.bytes_held += nbytes
            self._nodes.append(node)

    def _fill(self, producer: Producer, nodes: Sequence[Node], stream: int) -> None:
        if self.policy.fill != "nan":
            return
        operands = {(o.memory, o.offset) for o in producer.operands if o is not None}
        for node in nodes:
            if (node.memory, node.offset) not in operands:  # else it takes over an operand's
                fill = self.device.fill(node.memory, node.offset, node.type.nbytes, node.type.dtype)
                self.streams[stream].submit(fill)

    def bound(self, producer: Producer, nodes, scratch: Any) -> list[Any]:
        """The op's launches with addresses."""
        step = producer.step
        if not step.launches:
            return []
        addresses = [0 if o is None else o.address for o in producer.operands]
        addresses += [0] * (len(step.operand_types) - len(addresses))
        addresses += [n.address for n in nodes]
        bound = self.device.bind(step.launches, addresses, scratch)
        for call in bound:
            if isinstance(call, BoundCall) and (step.op.traits.foreign or step.is_joined):
                call.located = partial(error_in, producer.plan, step)  # no kernel of ours
        return bound

    def _workspace(
        self, producer: Producer, slots, own: bool = False
    ) -> tuple[int, Memory | None]:  # fmt: skip
        """The address of an op's working memory, and that where it is the op's own."""
        step = producer.step
        if step.workspace < 0:
            return 0, None
        if slots is not None and slots[2] >= 0:
            return slots[0].memory.address + slots[2], None
        nbytes = producer.plan.buffers[step.workspace].nbytes
        if self.policy.sync == "op" and not own:
            return self._reused("workspace", nbytes).address, None
        memory = self.device.alloc(nbytes, "working memory")
        return memory.address, memory

    def _claim(self, producer: Producer, nodes, slots) -> None:
        arena, offsets, workspace = slots
        if workspace >= 0:
            nbytes = producer.plan.buffers[producer.step.workspace].nbytes
            arena.claim(workspace, nbytes, None)
        for node, offset in zip(nodes, offsets, strict=True):
            arena.claim(offset, node.type.nbytes, node)

    def wait(self, producer: Producer, stream: int) -> None:
        """After an op: with ``sync=op`` the host waits, and what went wrong is that op's doing."""
        if self.policy.sync != "op":
            return
        for k, other in enumerate(self.streams):
            if k != stream:
                other.start()
        try:
            self.device.wait_for_op(self.streams[stream])
        except DeviceError as error:
            raise error_of_op(producer.plan, producer.step, error, stream) from None

    def settle(self) -> None:
        """Everything that was queued is done."""
        if not self._busy:
            return
        for stream in self.streams:
            stream.start()
        for stream in self.streams:
            stream.synchronize()
        self._busy.clear()

    def on(self, stream: int) -> Stream:
        """The stream of that number."""
        while len(self.streams) <= stream:
            self.streams.append(self.device.stream())
        return self.streams[stream]

    def keep_alive(self, what: Any) -> None:
        """This must live until all that was queued is done."""
        self._busy.append(what)

    # --- computing again ---

    def ensure(self, node: Node) -> None:
        """Computes what was dropped, and what that needs."""
        if node.memory is not None:
            return
        for executor in (self, *self.all_ranks()):
            executor.settle()
        pending = [node]
        while pending:
            last = pending[-1]
            if last.memory is not None:
                pending.pop()
                continue
            producer = last.producer
            assert producer is not None, "what came from outside is never dropped"
            missing = [o for o in producer.sources if o is not None and o.memory is None]
            if missing:
                pending += missing
                continue
            self._recompute(producer)
            pending.pop()
        self.settle()

    def _recompute(self, producer: Producer) -> None:
        if producer.op.traits.reinterprets:
            self._view(producer)
            return
        # those that are still there keep their bytes: work under way may read them
        targets = [
            n if n.memory is None else Node(n.type, n.name, producer=producer)
            for n in producer.results
        ]
        self._execute(producer, targets)

    def _view(self, producer: Producer) -> None:
        """A result that is its operand's memory under another shape."""
        source, node = producer.operands[0], producer.results[0]
        assert source is not None
        node.memory, node.offset = source.memory, source.offset
        arena = self._arenas.get(id(source.memory))
        if arena is not None:
            arena.share(node)
        else:
            self._nodes.append(node)

    def arena(self, nbytes: int) -> Arena:
        """Memory for the results of an activation."""
        arena = Arena(self.device.alloc(nbytes, "an arena under the debugger"))
        self._arenas[id(arena.memory)] = arena
        return arena

    def _evict(self) -> None:
        """Drops old results that can be computed again, every second, fourth … of them spared."""
        if self.bytes_held <= self.budget:
            return
        self.settle()
        while self.bytes_held > self.budget * 3 // 4:
            left: deque[Node] = deque()
            recent = len(self._nodes) - SPARED
            for k, node in enumerate(self._nodes):
                if node.memory is None or node.producer is None:
                    self.bytes_held -= node.owned
                    node.owned = 0
                    continue
                if k >= recent or k % 2:
                    left.append(node)
                else:
                    self.drop(node)
            self._nodes = left
            if len(left) <= SPARED:
                return

    def forget(self, producers: Set[int], arenas: Set[int]) -> None:
        """Results of other ops than these, by their ids, are no longer counted: nobody goes back
        to them, and here they would stay. Likewise other arenas.
        """
        self._arenas = {k: a for k, a in self._arenas.items() if id(a) in arenas}
        left: deque[Node] = deque()
        for node in self._nodes:
            if node.producer is not None and id(node.producer) in producers:
                left.append(node)
            else:
                self.bytes_held -= node.owned
                node.owned = 0
        self._nodes = left

    def drop(self, node: Node) -> None:
        """Gives a result's memory up."""
        self.bytes_held -= node.owned
        node.owned, node.memory = 0, None
