"""The CUDA kernels that the ops' test graphs launch, and those of the same graphs with larger
sizes: what is compiled where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import product
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from cases import Case, cases, program
from values import flattened

from opstep.runtime.device import source
from opstep.runtime.device.cuda.compiling.compiler import CUDA, Kernel
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.ir.graph import Apply, Literal
from opstep.runtime.ir.op import Mismatch, resolve
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.verified import Application
from opstep.runtime.plan.plan import Step

GROWN = (16, 256)  # times the sizes of a test graph: other kernels are chosen for them
LARGEST = 1 << 28  # elements


class Use(NamedTuple):
    """Where a kernel comes from."""

    op: str
    case: str
    dtype: str
    grown: int


Arch = tuple[int, int]
"""A compute capability."""


def kernels(file: str, archs: Iterable[Arch]) -> dict[Kernel, tuple[Use, set[Arch]]]:
    """Every kernel that the test graphs of a file launch on any of these architectures, with those
    that it is launched on.
    """
    found: dict[Kernel, tuple[Use, set[Arch]]] = {}
    for case in cases():
        for dtype in case.dtypes if case.file == file else ():
            for op, step, types in steps(case, dtype):
                for grown, arch in product((1, *GROWN), archs):
                    with targeting(f"sm_{arch[0]}{arch[1]}"):
                        for kernel in launched(step, types, grown):
                            use = Use(op.name, case.id, dtype, grown)
                            found.setdefault(kernel, (use, set()))[1].add(arch)
    return found


def family(kernel: Kernel) -> str:
    """Kernels of one family differ by how elements are converted as they are read and written."""
    name = kernel.dtype.name
    return name if name == "f64" else "f32" if kernel.dtype.is_float else "integer"


def representatives(found: dict[Kernel, Use], each: int) -> dict[Kernel, Use]:
    """Of kernels that are one function of the source and one family, `each` that differ most: by
    the constants that they close over, by conversions.
    """
    groups: dict[tuple, list[Kernel]] = {}
    for kernel in found:
        code: Any = kernel.function.__code__  # pyright: ignore[reportFunctionMemberAccess]
        inner = [f.__code__ for f in _closed_over(kernel.function)]
        groups.setdefault((code, *inner, family(kernel)), []).append(kernel)
    chosen = []
    for group in groups.values():
        ordered = sorted(group, key=lambda k: sum(":" in kind for kind in k.signature))
        chosen += {ordered[-1 - round(n * (len(ordered) - 1) / max(1, each - 1))]: None
                   for n in range(each)}  # fmt: skip
    return {kernel: found[kernel] for kernel in chosen}


def covering(found: Mapping[Kernel, Iterable[Any]]) -> list[Kernel]:
    """Few of these kernels, given with their architectures, that hold all `parts` of all of them,
    and every kernel's text with the least and the most of its constants.
    """
    kernels = list(found)
    constants: dict[tuple, set[str]] = {}
    for kernel in kernels:
        constants.setdefault(_text(kernel), set()).add(_constants(kernel))
    extremes = {text: _extremes(of_text) for text, of_text in constants.items()}
    traits = {kernel: parts(kernel, found[kernel]) for kernel in kernels}
    for kernel in kernels:
        if _constants(kernel) in extremes[_text(kernel)]:
            traits[kernel].add((*_text(kernel), _constants(kernel)))
    queue = [(-len(of_kernel), n) for n, of_kernel in enumerate(traits.values())]
    heapify(queue)
    covered: set[tuple] = set()
    chosen = []
    while queue:  # the one that adds most is next
        _, n = heappop(queue)
        new = traits[kernels[n]] - covered
        if new and queue and -len(new) > queue[0][0]:
            heappush(queue, (-len(new), n))
        elif new:
            chosen.append(kernels[n])
            covered |= new
    return chosen


def parts(kernel: Kernel, archs: Iterable[Any]) -> set[tuple]:
    """What is compiled as part of it, its text and every function that is called from there: each
    for integers and for floats, with elements that are converted, with none that is wider than f32,
    for each architecture. Floats are f32 where there is such a kernel: f64 goes through the same
    text, and what has a body of its own for f64 is another function.
    """
    codes = {f.__code__ for f in _called(kernel.function, kernel.dtype, set())}
    found = {_text(kernel), *((code,) for code in codes)}
    traits = [*archs]
    if any(":" in kind for kind in kernel.signature):
        traits.append("converts")
    if is_single(kernel):
        traits.append("single")
    if family(kernel) != "f64":
        traits.append(family(kernel))
    return {(*part, trait) for part in found for trait in traits}


def is_single(kernel: Kernel) -> bool:
    """Whether f32 is enough: integers that f32 cannot hold are rounded from f64."""
    wide = ("f64", "i64", "i32")
    return kernel.dtype.name == "f32" and not any(
        w in kind for kind in kernel.signature for w in wide
    )


def _text(kernel: Kernel) -> tuple:
    """The kernel's own code, whatever functions are put into it."""
    code: Any = kernel.function.__code__  # pyright: ignore[reportFunctionMemberAccess]
    values = tuple(repr(c) for c in code.co_consts if not isinstance(c, CodeType))
    return code.co_name, code.co_code, values, code.co_names, len(kernel.signature)


def _constants(kernel: Kernel) -> str:
    return repr([c for c in _cells(kernel.function) if not isinstance(c, FunctionType)])


def _extremes(texts: set[str]) -> set[str]:
    ordered = sorted(texts, key=lambda text: (len(text), text))
    return {ordered[0], ordered[-1]}


def _called(function: Any, dtype: DType, found: set[FunctionType]) -> set[FunctionType]:
    """All that it calls, directly or not, as the compiler for CUDA goes."""
    for value in source.referenced(function).values():
        if isinstance(value, FunctionType) and (body := CUDA.body(value, dtype)) not in found:
            found.add(body)
            _called(body, dtype, found)
    return found


def _cells(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or ()]


def _closed_over(function: Any) -> list[FunctionType]:
    return [c for c in _cells(function) if isinstance(c, FunctionType)]


def steps(case: Case, dtype: str) -> Iterator[tuple[Any, Step, list[TensorType | None]]]:
    """(op, step, types of its operands as they are stored) of each op of a test graph."""
    checked = program(case.id, dtype).verified.graphs[case.graph.name.text]
    values: dict[str, TensorType | None] = {b.name.text: b.type for b in checked.graph.inputs}
    for statement, application in flattened(checked, {}):
        if not isinstance(statement, Apply) or application is None or application.op is None:
            continue
        resolved = application.resolved
        stored = [
            t if isinstance(o, Literal) else values[o.text]
            for o, t in zip(statement.operands, resolved.operands, strict=False)
        ]
        stored += [None] * (len(resolved.operands) - len(stored))
        for binding, t in zip(statement.results, resolved.results, strict=True):
            values[binding.name.text] = t
        yield application.op, _step(application, resolved.operands, statement), stored


def _step(application: Application, operands, statement: Apply) -> Step:
    return Step(application.op, (), (), operands, dict(application.attrs), 0, statement)  # pyright: ignore[reportArgumentType]


def launched(step: Step, stored: list[TensorType | None], grown: int) -> Iterator[Kernel]:
    """The kernels of a step whose sizes are `grown` times as large."""
    for lowering, launches in lowerings(step, stored, grown):
        for launch in lowering.lowered(launches)[0]:
            if isinstance(launch, Prepared):
                yield launch.kernel


def lowerings(
    step: Step, stored: list[TensorType | None], grown: int
) -> Iterator[tuple[Lowering, Any]]:
    """(what lowers them, the launches that the step asks for) of each variant of a step whose sizes
    are `grown` times as large, where its rule allows that.
    """
    larger = [None if t is None else _grown(t, grown) for t in stored]
    given = [a for a in larger if a is not None]
    if max((int(t.size) for t in given), default=0) > LARGEST:
        return
    try:
        resolved = resolve(step.op, given, step.attrs)  # pyright: ignore[reportArgumentType]
    except Mismatch:
        return
    step = replace(step, operand_types=resolved.operands)
    lowering = Lowering(step, (*larger, *resolved.results))
    for variant in lowering.variants().values():
        yield lowering, variant


def _grown(t: TensorType, times: int) -> TensorType:
    return t.with_shape(d * times if d > 1 else d for d in t.shape)
