"""The child: reads a job, listens for a debugger of Python, and runs one block under it.

Run as a file, with the folder that holds the job. It says on standard output, in one line of JSON,
where it listens or why it cannot; it ends when its standard input does, so nothing is left behind
by a parent that is gone.
"""

import contextlib
import json
import os
import sys
import threading
from pathlib import Path

PATIENCE = 120.0  # seconds for a client to come


def main() -> None:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # as numba is imported it leaves GPUs alone
    folder = Path(sys.argv[1])
    sys.path[:] = json.loads((folder / "folders.json").read_text(encoding="utf-8"))
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what kernels and libraries print is for the client
    try:
        answer, run = _ready(folder / "job.npz")
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        print(json.dumps({"error": why[:500]}), file=output, flush=True)
        sys.exit(1)
    print(json.dumps(answer), file=output, flush=True)
    output.close()
    run()


def _ready(path: Path):
    """What the parent is told, and what runs the job once a client has come."""
    from opstep.runtime.debugger.kernel.work import Work

    work = Work(path)
    work.prepare()
    _daemon(_end_with_parent)
    import debugpy

    debugpy.configure(subProcess=False)
    _, port = debugpy.listen(("127.0.0.1", 0))
    waiting = threading.Timer(PATIENCE, debugpy.wait_for_client.cancel)
    waiting.daemon = True
    _unseen(waiting)
    waiting.start()

    def run() -> None:
        debugpy.wait_for_client()
        waiting.cancel()
        if debugpy.is_client_connected():
            _be_silent_about_rules()
            work.run()

    return {"port": port, "label": work.order.label}, run


def _be_silent_about_rules() -> None:
    """The client is not told that a step passed through what its rules leave out."""
    import pydevd  # pyright: ignore[reportMissingImports] - debugpy carries it

    pydevd.get_global_debugger().notify_skipped_step_in_because_of_filters = lambda frame: None


def _daemon(function) -> None:
    thread = threading.Thread(target=function, daemon=True)
    _unseen(thread)
    thread.start()


def _unseen(thread: threading.Thread) -> None:
    """As debugpy calls threads that it neither traces nor shows."""
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
