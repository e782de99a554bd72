"""Births of NaNs and infinities in eager PyTorch: by element, where they are written.

Nothing is kept of an op whose results are finite. Of one that gave a NaN or an infinity it is
decided at once, while its operands are there, which elements are its own. What came with the
operands is known by the storages that hold it: each has the births of what is bad in it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from opstep.frontends.torch.eager import trail
from opstep.frontends.torch.eager.ops import Facts, as_call, facts_of, substituted, tensors_in
from opstep.frontends.torch.eager.places import Place
from opstep.frontends.torch.eager.tensors import (
    FINITE,
    INFINITE,
    NAN,
    bad,
    is_parameter,
    level_of,
    readable,
    storage_key,
    undispatched,
)
from opstep.runtime.debugger.rerun import born as born_by_rerun
from opstep.runtime.nan.verdict import Verdict

BORN, WRITTEN, CAME = "born", "written", "came"
RERUN_ELEMENTS = 1 << 22  # an op with larger operands is not run again to tell its elements apart
FEW = 1 << 10  # elements that are searched before all are
USUAL = 4
RERUNS = 64  # of one line without a birth, after which it is taken to pass on what came
MOST_BIRTHS = 24  # that a storage is known to hold elements of
COMPILED = (
    "the script compiles functions, whose ops are not seen: with TORCH_COMPILE_DISABLE=1 in the "
    "environment they run one by one, and the line is found"
)
KEPT_BYTES = 64 << 20  # of operands of births, for their reasons
SHOWN = 3  # elements whose values a report gives
KEPT_BIRTHS = 1024  # with their operands


class Operand(NamedTuple):
    """One tensor that an op was given. `argument`: its name in the schema; `tensor`: as it was,
    None where that is not known: it was written in place, or it is too large to keep.
    """

    argument: str
    index: int  # of the argument
    storage: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    level: int
    tensor: torch.Tensor | None
    empty_at: Any = None  # the stack where torch.empty gave it, if nothing has written to it


@dataclass(eq=False)
class Birth:
    """NaNs or infinities that one op made, that the script's text has (`WRITTEN`), or that came in
    from what no op of PyTorch's wrote. `causes`: of the infinities that NaNs were made of here.
    """

    order: int
    level: int
    how: str
    op: str
    place: Place
    step: int
    arguments: tuple[Any, ...] = ()
    operands: tuple[Operand, ...] = ()
    target: Any = None  # the OpOverload
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    own: int = 0  # elements
    nan: int = 0
    first: tuple[tuple[int, ...], ...] = ()  # places of some
    values: tuple[float, ...] = ()  # there
    result: int = 0  # index
    causes: list[Birth] = field(default_factory=list)
    scaled: bool = False  # where a GradScaler scales a loss, or in the backward of that
    into_parameter: bool = False
    computed: bool = False  # came in, but autograd knows an op that made it
    made: tuple[Any, ...] = ()  # the ops whose derivatives it is in, see `places.Made`
    trail: list[str] = field(default_factory=list)  # how it came about, in words
    verdict: Verdict | None = None  # on what no NaN and no infinity shows, see `kinds`
    times: int = 1

    @property
    def key(self) -> Any:
        """That of others of the same line."""
        return self.op, self.place.stack[:4], self.place.node.name

    @property
    def kind(self) -> str:
        if self.verdict is not None:
            return self.verdict.kind
        return "nan" if self.level == NAN else "inf"


class Before(NamedTuple):
    """An operand that an op writes, before it did: a copy where it was bad."""

    level: int = FINITE
    copy: torch.Tensor | None = None


class _Held(NamedTuple):
    storage: StorageWeakRef
    births: list[Birth]
    computed: bool = False  # not only moved


class Births:
    """Of one process. `place_of`: where the op runs that has just run in this thread."""

    def __init__(self, place_of: Callable[[], Place]):
        self.place_of = place_of
        self.lock = threading.RLock()
        self.on_bad: Callable[[int, bool], None] = lambda storage, bad: None
        self.on_birth: Callable[[Birth], None] = lambda birth: None
        self.empty_at: Callable[[int], Any] = lambda storage: None  # who got it of torch.empty
        self.level_of: Callable[[torch.Tensor], int] = level_of
        self.step = 0  # of optimizers
        self.scaled = False
        self.compiles = False  # the script, functions whose ops are not seen
        self.is_scaling = False  # within GradScaler.scale
        self.made_by: Callable[[Place], tuple[Any, ...]] = lambda place: ()
        self.made_at: Callable[[Any], Any] = lambda node: None  # the op that made one of autograd's
        self.count = 0
        self.held: dict[int, _Held] = {}
        self._sweep_at = 256
        self._reruns: dict[Any, int] = {}
        self._kept: deque[tuple[Birth, int]] = deque()
        self._kept_bytes = 0
        self._known: dict[Any, Birth] = {}

    # --- what is known of storages ---

    def of(self, storage: int) -> list[Birth]:
        """Those whose elements it may hold."""
        held = self.held.get(storage)
        if held is None:
            return []
        if held.storage.expired():
            self._forget(storage)
            return []
        return held.births

    def is_bad(self, storage: int) -> bool:
        return storage in self.held and bool(self.of(storage))

    def is_computed(self, storage: int) -> bool:
        """Whether what it holds is more than data that were moved."""
        return storage in self.held and self.held[storage].computed

    @property
    def any(self) -> bool:
        return bool(self.held)

    def healed(self, tensor: torch.Tensor) -> None:
        """A finite tensor was written to a storage that was bad."""
        storage = tensor.untyped_storage()
        if not self.is_bad(storage._cdata):
            return
        whole = tensor.numel() * tensor.element_size() >= storage.nbytes()
        if whole or level_of(tensor.new_empty(0).set_(storage)) == FINITE:
            self._forget(storage._cdata)

    def _forget(self, storage: int) -> None:
        self.held.pop(storage, None)
        self.on_bad(storage, False)

    def hold(self, tensor: torch.Tensor, births: list[Birth], computed: bool = False) -> None:
        """They made what is bad in a tensor."""
        storage = tensor.untyped_storage()
        self.held[storage._cdata] = _Held(StorageWeakRef(storage), births[:MOST_BIRTHS], computed)
        self.on_bad(storage._cdata, True)
        if len(self.held) > self._sweep_at:
            for key in [k for k, h in self.held.items() if h.storage.expired()]:
                self._forget(key)
            self._sweep_at = 2 * len(self.held) + 256

    # --- an op that gave what is not finite ---

    def gave(
        self, op: Any, arguments: Sequence[Any], result: torch.Tensor, index: int, level: int,
        before: Mapping[int, Sequence[Before]], written: bool,
    ) -> None:  # fmt: skip
        """`arguments`: as the schema has them. `index`: of the result; `before`: of the arguments
        that it wrote, what they were.
        """
        with self.lock, undispatched():
            facts = facts_of(op)
            operands = list(self._operands(facts, arguments, before))
            if facts.lifts:
                operands = [o._replace(level=FINITE) for o in operands]
            literal = max((_literal(a) for a in arguments), default=FINITE)
            seen = result
            if index and facts.name.endswith("ctc_loss"):
                # Working memory, of which the kernel writes a part: its NaNs were there before.
                level, seen = INFINITE, result.masked_fill(result.isnan(), 0.0)
            came = {id(o): self._came(o, facts, op) for o in operands if o.level}
            births: list[Birth] = []
            how = WRITTEN if facts.lifts or literal else BORN
            birth = self._new(level, how, facts.name, op)
            if how == WRITTEN and not came and self._is_usual(birth):
                births.append(birth)
            else:
                own = self._own(facts, op, arguments, operands, seen, index, level, literal)
                birth.own = int(own.count_nonzero())
            if birth.own:
                birth.operands, birth.arguments = tuple(operands), tuple(arguments)
                self._describe(birth, seen, index, own, came)
                births.append(birth)
            for o in operands:
                for b in came.get(id(o), ()):
                    if b not in births:
                        births.append(b)
            whole = result.numel() * result.element_size() >= result.untyped_storage().nbytes()
            if written and not whole:
                births += [b for b in self.of(storage_key(result)) if b not in births]
            if written and is_parameter(result):
                in_parameter(births)
            taken = any(self.is_computed(o.storage) for o in operands)
            self.hold(result, births, taken or not (facts.moves or facts.lifts))

    def _is_usual(self, birth: Birth) -> bool:
        """Whether its line has written such values several times, as a mask does in each step: of
        further ones elements and operands are not kept, which takes longer than the op.
        """
        known = self._known.get(birth.key)
        if known is None or known.times < USUAL or known.how != WRITTEN:
            return False
        birth.times, self._known[birth.key] = known.times + 1, birth
        return True

    def lost(self, op: Any, arguments: Sequence[Any], result: torch.Tensor, index: int) -> Birth:
        """Of what an op lost without a NaN or an infinity. `arguments`: as they were."""
        with self.lock, undispatched():
            facts = replace(facts_of(op), writes=())  # what was written is not in `arguments`
            birth = self._new(FINITE, BORN, facts.name, op)
            birth.shape, birth.dtype, birth.result = tuple(result.shape), result.dtype, index
            birth.arguments = tuple(arguments)
            birth.operands = tuple(self._operands(facts, arguments, {}))
            birth.made = self.made_by(birth.place)
            return birth

    def _operands(self, facts: Facts, arguments, before) -> Iterator[Operand]:
        for k, argument in enumerate(arguments):
            name = facts.arguments[k] if k < len(facts.arguments) else "?"
            overwritten = k in facts.writes
            for n, t in enumerate(tensors_in(argument)):
                if not readable(t):
                    continue
                storage = storage_key(t)
                old = before.get(k, ())[n] if n < len(before.get(k, ())) else Before()
                level = old.level if overwritten else self.level_of(t)
                empty = None if overwritten else self.empty_at(storage)
                yield Operand(
                    name, k, storage, tuple(t.shape), t.dtype, level,
                    old.copy if overwritten else t, empty,
                )  # fmt: skip

    def _came(self, operand: Operand, facts: Facts, op: Any) -> list[Birth]:
        """The births of a bad operand; from outside where none is known."""
        known = self.of(operand.storage)
        if known:
            return known
        birth = self.outside(operand.tensor, operand, op, facts.name)
        return [birth]

    def outside(
        self, tensor: torch.Tensor | None, operand: Operand | None = None, op: Any = None,
        name: str = "",
    ) -> Birth:  # fmt: skip
        """A bad value that no op of PyTorch's is known to have written."""
        level = operand.level if operand else level_of(tensor)
        birth = self._new(level, CAME, name, op)
        birth.operands = (operand,) if operand else ()
        birth.trail = [COMPILED] * self.compiles
        if tensor is not None:
            mask = (bad if level == INFINITE else torch.isnan)(tensor)
            birth.computed = tensor.grad_fn is not None
            birth.shape, birth.dtype = tuple(tensor.shape), tensor.dtype
            birth.own, birth.first = int(mask.sum()), places(mask)
            birth.nan = birth.own if level == NAN else 0
            if operand is None or operand.tensor is not None:
                self.hold(tensor, [birth])
        return birth

    def _new(self, level: int, how: str, name: str, op: Any) -> Birth:
        place = self.place_of()
        self.count += 1
        birth = Birth(self.count, level, how, name, place, self.step, target=op)
        birth.scaled = self.scaled and (self.is_scaling or place.phase == "backward")
        return birth

    def _own(self, facts, op, arguments, operands, result, index, level, literal) -> torch.Tensor:
        """A mask of the elements that the op made itself."""
        odd = [o for o in operands if o.level]
        if not odd:
            return bad(result)
        if literal or facts.lifts:
            return bad(result) & ~_reach(odd, result)
        fits = all(o.tensor is not None and _fits(o.shape, tuple(result.shape)) for o in odd)
        if facts.pointwise and fits:
            return _elementwise(odd, result, level)
        return self._rerun(facts, op, arguments, operands, result, index)

    def _rerun(self, facts, op, arguments, operands, result, index) -> torch.Tensor:
        """By running the op again with other values in place of the bad ones; where that cannot be,
        NaNs are its own if no operand has one, infinities if all operands are finite.
        """
        worst, nan = max(o.level for o in operands), torch.isnan(result)
        simple = nan if worst == INFINITE else torch.zeros_like(nan)
        place = self.place_of()
        key = (op, place.stack[:2], index)
        unknown = any(o.tensor is None for o in operands if o.level)
        size = max((math.prod(o.shape) for o in operands), default=0)
        if facts.writes or facts.random or unknown or size > RERUN_ELEMENTS:
            return simple
        if worst == INFINITE and not torch.isinf(result).any():
            return nan
        if self._reruns.get(key, 0) >= RERUNS:
            return simple
        self._reruns[key] = self._reruns.get(key, 0) + 1
        try:
            found = _born(op, arguments, result, index)
        except Exception:  # the op may refuse the other values, as a factorisation does
            return simple
        if found.any():
            self._reruns[key] = 0
        return found

    def _describe(self, birth: Birth, result, index, own, came) -> None:
        """`own`: a mask of its elements; `came`: the births of each operand."""
        nan = own & torch.isnan(result) if birth.level == NAN else None
        birth.nan = 0 if nan is None else int(nan.count_nonzero())
        if not birth.nan:
            birth.level = INFINITE
        birth.shape, birth.dtype, birth.result = tuple(result.shape), result.dtype, index
        birth.first = places(nan if nan is not None and birth.nan else own)
        birth.values = tuple(result[p].real.item() for p in birth.first[:SHOWN])
        operands = birth.operands
        seen: dict[Birth, None] = {}
        for o in operands:
            for b in came.get(id(o), ()):
                if (b.level == INFINITE and b.how != WRITTEN) or birth.level == NAN:
                    seen[b] = None
        birth.causes = list(seen)
        birth.made = self.made_by(birth.place)
        if birth.how == BORN and birth.key not in self._known:
            birth.trail = self._trail(birth, operands)
        self._keep(birth)
        self.on_birth(birth)

    def _trail(self, birth: Birth, operands: Sequence[Operand]) -> list[str]:
        """The way to it, while autograd's graph is there."""
        if birth.place.phase == "backward":
            given = [o.tensor for o in operands if o.tensor is not None]
            at = birth.first[:1]
            text = trail.trap(at[0], birth.shape, given, self.made_at) if at else ""
            return [text] if text else []
        finite = [o.tensor for o in operands if o.tensor is not None and not o.level]
        return trail.growth(finite, self.made_at) if birth.level == INFINITE else []

    def _keep(self, birth: Birth) -> None:
        """Operands as they were, of the first birth of a line and of the latest ones, within a
        budget: the reason is asked for only where it does harm.
        """
        known = self._known.get(birth.key)
        if known is not None and known.how == birth.how:
            birth.times, birth.trail = known.times + 1, birth.trail or known.trail
        self._known[birth.key] = birth
        total = 0

        def copied(t: Any) -> Any:
            nonlocal total
            total += t.numel() * t.element_size()
            return t.detach().clone() if total <= KEPT_BYTES // 4 else None

        birth.operands = tuple(
            o._replace(tensor=copied(o.tensor) if o.tensor is not None else None)
            for o in birth.operands
        )
        kept = iter([o.tensor for o in birth.operands])
        birth.arguments = tuple(_without_tensors(a, kept) for a in birth.arguments)
        self._kept.append((birth, _nbytes(birth)))
        self._kept_bytes += self._kept[-1][1]
        while len(self._kept) > 1 and (
            self._kept_bytes > KEPT_BYTES or len(self._kept) > KEPT_BIRTHS
        ):
            old, size = self._kept.popleft()
            self._kept_bytes -= size
            old.operands = tuple(o._replace(tensor=None) for o in old.operands)
            old.arguments = ()


def _nbytes(birth: Birth) -> int:
    tensors = (o.tensor for o in birth.operands)
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _without_tensors(argument: Any, kept: Iterator[Any]) -> Any:
    """With the copies in place of tensors; None where there is none."""
    if isinstance(argument, torch.Tensor):
        return next(kept, None) if readable(argument) else argument
    if isinstance(argument, list | tuple):
        return [_without_tensors(a, kept) for a in argument]
    return argument


# --- tensors ---


def in_parameter(births: Sequence[Birth]) -> None:
    """A parameter holds what they made: an infinity that the script writes there does harm. One
    that only led to what an op made is not to blame.
    """
    if all(b.how == WRITTEN for b in births):
        for b in births:
            b.into_parameter = True


def _literal(argument: Any) -> int:
    if isinstance(argument, float | complex):
        if argument != argument:
            return NAN
        return INFINITE if abs(argument) == math.inf else FINITE
    if isinstance(argument, list | tuple):
        return max((_literal(a) for a in argument), default=FINITE)
    return FINITE


def _fits(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    return len(shape) <= len(result) and all(
        a in (1, b) for a, b in zip(shape[::-1], result[::-1], strict=False)
    )


def _elementwise(odd: Sequence[Operand], result: torch.Tensor, level: int) -> torch.Tensor:
    """Elements of an elementwise op that are bad where no operand is; NaNs where none is NaN."""
    found = bad(result)
    nan = torch.isnan(result) if level == NAN else None
    for o in odd:
        assert o.tensor is not None
        found = found & ~bad(o.tensor)
        if nan is not None:
            nan = nan & ~torch.isnan(o.tensor)
    return found if nan is None else found | nan


def _reach(taken: Sequence[Operand], result: torch.Tensor) -> torch.Tensor:
    """The places of bad elements of operands, of an op that writes a literal over some."""
    found = torch.zeros_like(result, dtype=torch.bool)
    for o in taken:
        if o.tensor is not None and _fits(o.shape, tuple(result.shape)):
            found = found | bad(o.tensor)
    return found


def places(mask: torch.Tensor, most: int = 8) -> tuple[tuple[int, ...], ...]:
    flat: Any = mask.reshape(-1)
    few = flat[:FEW].nonzero()[:most, 0].tolist()  # all take long to list
    flat = few if len(few) == most else flat.nonzero()[:most, 0].tolist()
    axes = np.unravel_index(flat, tuple(mask.shape)) if mask.dim() else ()
    return tuple(zip(*(axis.tolist() for axis in axes), strict=True)) or ((),) * len(flat)


def _born(op: Any, arguments: Sequence[Any], result: torch.Tensor, index: int) -> torch.Tensor:
    """See `opstep.runtime.nan.births.born`: its operands are the tensors of the call, in order."""
    from opstep.frontends.torch.evaluating import array_of, results_of, tensor_of

    tensors = [t.cpu() for a in arguments for t in tensors_in(a)]
    arguments = [torch.device("cpu") if isinstance(a, torch.device) else a for a in arguments]
    arrays = [array_of(t.contiguous()) if readable(t) else None for t in tensors]

    def again(changes: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        given = [tensor_of(changes[j]) if j in changes else t for j, t in enumerate(tensors)]
        args, kwargs = as_call(op, substituted(arguments, given))
        with np.errstate(all="ignore"):
            made = results_of(op(*args, **kwargs))
        return [array_of(t.contiguous()) for t in made if isinstance(t, torch.Tensor)]

    with np.errstate(all="ignore"):
        found = born_by_rerun(again, arrays, array_of(result.cpu().contiguous()), index)
        return torch.from_numpy(np.asarray(found)).to(result.device)
