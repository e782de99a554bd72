"""Kernels: disassemble, modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.dap.code import (
    MOST_STEPS,
    WIDTH,
    KernelInfo,
    Line,
    Listings,
    address_of,
    kernels_of,
    sections_of,
    types_of,
)
from opstep.dap.compiling import Compiling
from opstep.dap.frames import frame_of
from opstep.dap.registry import BAD_ARGUMENTS, LAUNCHED, DapError, request

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.plan.plan import Plan

MOST = 10_000  # instructions of one response


@request("disassemble", capability="supportsDisassembleRequest")
def disassemble(
    session: Session,
    memory_reference: str,
    instruction_count: int,
    offset: int = 0,
    instruction_offset: int = 0,
) -> dict[str, Any]:
    """The code of the op that a frame stands at: SASS and PTX of a GPU's kernels, native assembly
    and LLVM's IR of the CPU's. Addresses are those of lines in a listing.
    """
    if not 0 <= instruction_count <= MOST:
        raise DapError(f"at most {MOST:,} instructions are disassembled at a time", BAD_ARGUMENTS)
    session.per_session(Compiling)
    start = address_of(session, memory_reference)
    lines, base = session.per_session(Listings).lines(start)
    first = (start - base + offset) // WIDTH + instruction_offset
    numbers = range(first, first + instruction_count)
    return {"instructions": [_instruction(session, lines, base, k) for k in numbers]}


def _instruction(session: Session, lines: list[Line], base: int, k: int) -> dict[str, Any]:
    address = f"{max(base + k * WIDTH, 0):#x}"
    if not 0 <= k < len(lines):
        return {"address": address, "instruction": "", "presentationHint": "invalid"}
    line = lines[k]
    found: dict[str, Any] = {"address": address, "instruction": line.text}
    if line.symbol:
        found["symbol"] = line.symbol
    if line.place is not None:
        path, number = line.place
        found |= {"location": session.source(path), "line": session.client.line(number)}
    return found


# --- modules --------------------------------------------------------------------------------------


COLUMNS = [
    {"attributeName": "op", "label": "Op", "type": "string"},
    {"attributeName": "registers", "label": "Registers", "type": "number"},
    {"attributeName": "sharedMemory", "label": "Shared memory (bytes)", "type": "number"},
]


@request(
    "modules",
    capability="supportsModulesRequest",
    advertises={"additionalModuleColumns": COLUMNS},
    states=LAUNCHED,
)
def modules(session: Session, start_module: int = 0, module_count: int = 0) -> dict[str, Any]:
    """The kernels of the plans that are being run, with registers and shared memory on a GPU."""
    if start_module < 0 or module_count < 0:
        raise DapError("modules: startModule and moduleCount are not negative", BAD_ARGUMENTS)
    debuggee = session.debuggee
    if debuggee is None or debuggee.debugger is None:
        return {"modules": [], "totalModules": 0}
    kernels = list(_kernels(session))
    first = start_module
    last = first + module_count if module_count else len(kernels)
    page = list(enumerate(kernels))[first:last]
    bodies = [_module(session, number, kernel) for number, kernel in page]
    return {"modules": bodies, "totalModules": len(kernels)}


def _kernels(session: Session) -> dict[KernelInfo, None]:
    visited: set[Any] = set()
    found: dict[tuple[Any, Any], KernelInfo] = {}
    for plan in _plans(session):
        for step in plan.steps:
            key = (step.op, types_of(plan, step), repr(list(step.attrs.values())))
            if key in visited or len(visited) >= MOST_STEPS:
                continue
            visited.add(key)
            for kernel in kernels_of(session, plan, step):
                found.setdefault((kernel.function, kernel.compiled), kernel)
    return dict.fromkeys(found.values())


def _plans(session: Session) -> list[Plan]:
    """Of the frames where the run stands, or stood."""
    plans = {id(f.activation.plan): f.activation.plan for f in session.debugger.stack()}
    return list(plans.values())


def _module(session: Session, number: int, kernel: KernelInfo) -> dict[str, Any]:
    path, _ = kernel.definition
    found: dict[str, Any] = {
        "id": number,
        "name": kernel.name,
        "op": kernel.op,
        "version": kernel.target,
        "isOptimized": True,
        "symbolStatus": "LLVM IR and native assembly",
    }
    if not path.startswith("<"):
        found["path"] = path
    if kernel.target != "cpu":
        from opstep.runtime.device.disassembly import cuda_resources

        resources = cuda_resources(kernel.compiled, kernel.target)
        found["symbolStatus"] = f"{resources.registers} registers, {resources.shared} bytes shared"
        found |= {"registers": resources.registers, "sharedMemory": resources.shared}
    return found


# --- of our own -----------------------------------------------------------------------------------


@request("opstep/kernelCode", custom=True)
def kernel_code(session: Session, frame_id: int) -> dict[str, Any]:
    """The whole code of the kernels of the op that a frame stands at."""
    session.per_session(Compiling)
    frame = frame_of(session, frame_id)
    step = frame.step
    kernels = kernels_of(session, frame.activation.plan, step) if step else []
    bodies = []
    for kernel in kernels:
        sections = [
            {"title": s.title, "text": "\n".join(s.lines)}
            | ({"obstacle": s.obstacle} if s.obstacle else {})
            for s in sections_of(kernel)
        ]
        bodies.append({"name": kernel.name, "target": kernel.target, "sections": sections})
    return {"kernels": bodies}
