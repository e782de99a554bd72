"""Into a kernel: step-in targets that start a session of their own, under debugpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from opstep.dap.frames import frame_of
from opstep.dap.registry import DapError, request
from opstep.dap.requests.execution import StepInTarget, offers_targets
from opstep.runtime.ir.diagnostics import OpstepError

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.debugger.kernel.job import Job
    from opstep.runtime.debugger.kernel.launches import KernelLaunch
    from opstep.runtime.debugger.kernel.process import KernelProcess
    from opstep.runtime.debugger.kernel.stop import KernelsAtStop

NO_KERNEL = 2101
MOST_CHILDREN = 8  # kernels under a debugger at a time


class Children:
    """``session.per_session(Children)``: the processes in which kernels of a session are debugged.
    They end with their clients; those left end with the session.
    """

    def __init__(self, _: Session):
        self.running: list[KernelProcess] = []

    def add(self, child: KernelProcess) -> None:
        self.running.append(child)

    def close(self) -> None:
        """The session is over."""
        while self.running:
            self.running.pop().close()

    def make_room(self) -> None:
        """Lets go of those that have ended. Raises `DapError` where too many have not."""
        for child in [c for c in self.running if c.wait(0)]:
            self.end(child)
        if len(self.running) >= MOST_CHILDREN:
            text = f"{MOST_CHILDREN} kernels are being debugged: end one first"
            raise DapError(text, NO_KERNEL, show=True)

    def end(self, child: KernelProcess) -> None:
        child.close()
        if child in self.running:
            self.running.remove(child)


def kernels_at(session: Session, frame: Frame) -> KernelsAtStop:
    """What the op at the stop launches."""
    from opstep.runtime.debugger.kernel.stop import KernelsAtStop

    return KernelsAtStop(frame)


@offers_targets
def kernel_targets(session: Session, frame: Frame) -> list[StepInTarget]:
    """The first unit of each launch of the op on the CPU, and the first thread of those on a GPU,
    what the session runs on first; before them, where a NaN or an infinity stopped the run, the
    thread that wrote it.
    """
    found = kernels_at(session, frame)

    def target(launch: KernelLaunch, element: tuple[int, int] | None = None) -> StepInTarget:
        def into() -> None:
            enter(session, found.job(launch, element=element))

        return StepInTarget(found.label(launch, element), into)

    possible = [launch for launch in found.launches if not launch.obstacle]
    bad = _bad_element(session, found)
    of_it = [k for k in possible if k.number == k.count - 1] if bad else []
    return [*(target(k, bad) for k in of_it), *(target(launch) for launch in possible)]


def _bad_element(session: Session, found: KernelsAtStop) -> tuple[int, int] | None:
    """The element for which the run stopped behind the op, if it did so for one."""
    stop = session.debugger.stop
    problem = stop.exception if stop else None
    node = problem.node if problem else None
    if problem is None or node is None or node.producer is None:
        return None
    if node.producer.step is not found.step or problem.kind not in ("nan", "inf"):
        return None
    index = found.first_odd(node, problem.kind)
    return None if index is None else (node.index, index)


def enter(session: Session, job: Job) -> dict[str, Any]:
    """Starts a child with the job, and asks the client to attach to it. The run stays where it is,
    and says so behind the response.
    """
    from opstep.runtime.debugger.kernel.process import KernelProcess

    children = session.per_session(Children)
    children.make_room()
    with session.progress(f"Starting {job.label}", cancellable=True):
        child = KernelProcess(job, session.check_cancelled)
    children.add(child)
    configuration = child.configuration
    if session.client.supports_start_debugging_request:
        request_arguments = {"request": "attach", "configuration": configuration}

        def answered(response: dict[str, Any]) -> None:
            if not response.get("success"):
                session.output(f"{child.label}: the client starts no session for it", "important")
                children.end(child)

        session.ask("startDebugging", request_arguments, answered)
    else:
        session.output(
            f"{child.label}: attach a debugger of Python (debugpy) to {child.host}:{child.port}",
            "important",
        )
    assert session.debuggee is not None
    session.debuggee.announce()
    session.after(lambda: _report_stop(session, child.label))
    return configuration


def _report_stop(session: Session, label: str) -> None:
    from opstep.runtime.debugger.checks import Stop

    debuggee, stop = session.debuggee, session.debugger.stop
    assert debuggee is not None
    thread = stop.thread if stop else 0
    reported = Stop("step", f"{label} has a session of its own", thread)
    # What is to be looked at is the kernel, as soon as it stands.
    debuggee.go(lambda: reported, keeps_focus=session.client.supports_start_debugging_request)


# --- of our own -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelArguments:
    frame_id: int
    target: Literal["cuda", "cpu"] = "cuda"
    launch: int = 0
    block: list[int] | None = None
    thread: list[int] | None = None
    unit: int = 0
    element: list[int] | None = None
    result: int = 0
    all_threads: bool = False


@request("opstep/kernels", custom=True)
def kernels(session: Session, frame_id: int) -> dict[str, Any]:
    """What the op at the stop launches: sizes, places of the source, what is in the way of entering
    one, if anything is.
    """
    found = kernels_at(session, frame_of(session, frame_id))
    return {"kernels": [_described(session, launch) for launch in found.launches]}


def _described(session: Session, launch: KernelLaunch) -> dict[str, Any]:
    path, line = launch.definition
    body: dict[str, Any] = {
        "label": launch.label(),
        "target": launch.target,
        "launch": launch.number,
        "function": launch.function.__name__,
    }
    if launch.target == "cpu":
        body["units"] = launch.units
    else:
        body |= {"grid": list(launch.grid), "block": list(launch.block)}
    if not path.startswith("<"):
        body |= {"source": session.source(path), "line": session.client.line(line)}
    return body | ({"obstacle": launch.obstacle} if launch.obstacle else {})


@request("opstep/enterKernel", custom=True)
def enter_kernel(session: Session, arguments: KernelArguments) -> dict[str, Any]:
    """Enters a launch in a thread of one's choice. Answers with the configuration that a client
    attaches with.
    """
    found = kernels_at(session, frame_of(session, arguments.frame_id))
    requested = (arguments.target, arguments.launch)
    launch = next((k for k in found.launches if (k.target, k.number) == requested), None)
    if launch is None:
        raise DapError(f"no kernel {requested[1]} for {requested[0]} here", NO_KERNEL, show=True)
    block, thread = _three(arguments.block), _three(arguments.thread)
    element = None if arguments.element is None else _element(found, arguments)
    try:
        chosen = (block, thread, arguments.unit, arguments.all_threads, element)
        job = found.job(launch, *chosen)
        return {"configuration": enter(session, job)}
    except OpstepError as error:
        raise DapError(str(error), NO_KERNEL, show=True) from None


def _element(found: KernelsAtStop, arguments: KernelArguments) -> tuple[int, int]:
    """A result, and the number of one of its elements."""
    types = found.results
    if not 0 <= arguments.result < len(types):
        raise DapError(f"the op has {len(types)} results", NO_KERNEL, show=True)
    shape: Any = types[arguments.result].shape  # concrete here
    number = 0
    index = arguments.element or []
    if len(index) != len(shape):
        raise DapError(f"an element of {types[arguments.result]} has {len(shape)} indices")
    for k, size in zip(index, shape, strict=True):
        if not 0 <= k < size:
            raise DapError(f"{index} is not an element of {types[arguments.result]}", show=True)
        number = number * size + k
    return arguments.result, number


def _three(indices: list[int] | None) -> tuple[int, int, int]:
    x, y, z = (*(indices or ())[:3], 0, 0, 0)[:3]
    return x, y, z
