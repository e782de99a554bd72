"""Scripts of `faults` and `healthy` under both forms of the watcher: the line of each birth that
does harm, no word about the others, and the same output as without a watcher.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from opstep.frontends.scripts.script import Ended, Leave, Script  # noqa: E402
from opstep.frontends.torch.eager import hooks, native  # noqa: E402
from opstep.frontends.torch.eager.session import Session  # noqa: E402

HERE = Path(__file__).parent
FAULTS = sorted(p.stem for p in (HERE / "faults").glob("*.py"))
HEALTHY = sorted(p.stem for p in (HERE / "healthy").glob("*.py"))
PROCESSES = re.compile(r"num_workers|multiprocessing|os\.fork|torch\.distributed|ProcessPool")
MARKER = re.compile(r"# expect: (\w+), (\w+)")
FORMS = ("native", "python")
# Under any mode of Python's PyTorch computes singular vectors beside the values: other last bits.
OTHER_BITS = [("singular_values", "python")]


class Judge:
    def cause_of(self, error):
        return None

    def advice(self, error):
        return None


@pytest.fixture(scope="module")
def built():
    try:
        native.build()
    except native.Unavailable as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no native watcher: {error}")


@pytest.fixture(params=FORMS)
def form(request):
    if request.param == "native":
        request.getfixturevalue("built")
    return request.param


@pytest.fixture(autouse=True)
def as_at_the_start():
    """Settings of PyTorch's that scripts change."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    random = torch.get_rng_state()
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.set_rng_state(random)
    torch.autograd.set_detect_anomaly(False)
    torch.use_deterministic_algorithms(False)
    torch.compiler.set_stance("default")
    gc.collect()


def path_of(name: str) -> Path:
    return HERE / ("faults" if name in FAULTS else "healthy") / f"{name}.py"


def run(path: Path, ended: Ended = lambda error: None) -> int:
    for name in [name for name in vars(hooks) if name.startswith("__import_")]:
        delattr(
            hooks, name
        )  # where Dynamo keeps the `__main__` that it saw: there is one a process
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Script.find(str(path)).run(Judge(), ended=ended)


def hunt(path: Path, form: str) -> list[dict]:
    """What is found first, as data; nothing in a healthy script."""
    found = []

    def tell(one):
        own = one.finding.verdict.own if one.finding.verdict else None
        found.append(
            {"line": one.place[1], "bad": one.finding.bad, "phase": one.phase, "op": one.finding.op,
             "elements": own, "step": one.step}
        )  # fmt: skip
        session.leave()
        raise Leave

    session = Session(tell, native=form == "native")
    assert session.watcher.form.lower() == form
    try:
        with session:
            run(path, session.end)
    except Leave:
        pass
    return found


@cache
def hunted(name: str, form: str) -> list[dict]:
    return hunt(path_of(name), form)


def first(name: str, form: str) -> dict:
    found = hunted(name, form)
    assert found, f"nothing was found in {name}"
    return found[0]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_line(name, form):
    lines = path_of(name).read_text(encoding="utf-8").split("\n")
    (wanted,) = ((k, *m.groups()) for k, line in enumerate(lines, 1) if (m := MARKER.search(line)))
    found = first(name, form)
    assert (found["line"], found["bad"], found["phase"]) == wanted


@pytest.mark.parametrize("name", FAULTS)
def test_both_forms_find_the_same(name, built):
    assert first(name, "native") == first(name, "python")


@pytest.mark.parametrize(
    "name", [n for n in HEALTHY if not PROCESSES.search(path_of(n).read_text(encoding="utf-8"))]
)
def test_healthy_scripts_do_what_they_do_alone(name, form, capfd):
    code = run(path_of(name))
    torch.compiler.reset()
    alone = capfd.readouterr().out
    session = Session(lambda found: said.append(found), native=form == "native")
    said: list = []
    with session:
        watched = run(path_of(name), session.end)
    torch.compiler.reset()
    assert not said
    printed = capfd.readouterr().out
    assert watched == code and (printed == alone or (name, form) in OTHER_BITS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in HEALTHY if PROCESSES.search(path_of(n).read_text(encoding="utf-8"))]
)
def test_healthy_scripts_with_processes(name, form):
    """In processes of their own: a child never comes back to where it was forked."""
    path = str(path_of(name))
    alone, watched = (
        subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
        for words in ([path], [__file__, path, form])
    )
    assert watched.returncode == alone.returncode, watched.stderr
    assert watched.stdout == alone.stdout
    assert watched.stderr.splitlines()[-1] == "[]"


if __name__ == "__main__":
    said: list = []
    session = Session(lambda found: said.append(found.place), native=sys.argv[2] == "native")
    with session:
        code = run(Path(sys.argv[1]), session.end)
    sys.stdout.flush()
    print(json.dumps(said), file=sys.stderr)
    sys.exit(code)
