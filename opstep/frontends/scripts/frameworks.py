"""The frameworks that a script uses: what they compute runs on opstep while a script does.

with Frameworks({"hunt": True}) as frameworks:
    code = script.run(frameworks)

A framework is imported by the script alone, so one that it does not use need not be there.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from opstep.frontends.scripts.waiting import Waiting
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.hunting.report import Hunt
    from opstep.runtime.ir.wording import Wording

_PLACES = {
    "jax": ("opstep.frontends.jax.framework", "Jax"),
    "torch": ("opstep.frontends.torch.eager.framework", "Eager"),
}
_COMPILED = _PLACES | {"torch": ("opstep.frontends.torch.framework", "PyTorch")}
_NAMES = {"jax": "JAX", "torch": "PyTorch"}


class Framework(ABC):
    """One that a script has imported, while it is entered. `options`: see `Options`; `patterns`:
    the names of the parts that are wanted, all if there are none.

    `called`: how many parts of the script could have run on opstep; `compiled`: how many did;
    `count`: how often. `names`: what `patterns` could have meant.
    """

    part = ""  # what is compiled: "module"
    called = compiled = count = 0
    names: set[str] = set()

    @abstractmethod
    def __init__(self, options: dict[str, Any], patterns: Sequence[str]): ...

    @abstractmethod
    def __enter__(self) -> Framework: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    def leave(self) -> None:  # noqa: B027 - not all have anything to do then
        """The script is to end: other threads of it call nothing any more."""

    def settle(self, error: BaseException | None) -> None:  # noqa: B027 - nor then
        """The script has ended, perhaps by an error: waits for what was not looked at yet."""

    def seen(self) -> str:
        """The amount that a hunt has looked at."""
        return f"{_amount(self.count, 'call')} of {_amount(self.compiled, self.part)}"

    def excepted(self) -> str:
        """NaNs and infinities that a hunt does not report, and what it did not look at; "" if there
        are none.
        """
        return ""

    def notes(self) -> list[str]:
        """Facts on the run that a person should know."""
        return []

    def faults(self) -> list[Any]:
        """The `eager.lint.LintFinding`s of a lint."""
        return []

    def kept_step(self) -> Any:
        """The number and the program of the step at hand, where it is kept."""
        return None

    def unwatched(self) -> set[str]:
        """Parts that were called and not looked at: the script compiles them itself."""
        return set()

    def cause_of(self, error: Exception) -> BaseException | None:
        """See `script.Judge`."""
        return None

    def advice(self, error: Exception) -> Wording | None:
        """See `script.Judge`."""
        return None

    def outside(self, found: Hunt) -> str:
        """Advice where a part was given what is bad; "" where it was not one of these."""
        return ""


class Frameworks:
    """Those that a script imports. Each is entered once its package is there."""

    def __init__(
        self, options: Mapping[str, Any], patterns: Sequence[str] = (), compiled: bool = False
    ):  # fmt: skip
        """`compiled`: PyTorch's modules are compiled, and run on opstep."""
        self.options = dict(options)
        self._places = _COMPILED if compiled else _PLACES
        self.patterns = tuple(patterns)
        self.entered: list[Framework] = []
        self.refuse: Callable[[str], None] = lambda package: None  # options that it has no use for
        self._stack = ExitStack()

    def __enter__(self) -> Frameworks:
        arrivals = Arrivals(self._arrived)
        with ExitStack() as stack:  # what was entered is left where one of them is refused
            stack.callback(self._stack.close)
            sys.meta_path.insert(0, arrivals)
            self._stack.callback(sys.meta_path.remove, arrivals)
            for package in _PLACES:
                if package in sys.modules:
                    self._arrived(package)
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _arrived(self, package: str) -> None:
        self.refuse(package)
        module, name = self._places[package]
        made = getattr(importlib.import_module(module), name)(self.options, self.patterns)
        if not any(type(one) is type(made) for one in self.entered):
            self.entered.append(self._stack.enter_context(made))

    def notes(self) -> list[str]:
        """See `Framework.notes`."""
        return [text for one in self.entered for text in one.notes()]

    @property
    def called(self) -> int:
        return sum(one.called for one in self.entered)

    def unwatched(self) -> str:
        """See `Framework.unwatched`: their names, in order."""
        return ", ".join(sorted({name for one in self.entered for name in one.unwatched()}))

    @property
    def names(self) -> set[str]:
        return {name for one in self.entered for name in one.names}

    def leave(self) -> None:
        """The script is to end."""
        for one in self.entered:
            one.leave()

    def settle(self, error: BaseException | None) -> None:
        """See `Framework.settle`."""
        for one in self.entered:
            one.settle(error)

    def cause_of(self, error: Exception) -> BaseException | None:
        """See `script.Judge`."""
        if isinstance(error, OpstepError):
            return error
        return next(filter(None, (one.cause_of(error) for one in self.entered)), None)

    def advice(self, error: Exception) -> Wording | None:
        """See `script.Judge`."""
        return next(filter(None, (one.advice(error) for one in self.entered)), None)

    def outside(self, found: Hunt) -> str:
        """See `Framework.outside`."""
        return next(filter(None, (one.outside(found) for one in self.entered)), "")


class Arrivals(MetaPathFinder):
    """Calls a function with the name of a module when its import is done: of a framework, if no
    other names are given.
    """

    def __init__(self, tell: Callable[[str], None], names: Iterable[str] = _PLACES):
        self._tell, self._names = tell, frozenset(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        others = (f for f in sys.meta_path if f is not self)
        found = (f.find_spec(name, path, target) for f in others if hasattr(f, "find_spec"))
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                waiting = Waiting(f"importing {_NAMES.get(name, name)}")
                try:
                    load(module)
                    self._tell(name)
                finally:
                    waiting.done()

            loader.exec_module = exec_module
        return spec


def _amount(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def check_any_installed() -> None:
    """Complains where there is no framework that a script could use."""
    for package in _PLACES:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        return
    hint = "pip install 'opstep[torch]', or pip install 'opstep[jax]'"
    raise InputError("scripts need PyTorch or JAX, and neither is installed", hint=hint)
