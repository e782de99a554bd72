"""The named tensors of a program, from the outside: a mapping of arrays."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.api.devices import HOST
from opstep.api.inputs import as_array, conform_one
from opstep.runtime.arrays import read_safetensors
from opstep.runtime.device.ranks import connected, rank_here
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import Declaration
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import bf16
from opstep.runtime.ir.wording import ARRAY, Argument, Wording

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.external import ExternalTensor
    from opstep.api.program import Program
    from opstep.runtime.plan.plan import Plan


def gathered(shard: Shard, own: np.ndarray) -> np.ndarray:
    """On rank 0, from the parts of its group, the whole; other ranks keep their own. All ranks call
    this at the same time. Raises `DeviceError` where one is gone.
    """
    import numpy as np

    transport = connected()
    members = shard.group.members(transport.rank)
    ranks = transport.ranks(shard.group)
    if transport.rank:
        if members[0] == 0:
            ranks.send(own, 0)
        return own
    shape: tuple[int, ...] = shard.whole.shape  # pyright: ignore[reportAssignmentType]
    found = np.empty(shape, own.dtype)
    for k, member in enumerate(members):
        found[shard.part(member)] = own if k == 0 else ranks.recv(own, k)
    return found


class Loaded(NamedTuple):
    """What did not agree when values were loaded by name: named tensors that none was given for,
    names that the program has not, tensors of another type. The first and the last keep their
    values.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]


class Tensors(MutableMapping):
    """The params and states of a program by name, as arrays. Reading gives a copy; writing sets the
    value.

    A tensor that is declared as shards is this rank's part; it can be set by that, or by the whole.
    A process that is connected with no others keeps the whole, and stands for rank 0.
    """

    def __init__(self, program: Program):
        self._program = program
        self._declared: dict[str, Declaration] = program.verified.tensors
        self.shards = program.verified.shards
        self._wholes: dict[str, np.ndarray] = {}  # of shards, where there are no other ranks
        if any(d.type.dtype is bf16 for d in self._declared.values()):
            _ = bf16.numpy  # makes it known to NumPy, which reads files for us
        self._set: dict[str, str] = {}  # name -> "drawn" by its initialiser, or "given"
        self._updated: set[str] = set()  # by runs
        self._holders: dict[str, set[str]] = {}  # devices that have the tensor's present value
        self._homes: dict[str, str] = {}  # devices where others may write the tensor at any time
        self.given = 0  # how often others have set a tensor
        self._of_plan: dict[int, tuple[Plan, list[str], list[str]]] = {}  # what each uses, updates

    def __getitem__(self, name: str) -> np.ndarray:
        self._declaration(name)
        self.prepare([name])
        self._copy(name, HOST)
        return self._program._store(HOST).read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        declared = self._declaration(name)
        array = self._own(name, self._conformed(f"{declared.kind} {name}", name, value))
        self._program._store(HOST).write(name, array)
        self._holders[name] = {HOST}
        self._set[name] = "given"
        self.given += 1

    def _conformed(self, what: str, name: str, value: Any) -> np.ndarray:
        """An array of the tensor's type: of this rank's part or of the whole, where that is another
        one. Raises `InputError`.
        """
        t, shard = self._declared[name].type, self.shards.get(name)
        if shard is None:
            return conform_one(what, t, value)
        array = as_array(what, value, t.dtype)
        return array if array.shape == t.shape else conform_one(what, shard.whole, array)

    def _own(self, name: str, array: np.ndarray) -> np.ndarray:
        """This rank's part of what is a tensor's value from now on."""
        shard, rank = self.shards.get(name), rank_here()
        if shard is None:
            return array
        own, is_whole = shard.part(rank or 0), array.shape == shard.whole.shape
        if rank is None and is_whole:
            self._wholes[name] = array.copy()
        elif rank is None:
            self.prepare([name])
            self._wholes[name][own] = array
        return array[own].copy() if is_whole else array

    def read(self, path: str | Path, only: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """The values that a safetensors file has, ready to be set: of shards, which the file has
        whole, this rank's part, and nothing else of these is read. Raises `InputError`.
        """
        rank, parts = rank_here(), {}
        for name, shard in self.shards.items():
            shape: Any = shard.whole.shape
            parts[name] = shape, () if rank is None else shard.part(rank)
        return read_safetensors(path, only, parts=parts)

    def on_rank(self, name: str, rank: int) -> np.ndarray:
        """What a rank has of a tensor at first; this process stands for all."""
        own = self[name]
        return self._wholes[name][self.shards[name].part(rank)] if name in self.shards else own

    def held(self, name: str) -> np.ndarray:
        """All that this process has of a tensor."""
        own = self[name]
        return self._wholes[name] if name in self.shards and name in self._wholes else own

    def whole(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The values of these, put together on rank 0 from what all ranks have, which call this at
        the same time; other ranks get what they have themselves.
        """
        return {n: gathered(self.shards[n], self[n]) if n in self.shards and rank_here() is not None
                else self.held(n) for n in names}  # fmt: skip

    def load(self, values: Mapping[str, Any], strict: bool = True) -> Loaded:
        """Sets the tensors that `values` has the names of. With `strict`, names and types have to
        agree, all of them; without, those that do are set. Where it raises, nothing has changed.
        """
        arrays: dict[str, np.ndarray] = {}
        mismatched = []
        for name in (n for n in values if n in self):
            try:
                what = f"{self._declared[name].kind} {name}"
                arrays[name] = self._conformed(what, name, values[name])
            except InputError:
                if strict:
                    raise
                mismatched.append(name)
        missing = tuple(n for n in self if n not in values)
        unexpected = tuple(n for n in values if n not in self)
        if strict and (missing or unexpected):
            parts = [f"nothing is given for {names_listed(missing)}"] if missing else []
            parts += [f"there is no {names_listed(unexpected)}"] if unexpected else []
            raise InputError("; ".join(parts), hint="strict=False loads the names that agree")
        for name, array in arrays.items():
            self[name] = array
        return Loaded(missing, unexpected, tuple(mismatched))

    def adopt(self, name: str, tensor: ExternalTensor) -> None:
        """Memory of others is the tensor's own from now on, on the device where it is: runs there
        read and update it in place, and what others write to it is the tensor's value. Raises
        `InputError` where it is of another type, or kernels could not use it.
        """
        declared, device = self._declaration(name), tensor.device
        what = f"{declared.kind} {name}"
        if tensor.type != declared.type:
            raise InputError(f"{what} is {declared.type}, not {tensor.type}")
        store = self._program._store(device)
        bytes = max(store.device.alignment, tensor.type.dtype.itemsize)
        if tensor.address % bytes:
            raise InputError(f"{what} is to begin at a multiple of {bytes} bytes", hint="copy it")
        if tensor.readonly:
            raise InputError(f"{what} cannot be updated in memory that is readonly", hint="copy it")
        self._release(name)
        store.adopt(name, tensor.memory)
        self._homes[name] = device
        self._holders[name] = {device}
        self._set[name] = "given"
        self.given += 1
        self._program.forget_contexts()

    @property
    def shared(self) -> bool:
        """Whether others may write any of them at any time."""
        return bool(self._homes)

    def _release(self, name: str) -> None:
        """Memory of others is left as it is from now on."""
        home = self._homes.pop(name, None)
        if home is not None:
            self._program._store(home).release(name)

    def __delitem__(self, name: str) -> None:
        """Back to what the initialiser gives, in memory of the program's own."""
        self._declaration(name)
        self._release(name)
        self._set.pop(name, None)
        self.given += 1
        self._program.forget_contexts()

    def __contains__(self, name: object) -> bool:
        return name in self._declared

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a tensor, or `default` where none has that name."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def __repr__(self) -> str:
        listed = ", ".join(f"{n}: {d.type}" for n, d in self._declared.items())
        return f"<Tensors {listed or 'none'}>"

    def _declaration(self, name: str) -> Declaration:
        if name not in self._declared:
            raise UnknownName(f"there is no param or state {name}", name, self._declared)
        return self._declared[name]

    def prepare(self, names) -> None:
        """Sees to it that these have values: those of the file beside the program, and drawn by
        their initialisers, where none was given.
        """
        missing = [name for name in names if name not in self._set]
        files = self._program.files
        names = [n for n in missing if self._is_saved(n)]
        saved = files.tensors(names, self) if names else {}
        for name in missing:
            declared = self._declared[name]
            if name in saved:
                what = f"{files.weights}: {declared.kind} {name}"
                array = self._conformed(what, name, saved[name])
            else:
                array = _initial(declared, self._program, self.shards.get(name))
            array = self._own(name, array)
            self._program._store(HOST).write(name, array)
            self._holders[name] = {HOST}
            self._set[name] = "given" if name in saved else "drawn"
            self._updated.discard(name)  # what a run updates it prepares first

    def _is_saved(self, name: str) -> bool:
        """Whether the file beside the program has the value, and no initialiser gives it."""
        declared = self._declared[name]
        return (
            declared.init is None and declared.value is None and name in self._program.files.names
        )

    def known(self) -> list[str]:
        """Names of those that have values; the others get theirs when they are first needed."""
        return [name for name in self._declared if name in self._set or self._is_saved(name)]

    def places(self) -> dict[str, str]:
        """A device that has the present value, by name: of all tensors but those that have no value
        and no initialiser.
        """
        known = set(self.known())
        names = [
            name
            for name, declared in self._declared.items()
            if name in known or declared.init is not None or declared.value is not None
        ]
        self.prepare(names)
        found = {}
        for name in names:
            holders = self._holders[name]
            home = self._homes.get(name)
            found[name] = home if home in holders else min(holders, key=lambda d: d != HOST)
        return found

    def bring(self, plan: Plan, device: str) -> None:
        """A run of this plan on that device is at hand: the tensors that it uses are there, and
        what it updates will be nowhere else.
        """
        _, used, updated = self._used_by(plan)
        self.prepare(used)
        for name in used:
            if device not in self._holders[name] or name in self._homes:
                self._copy(name, device)
        self.outdate(plan, device)
        self._updated.update(updated)

    def outdate(self, plan: Plan, device: str) -> None:
        """A step of this plan has run on that device: what was copied from there before, to be
        looked at between two steps, is not the present value any more.
        """
        for name in self._used_by(plan)[2]:
            self._holders[name] = {device}

    def _used_by(self, plan: Plan) -> tuple[Plan, list[str], list[str]]:
        entry = self._of_plan.get(id(plan))
        if entry is None:
            buffers = plan.buffers
            used = [b.name for b in buffers if b.kind == "param"]
            targets = {b for step in plan.steps for b in step.writes}
            updated = [buffers[b].name for b in targets if buffers[b].kind == "param"]
            entry = self._of_plan[id(plan)] = (plan, used, updated)
        return entry

    def _copy(self, name: str, device: str) -> None:
        """Sees to it that the device has the present value."""
        holders = self._holders[name]
        if (home := self._homes.get(name)) in holders:
            self._holders[name] = holders = {home}
        if device not in holders:
            source = self._program._store(next(iter(holders)))
            self._program._store(device).copy_from(name, source)
            holders.add(device)

    def changed(self, name: str, device: str) -> None:
        """A tensor has another value, which only that device has."""
        self._holders[name] = {device}
        self._updated.add(name)

    def updated(self) -> list[str]:
        """Names of those that runs have updated."""
        return [name for name in self._declared if name in self._updated]

    def drawable(self, name: str) -> bool:
        """Whether the initialiser and the program's seed give the value that the tensor has."""
        given = self._set.get(name) == "given" or (name not in self._set and self._is_saved(name))
        return not given and name not in self._updated

    def forget_drawn(self) -> None:
        self._set = {name: how for name, how in self._set.items() if how == "given"}


def _initial(declared: Declaration, program: Program, shard: Shard | None) -> np.ndarray:
    """What a declaration says its tensor begins as: of a shard the whole, unless all elements are
    the same.
    """
    import numpy as np

    from opstep.runtime.device.cpu.device import execute

    name, t = declared.name.text, declared.type
    if shard is not None and rank_here() is None:
        t = shard.whole
    if declared.value is not None:
        return np.full(t.shape, declared.value.value, t.dtype.numpy)  # pyright: ignore
    if declared.init is None:
        weights = program.files.weights
        absent = f", and {weights} does not hold it" if weights and weights.is_file() else ""
        raise InputError(
            f"{declared.kind} {name}: {t} has no value{absent}",
            span=declared.name.span,
            source=program.module.source,
            hint=Wording.any_of(
                ("load it: ", Argument("params", {name: ARRAY})),
                ("give it an initialiser such as = zeros()",),
            ),
        )
    found = program.verified.inits[name]
    attrs = dict(found.attrs)
    if "seed" in attrs and not any(a.name.text == "seed" for a in declared.attrs):
        attrs["seed"] = _seed(name, program.seed)
    assert found.op is not None  # the verifier lets only ops initialise
    if found.op.traits.alike:
        attrs["shape"] = t.shape
    return execute(found.op, [], attrs)[0]


def _seed(name: str, seed: int) -> int:
    """A seed of its own for each tensor, the same in every run."""
    return (zlib.crc32(name.encode()) + seed * 0x9E3779B1) & 0x7FFF_FFFF
