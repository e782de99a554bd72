"""What a feature is: one function, decorated with the request or notification that it answers.

    @feature(types.TEXT_DOCUMENT_HOVER)
    def hover(project: Project, params: types.HoverParams) -> types.Hover | None:
        file = project.file(params.text_document.uri)
        ...

What is declared here is advertised, and nothing else. Params of the protocol's methods come as
`lsprotocol` has them; those of our own methods (``opstep/…``) as plain dicts, and plain dicts are
returned. An `OpstepError` becomes an error response with its text; anything else that is raised is
written to the log, and the client is told that there is a bug.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Feature:
    """A declared feature. `options` are what the protocol lets a server say about it. With `thread`
    the function runs beside the loop that answers everything else: it may look only at what does
    not change (databases, files on disk, what it was given).
    """

    method: str
    function: Callable[..., Any]
    options: Any
    thread: bool


_features: dict[str, Feature] = {}


def feature(method: str, options: Any = None, thread: bool = False) -> Callable[[_F], _F]:
    """Declares the function below as what answers `method`."""

    def declare(function: _F) -> _F:
        if method in _features:
            raise ValueError(f"feature {method} is declared twice")
        _features[method] = Feature(method, function, options, thread)
        return function

    return declare


@cache
def features() -> Mapping[str, Feature]:
    """Every feature by its method; imports the modules of `features` and of `custom`."""
    for name in ("opstep.lsp.features", "opstep.lsp.custom"):
        package = importlib.import_module(name)
        for found in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(found.name)
    return _features
