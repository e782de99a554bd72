"""Values as they were: copies, made of what the recorder kept."""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict, deque
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from opstep.debuggee.past import kinds
from opstep.debuggee.past.recorder import Handle

DEPTH = 8

AS_NOW = "as it is now"  # it was not looked at then
UNCERTAIN = "uncertain"  # it changed between two looks, one before and one after
PART = "a part"  # of a long container, its beginning and its end
GONE = "not kept"
MARKS = (GONE, AS_NOW, UNCERTAIN, PART)
_CERTAINTY = {1: UNCERTAIN, 2: AS_NOW, 3: AS_NOW}  # as in native/answers.cpp

# By PyTorch's numbers of dtypes.
_DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
    23: "float8_e5m2", 24: "float8_e4m3fn", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip


class Absent:
    """Stands for what cannot be rebuilt: a file, a generator, what was too deep. Its use raises."""

    def __init__(self, type_name: str, text: str):
        object.__setattr__(self, "_opstep", (type_name, text))

    def __repr__(self) -> str:
        return object.__getattribute__(self, "_opstep")[1]

    def __getattr__(self, name: str) -> Any:
        raise LookupError(f"{self!r} has no past: only the present could give its {name}")


@contextmanager
def undisturbed(torch: Any):
    """No mode of the script sees what is done with tensors here."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        yield


class Then:
    """Values at one time. What was one object is one copy."""

    def __init__(self, native: Any, time: int):
        self._native = native
        self.time = time
        self._known: dict[int, Any] = {}
        self._marks: dict[int, set[str]] = {}  # by id of a copy, which the others hold
        self._parts: list[Any] = []  # of copies

    def marks(self, value: Any) -> set[str]:
        """Of the copy itself, without what is in it."""
        return self._marks.get(id(value), set())

    def share_marks(self, copy: Any, part: Any) -> None:
        """A tensor made of a copy is as certain as that."""
        if kinds.is_tensor(type(part)):
            self._parts.append(part)
            self._marks[id(part)] = self.marks(copy)

    def used_present(self) -> None:
        """Notes that an expression read what has no past."""
        self._marks.setdefault(0, set()).add(AS_NOW)  # no object has this id

    def all_marks(self) -> set[str]:
        """Of all that was asked for."""
        return set().union(*self._marks.values())

    def value(self, given: Any, depth: int = DEPTH) -> Any:
        if not isinstance(given, Handle):
            return given
        if given in self._known:
            return self._known[given]
        kind, t, live, certainty, content, length, is_part = self._native.content(given, self.time)
        marks = {_CERTAINTY[certainty]} if certainty else set()
        if is_part:
            marks.add(PART)
        if depth <= 0 and kind not in (kinds.TENSOR, kinds.BUFFER):
            return Absent(t.__name__, f"<{t.__name__}>")
        make = _MAKERS.get(kind, _Maker)(self, given, t, live, length, depth, marks)
        make.is_known = not certainty or kind not in _MEMORY
        made = make.made(content)
        self._known[given] = made
        self._marks[id(made)] = marks
        return made

    def begin(self, handle: Handle, made: Any) -> None:
        """Makes a copy known to its own content, which may refer to it."""
        self._known[handle] = made


class _Maker:
    """Makes the copy of one object."""

    is_known = True

    def __init__(
        self, then: Then, handle: Handle, t: Any, live: Any, length: int, depth: int,
        marks: set[str],
    ):  # fmt: skip
        self.then, self.handle, self.type, self.live = then, handle, t, live
        self.length, self.depth, self.marks = length, depth, marks

    def made(self, content: Any) -> Any:
        """Of what has no content, nothing but the type is said, which has no mark."""
        self.marks.clear()
        if isinstance(self.live, FunctionType):
            return self.live
        if isinstance(self.type, type) and kinds.kind_of(self.type) < kinds.OPAQUE:
            self.marks.add(GONE)  # a list that a hot line made, an object with a finalizer
        name = getattr(self.type, "__name__", "object")
        return Absent(name, f"<{name} {content.decode()}>" if content else f"<{name}>")

    def absent(self) -> Absent:
        self.marks.add(GONE)
        return Absent(self.type.__name__, f"<{self.type.__name__}>")

    def of(self, given: Any) -> Any:
        return self.then.value(given, self.depth - 1)

    def key(self, given: Any) -> Any:
        """The object itself, where its identity is its hash; of a tensor its one copy."""
        if not isinstance(given, Handle):
            return given
        kind, _, live, *_ = self.then._native.content(given, self.then.time)
        return live if live is not None and kind != kinds.TENSOR else self.of(given)

    def new(self) -> Any:
        made = self.type.__new__(self.type)
        self.then.begin(self.handle, made)
        if self.live is not None and getattr(self.live, "__dict__", None):  # of a subclass
            made.__dict__.update(self.live.__dict__)
            self.marks.add(AS_NOW)
        return made


class _List(_Maker):
    def made(self, content: Any) -> Any:
        made = self.new()
        list.extend(made, [self.of(x) for x in content])
        return made


class _Dict(_Maker):
    def made(self, content: Any) -> Any:
        made = self.new()
        if hasattr(made, "default_factory"):
            made.default_factory = getattr(self.live, "default_factory", None)
        put = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__
        for key, value in content:
            put(made, self.key(key), self.of(value))
        live = self.live
        if isinstance(live, OrderedDict) and list(live.keys()) != list(dict.__iter__(live)):
            self.marks.add(UNCERTAIN)  # its order, which is apart from its entries, was changed
        return made


class _Set(_Maker):
    def made(self, content: Any) -> Any:
        return self.type(self.key(x) for x in content)


class _Tuple(_Maker):
    def made(self, content: Any) -> Any:
        values = [self.of(x) for x in content]
        return tuple.__new__(self.type, values)


class _Deque(_Maker):
    def made(self, content: Any) -> Any:
        made = self.type((), getattr(self.live, "maxlen", None))
        self.then.begin(self.handle, made)
        deque.extend(made, [self.of(x) for x in content])
        return made


class _Instance(_Maker):
    def made(self, content: Any) -> Any:
        try:
            make = BaseException if issubclass(self.type, BaseException) else object
            made = make.__new__(self.type)
        except TypeError:
            return self.absent()
        self.then.begin(self.handle, made)
        for name, value in content:
            copy = self.of(value)
            try:
                object.__setattr__(made, name, copy)
            except (AttributeError, TypeError):  # a property of the same name
                made.__dict__[name] = copy
        return made


class _Text(_Maker):
    def made(self, content: Any) -> Any:
        self.marks.add(PART)
        if self.type is bytes:
            return content
        return f"{content.decode('utf-8', 'replace')}… ({self.length} characters)"


class _Buffer(_Maker):
    def made(self, content: Any) -> Any:
        if not self.is_known and self.live is not None and not content:
            return self.live.copy() if hasattr(self.live, "copy") else self.live[:]
        if not content:
            return self.absent()
        axes, size = struct.unpack_from("qq", content)
        shape, start = struct.unpack_from(f"{axes}q", content, 16), 16 + 8 * axes
        form, data = content[start : start + size].decode(), content[start + size :]
        if issubclass(self.type, bytearray):
            return bytearray(data)
        numpy = sys.modules.get("numpy")
        if numpy is None or not issubclass(self.type, numpy.ndarray):
            return self.type(form, data)
        try:
            dtype = numpy.dtype({"Zf": "F", "Zd": "D"}.get(form, form))
        except TypeError:  # of records, whose format is another language
            dtype = getattr(self.live, "dtype", None)
        if dtype is None:
            return self.absent()
        return numpy.frombuffer(bytearray(data), dtype).reshape(shape)


class _Tensor(_Maker):
    def made(self, content: Any) -> Any:
        torch = sys.modules["torch"]
        with undisturbed(torch):
            made = self._made(torch, content)
            if content and not isinstance(made, Absent):
                return self._dressed(torch, made, struct.unpack_from("q", content)[0] >> 49 & 1)
            return made

    def _made(self, torch: Any, content: bytes) -> Any:
        if not content:
            return self.absent() if self.live is None else _copy(torch, self.live.detach())
        head, offset, storage = struct.unpack_from("qqq", content)
        axes, dtype, is_small = head & 0xFFFFFFFF, head >> 32 & 0xFFFF, head >> 48 & 1
        numbers = struct.unpack_from(f"{2 * axes}q", content, 24)
        sizes, strides = numbers[:axes], numbers[axes:]
        if dtype not in _DTYPES:
            return self.absent()
        if not is_small:
            return self._large(storage, dtype, offset, sizes, strides)
        data, kind = bytearray(content[24 + 16 * axes :]), getattr(torch, _DTYPES[dtype])
        if not data:
            return torch.empty(sizes, dtype=kind)
        return torch.frombuffer(data, dtype=kind).as_strided(sizes, strides, offset)

    def _large(self, storage: int, dtype: int, offset: int, sizes: Any, strides: Any) -> Any:
        """From a copy that was made before the storage was written to, else as it is now."""
        view = sys.modules["opstep_past_tensors"].view
        made, is_known = view(storage, self.then.time, dtype, offset, sizes, strides)
        if made is None:
            return self.absent()
        if not is_known:
            self.marks.add(AS_NOW)
        return _copy(sys.modules["torch"], made)

    def _dressed(self, torch: Any, made: Any, needs_grad: int) -> Any:
        if self.type is torch.nn.Parameter:
            return torch.nn.Parameter(made, bool(needs_grad))
        return made.requires_grad_() if needs_grad else made


def _copy(torch: Any, t: Any) -> Any:
    """Of a tensor that is expanded its storage, of which it may show each element often."""
    storage = t.untyped_storage() if t.layout is torch.strided and not t.is_nested else None
    if storage is None or t.numel() * t.element_size() <= storage.nbytes():
        return t.clone()
    copied = torch.empty(0, dtype=t.dtype, device=t.device)
    return copied.set_(storage.clone(), t.storage_offset(), t.shape, t.stride())


_MEMORY = (kinds.BUFFER, kinds.TENSOR)
_MAKERS: dict[int, type[_Maker]] = {
    kinds.LIST: _List, kinds.DICT: _Dict, kinds.SET: _Set, kinds.TUPLE: _Tuple,
    kinds.DEQUE: _Deque, kinds.INSTANCE: _Instance, kinds.TEXT: _Text, kinds.BUFFER: _Buffer,
    kinds.TENSOR: _Tensor,
}  # fmt: skip
