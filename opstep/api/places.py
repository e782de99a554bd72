"""Where the inputs and results of a call are, in memory of others, and a binding to that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.api.external import ExternalTensor
from opstep.runtime.device.binding import Binding
from opstep.runtime.device.external import ExternalMemory
from opstep.runtime.device.store import Address
from opstep.runtime.interpreter import Context
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan

if TYPE_CHECKING:
    from opstep.runtime.device.protocols import Device, Memory, Own

MOVES = 8  # of a tensor that will go on moving
WORTH = 32  # launches to issue anew that are worth a copy to spare them
KNOWN = 64  # addresses of a whole call that are remembered
BYTES_WORTH_A_LAUNCH = 1 << 20  # a GPU copies them in about the time that a launch takes
MOST_SETTLED = 64 << 20  # bytes

Tensors = Sequence[ExternalTensor]
Targets = Sequence[ExternalTensor | None]


class Alias(NamedTuple):
    """What a result is that no op writes for itself. `kind`: ``input`` or ``result``, of which
    `index` is the number, or ``own``, a named tensor or a constant.
    """

    kind: str
    index: int = -1


class _Cell(ExternalMemory):
    """Where an input or a result is in the present call. `mask`: bits that its address must not
    have. `scratch`: where it is instead. `moves`: how often it has moved since a call was where one
    was before; `settled`: it moves no more.
    """

    __slots__ = ("mask", "moves", "pointers", "scratch", "settled")

    def __init__(self, nbytes: int, mask: int):
        super().__init__(0, nbytes)
        self.mask = mask
        self.scratch: Memory | None = None
        self.moves = 0
        self.settled = False
        self.pointers: Sequence[Callable[[int], Any]] = ()

    def move(self, address: int) -> None:
        self.address = address
        for point_to in self.pointers:
            point_to(address)


class Places:
    """Where the inputs and results of a call are, and a binding to that. `before` is work that has
    to be done first: copies of inputs that kernels cannot read where they are.

    A device that replays what it ran at the same addresses (`Device.replays`) has to issue it anew
    where a tensor is at none of those that it was at before. So one that keeps moving is copied to
    or from a place of its own, if that costs less. `number` stands for all addresses of the call.
    """

    def __init__(
        self, plan: Plan, device: Device, aliases: Sequence[Alias | None],
        allocate: Callable[[int], ExternalTensor],
    ):  # fmt: skip
        self.plan = plan
        self.device = device
        self.aliases = aliases
        self.allocate = allocate  # for the result of that number
        self.types = tuple(plan.values[v].type for v in plan.inputs)
        self.result_types = tuple(plan.values[v].type for v in plan.outputs)
        self.inputs = [_cell(device, t) for t in self.types]
        self.results = {
            k: _cell(device, t) for k, t in enumerate(self.result_types) if aliases[k] is None
        }
        self._cells = [self.results.get(k) for k in range(len(self.result_types))]
        self._buffers = {plan.values[plan.outputs[k]].buffer: c for k, c in self.results.items()}
        self._inputs = [Address(c, 0) for c in self.inputs]
        self.before: list[Own] = []
        self.moved = False
        self.number = 0
        self._given: tuple[list[int], list[int]] = ([], [])  # to `point`
        self._made = 0  # numbers
        self._known: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._astray: set[_Cell] = set()  # those that moved in the latest calls
        self._copies: list[tuple[int, int, int]] = []  # result, target, bytes
        issued = len(plan.steps) * BYTES_WORTH_A_LAUNCH if device.replays else 0
        self._to_settle = min(issued, MOST_SETTLED)  # bytes

    def bind(self, context: Context) -> Binding:
        places = {b: Address(cell, 0) for b, cell in self._buffers.items()}
        return context.bind_at(self.plan.graph, self.types, self._inputs, places)

    def follow(self, binding: Binding) -> None:
        """From now on the binding's launches learn of other places."""
        values = binding.plan.values
        cells = {values[v].buffer: c for v, c in zip(binding.plan.inputs, self.inputs, strict=True)}
        cells |= self._buffers
        for buffer, pointers in binding.pointers(cells).items():
            cells[buffer].pointers = pointers

    def place(self, inputs: Tensors, results: Targets | None) -> list[ExternalTensor]:
        """The tensors that the results will be."""
        given: list[ExternalTensor] = []
        addresses = []
        for k, alias in enumerate(self.aliases):
            target = results[k] if results is not None else None
            if target is None and alias is not None and alias.kind != "own":
                given.append(self._alias(k, (inputs if alias.kind == "input" else given), alias))
                addresses.append(0)
            else:
                given.append(target or self.allocate(k))
                addresses.append(given[-1].address)
        self.point([t.address for t in inputs], addresses)
        return given

    def _alias(self, k: int, tensors: Tensors, alias: Alias) -> ExternalTensor:
        source, t = tensors[alias.index], self.result_types[k]
        if source.type == t:
            return source
        return ExternalTensor(source.address, t, source.device, source.owner)

    def point(self, inputs: Sequence[int], results: Sequence[int]) -> None:
        """Takes inputs and results to be at these addresses; 0 for a result that stays the alias
        that it is.
        """
        self.moved = False
        if self._given == (inputs, results):
            self._moves_no_more()
            return
        self._given = list(inputs), list(results)
        moved: list[_Cell] = []
        if self.before:
            self.before = []
        for cell, address in zip(self.inputs, inputs, strict=True):
            if address & cell.mask or cell.settled:
                source, address = address, self._scratch(cell)
                self.before.append(self.device.copy(source, address, cell.nbytes))
            if address != cell.address:
                cell.move(address)
                moved.append(cell)
        self._copies.clear()
        for k, (cell, address) in enumerate(zip(self._cells, results, strict=True)):
            if cell is None:
                if address:
                    nbytes: Any = self.result_types[k].nbytes
                    self._copies.append((k, address, nbytes))
                continue
            if address & cell.mask or cell.settled:
                self._copies.append((k, address, cell.nbytes))
                address = self._scratch(cell)
            if address != cell.address:
                cell.move(address)
                moved.append(cell)
        if moved:
            self.moved = True
            if self.device.replays:
                self._recognise(moved)

    def _recognise(self, moved: list[_Cell]) -> None:
        """Finds the number of these addresses; those that led to unknown ones may settle."""
        cells = (*self.inputs, *self.results.values())
        addresses = tuple([cell.address for cell in cells])
        known = self._known.pop(addresses, None)
        if known is not None:
            self.number = known
            self._moves_no_more()
        else:
            self._made += 1
            self.number = self._made
            self._astray.update(moved)
            few = len(moved) * WORTH < len(self.plan.steps)
            for cell in moved:
                cell.moves += 1
                small = few and cell.nbytes <= BYTES_WORTH_A_LAUNCH
                if (small or cell.moves >= MOVES) and cell.nbytes <= self._to_settle:
                    self._to_settle -= cell.nbytes
                    cell.settled = True
        self._known[addresses] = self.number
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def _moves_no_more(self) -> None:
        for cell in self._astray:
            cell.moves = 0
        self._astray.clear()

    def _scratch(self, cell: _Cell) -> int:
        if cell.scratch is None:
            cell.scratch = self.device.alloc(cell.nbytes, "inputs and results out of line")
        return cell.scratch.address

    def after(self, binding: Binding) -> list[Own]:
        """What is to be done once the results are there: copies of those that are elsewhere."""
        outputs, copy = binding.plan.outputs, self.device.copy
        return [
            copy(binding.address_of(outputs[k]).address, target, nbytes)
            for k, target, nbytes in self._copies
        ]


def _cell(device: Device, t: TensorType) -> _Cell:
    nbytes: Any = t.nbytes  # concrete here
    return _Cell(nbytes, max(device.alignment, t.dtype.itemsize) - 1)


def aliases_of(plan: Plan) -> list[Alias | None]:
    """For each output what else its memory is; None where it has memory of its own."""
    inputs = {plan.values[v].buffer: k for k, v in enumerate(plan.inputs)}
    results: dict[int, int] = {}
    found: list[Alias | None] = []
    for k, v in enumerate(plan.outputs):
        buffer = plan.values[v].buffer
        if buffer in inputs:
            found.append(Alias("input", inputs[buffer]))
        elif buffer in results:
            found.append(Alias("result", results[buffer]))
        elif plan.buffers[buffer].kind != "temp":
            found.append(Alias("own"))
        else:
            results[buffer] = k
            found.append(None)
    return found
