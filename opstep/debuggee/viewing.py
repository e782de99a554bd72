"""Tensors and arrays of a stopped script, as views of the editor ask for them. A view names what
it shows by where it is kept; `answer` computes what is seen of it, outside of the script's modes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

from opstep.runtime.ir.diagnostics import OpstepError

ASKED_S, UNASKED_S = 0.05, 0.1  # in which figures of a table are taken
SMALL = 1 << 16  # elements of which figures are taken unasked
FEW = 8  # such tensors, whose figures are taken in any case
MOST_ITEMS = 50  # of a list or a dict whose tensors are rows of a table
MOST_ROWS = 20_000
FIGURES = ("nan", "posinf", "neginf", "min", "max", "mean", "std")

_kept: dict[int, Any] = {}


def keep(number: int, value: Any) -> None:
    """Of an expression that the debugger evaluates in the script's thread."""
    _kept[number] = value


class Found(NamedTuple):
    """`marks`: of what is past, what is not certain of it."""

    value: Any
    marks: list[str] = []


def answer(name: str, of: dict[str, Any], given: dict[str, Any], past: Any) -> Any:
    """`name`: of a function below. Raises ValueError with a text for people."""
    call: Callable[..., Any] = _ANSWERS[name]
    try:
        with _unseen():
            return call(_found(of, past), **given)
    except OpstepError as error:
        raise ValueError(error.diagnostics[0].message) from None


def _unseen() -> Any:
    if sys.modules.get("torch") is None:
        return nullcontext()
    from opstep.frontends.torch.debugging import watching

    return watching.unseen()


# --- what is meant --------------------------------------------------------------------------------


def _found(of: dict[str, Any], past: Any) -> Found:
    kind, place = next(iter(of.items()))
    if kind == "kept":
        return Found(_kept.pop(place))
    if kind == "operand":
        from opstep.frontends.torch.debugging import watching

        return Found(watching.operand(*place))
    if kind == "variable":
        return Found(_variable(*place))
    if kind == "past":
        return Found(*past.valued(**place))
    if kind == "pastNames":
        return Found(*past.names(**place))
    return Found(*past.child(*place))


def _variable(reference: int, name: str) -> Any:
    """A child of what pydevd shows."""
    debugger = sys.modules["_pydevd_bundle.pydevd_constants"].get_global_debugger()
    try:
        parent = debugger.suspended_frames_manager.get_variable(reference)
    except KeyError:
        raise ValueError("the program has gone on: open it again") from None
    child = parent.get_child_variable_named(name)
    if child is None:
        raise ValueError(f"{name[:80]} is not there any more")
    return child.value


def _tensor(value: Any, part: str = "value") -> Any:
    """As views ask for one. `part`: an expression over ``value``."""
    if part != "value":
        known = {name: sys.modules[name] for name in ("torch", "math") if name in sys.modules}
        value = eval(part, {**known, "value": value})
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from opstep.frontends.torch.debugging.tensors import ScriptTensor

        return ScriptTensor(value)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        from opstep.editors.views import HostTensor

        return HostTensor(numpy.asarray(value))
    raise ValueError(f"a {type(value).__name__} is no tensor and no array")


# --- answers --------------------------------------------------------------------------------------


def _type(found: Found, part: str) -> dict[str, Any]:
    from opstep.editors.views import type_json

    tensor = _tensor(found.value, part)
    body = type_json(tensor) | {"language": "python"}
    body["type"] = getattr(tensor, "text", body["type"])
    return body | {"marks": found.marks}


def _slice(found: Found, part: str, most: int | None) -> dict[str, Any]:
    from opstep.editors.views import sliced

    return sliced(_tensor(found.value, part), most)


def _places(found: Found, part: str, kind: str, first: int, count: int) -> dict[str, Any]:
    """Of elements that are not finite, i64[n, rank]."""
    from opstep.editors.views import HostTensor, sliced

    tensor = _tensor(found.value, part)
    if hasattr(tensor, "places"):
        places = tensor.places(kind)[first : first + count].cpu().numpy()
    else:
        numpy = sys.modules["numpy"]
        places = numpy.argwhere(_mask(numpy, tensor.array(), kind))[first : first + count]
    return sliced(HostTensor(places), None)


def _mask(numpy: Any, array: Any, kind: str) -> Any:
    if kind == "any":
        return ~numpy.isfinite(array)
    return getattr(numpy, "is" + kind)(array)


def _statistics(found: Found, part: str) -> dict[str, Any]:
    from opstep.editors.views import statistics_json

    tensor = _tensor(found.value, part)
    return {"type": str(tensor.type), "statistics": statistics_json(tensor.statistics())}


def _histogram(
    found: Found, part: str, bins: int, low: float | None, high: float | None
) -> dict[str, Any]:
    from opstep.editors.views import histogram

    return histogram(_tensor(found.value, part), bins, low, high)


def _values(
    found: Found, names: list[str] | None, most: int, start: int, count: int
) -> dict[str, Any]:
    """Tensors of a frame, of its modules, and of objects, lists and dicts in it."""
    rows = list(_rows(found.value))
    wanted = set(names or ())
    shown = [r for r in rows if r["name"] in wanted] if names is not None else rows[-most:]
    shown = shown[start:][: count or MOST_ROWS]
    until = time.perf_counter() + (UNASKED_S if names is None else ASKED_S)
    few = FEW
    for row in reversed(shown):  # the newest first
        tensor = row.pop("tensor")
        is_small = tensor.type.size <= SMALL
        few -= is_small
        if (is_small and few >= 0) or (
            (is_small or names is not None) and time.perf_counter() < until
        ):
            row |= _figures(tensor)
    return {"graph": "", "source": {}, "hasRun": False, "total": len(rows), "values": shown}


def _figures(tensor: Any) -> dict[str, Any]:
    from opstep.editors.views import figure
    from opstep.runtime.expressions.text import figures_text, number_text

    s, t = tensor.statistics(), tensor.type
    text = figures_text(t, s) if t.shape else number_text(tensor.array()[()])
    said = {name: figure(v) for name in FIGURES if (v := getattr(s, name)) is not None}
    return {"text": text, "statistics": said}


def _rows(names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for name, value in list(names.items()):
        if name.startswith("__") or not isinstance(name, str):
            continue
        for expression, kind, one in _tensors_in(name, value):
            try:
                tensor = _tensor(one)
            except (ValueError, OpstepError):  # without elements that could be shown
                continue
            if id(one) in seen and kind != "value":
                continue
            seen.add(id(one))
            text = getattr(tensor, "text", str(tensor.type))
            nbytes = tensor.type.nbytes
            yield {"name": expression, "kind": kind, "type": text, "bytes": nbytes,
                   "tensor": tensor}  # fmt: skip


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(expression, kind, tensor)."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kinds = tuple(
        t for t in (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))
        if isinstance(t, type)
    )  # fmt: skip
    module = getattr(getattr(torch, "nn", None), "Module", ())
    if isinstance(value, kinds):
        yield name, "param" if _is_parameter(value) else "value", value
    elif isinstance(value, module):
        for inner, p in value.named_parameters():
            yield f"{name}{_path(inner)}", "param", p
        for inner, b in value.named_buffers():
            yield f"{name}{_path(inner)}", "state", b
    elif type(value) in (list, tuple):
        for k, item in enumerate(value[:MOST_ITEMS]):
            if isinstance(item, kinds):
                yield f"{name}[{k}]", "value", item
    elif type(value) is dict:
        for key, item in list(value.items())[:MOST_ITEMS]:
            if isinstance(item, kinds) and isinstance(key, (str, int)):
                yield f"{name}[{key!r}]", "value", item
    elif type(value).__module__ not in ("builtins", "torch") and not isinstance(value, type):
        for inner, item in list(getattr(value, "__dict__", {}).items())[:MOST_ITEMS]:
            if isinstance(item, kinds):
                yield f"{name}.{inner}", "value", item


def _is_parameter(value: Any) -> bool:
    return type(value).__name__ == "Parameter"


def _path(name: str) -> str:
    """``layers.0.weight`` as an expression goes on: ``.layers[0].weight``."""
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))


def _nan_report(found: Found, part: str) -> dict[str, Any]:
    _need_torch()
    from opstep.frontends.torch.debugging import nan_report

    return nan_report.of_tensor(found.value)


def _graph(found: Found, graph: str | None) -> dict[str, Any]:
    _need_torch()
    graphs = found.value
    if graph is not None and graph not in graphs:
        raise ValueError(f"{graph[:80]} is not in the graph any more")
    return graphs[graph] if graph is not None else next(iter(graphs.values()))


def _need_torch() -> None:
    """What a script did not import must not be imported into it."""
    if "torch" not in sys.modules:
        raise ValueError("the program has not imported PyTorch")


_ANSWERS: dict[str, Callable[..., Any]] = {
    "type": _type, "slice": _slice, "places": _places, "statistics": _statistics,
    "histogram": _histogram, "values": _values, "nanReport": _nan_report, "graph": _graph,
}  # fmt: skip
