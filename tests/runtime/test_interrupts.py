"""Whatever ends a run, params and states are those of the last step that was told, the workspace
says which that was, and to repeat it gives the same bits.

`pytest tests/runtime/test_interrupts.py --interrupts 200` presses Ctrl-C that often; half as often
comes SIGTERM, and half as often a task is cancelled.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import weakref
from contextlib import suppress

import pytest
from interrupting import (
    PLANS,
    PROGRAMS,
    STEPS,
    Interrupted,
    X,
    runs_signalled,
    tasks_cancelled,
    trajectories_on,
    values,
)

import opstep
from opstep.runtime.device.cpu.device import CpuDevice

DEFAULT = 16  # Ctrl-C's, where the option is not known: the folder was not named


def ids(plan: dict) -> str:
    return " ".join(map(str, plan.values()))


@pytest.fixture
def share(request) -> int:
    """How often runs under each plan are met."""
    return max(round(request.config.getoption("--interrupts", DEFAULT) / len(PLANS)), 2)


@pytest.fixture(scope="module")
def trajectories():
    return trajectories_on("cpu")


@pytest.mark.parametrize("plan", PLANS, ids=ids)
def test_ctrl_c(tmp_path, trajectories, share, plan):
    runs_signalled(tmp_path, trajectories, plan, share, signal.SIGINT)


@pytest.mark.parametrize("plan", PLANS, ids=ids)
def test_sigterm(tmp_path, trajectories, share, plan):
    """A recording turns it into `SystemExit`."""
    runs_signalled(tmp_path, trajectories, plan, share // 2, signal.SIGTERM)


@pytest.mark.parametrize("plan", PLANS, ids=ids)
def test_cancelled_tasks(tmp_path, trajectories, share, plan):
    tasks_cancelled(tmp_path, trajectories, plan, share // 2)


def in_a_finaliser(number: int) -> None:
    class Thing:
        """Something that goes."""

    weakref.finalize(Thing(), signal.raise_signal, number)


def in_del(number: int) -> None:
    class Thing:
        def __del__(self):
            signal.raise_signal(number)

    Thing()


def in_a_callback_of_c(number: int) -> None:
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(number))()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", [in_a_finaliser, in_del, in_a_callback_of_c])
@pytest.mark.parametrize("name", PROGRAMS)
def test_where_python_drops_what_a_handler_raises(tmp_path, trajectories, name, where, number):
    """The run ends all the same, at the next point where it waits."""
    hook = sys.unraisablehook
    for plan in PLANS:
        run = Interrupted(tmp_path, name, plan)

        class Listener:
            def before(self, execution, run=run):
                if run.told == 3:
                    where(number)

            def after(self, execution):
                """Looks on."""

        ended = SystemExit if number == signal.SIGTERM else KeyboardInterrupt
        with pytest.raises(ended), run.recording:
            run.program.run(listeners=[Listener()], **run.arguments())
        assert run.told in (3, 4)
        run.check(trajectories)
        assert sys.unraisablehook is hook


@pytest.mark.parametrize("plan", PLANS[:2], ids=ids)
def test_what_a_device_replays_as_one(tmp_path, trajectories, share, monkeypatch, plan):
    """As on a GPU: what nothing interrupts is one piece of work, updates with the rest."""
    monkeypatch.setattr(CpuDevice, "stretches", True)
    runs_signalled(tmp_path, trajectories, plan, share, signal.SIGINT)
    tasks_cancelled(tmp_path, trajectories, plan, share // 2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_error_in_on_step(tmp_path, trajectories, name):
    for plan in PLANS:
        program, told = opstep.loads(PROGRAMS[name]), 0

        def tell() -> None:
            nonlocal told
            told += 1
            if told == 5:
                raise ZeroDivisionError

        path = tmp_path / "runs.db"
        with opstep.Recording(workspace=path) as recording, suppress(ZeroDivisionError):
            program.run("main", X, steps=STEPS, recording=recording, on_step=tell, **plan)
        assert told == 5
        assert values(program) == trajectories[name][5]


@pytest.mark.parametrize("plan", PLANS, ids=ids)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_listener_that_raises_between_updates(trajectories, name, plan):
    class Listener:
        updates = 0

        def before(self, execution):
            """Looks on."""

        def after(self, execution):
            self.updates += execution.step.op.name == "update"
            if self.updates == 5:
                raise ZeroDivisionError

    program, told = opstep.loads(PROGRAMS[name]), []
    with pytest.raises(ZeroDivisionError):
        program.run(
            "main", X, steps=STEPS, listeners=[Listener()], on_step=lambda: told.append(1), **plan
        )
    assert values(program) == trajectories[name][len(told)]


def test_what_a_failed_step_changed_is_as_before():
    """An error behind a loop that updates a state: no part of the step is kept."""
    text = """\
        state turns: i64[] = 0
        state total: f32[] = 0.0

        graph main(x: f32[]) -> f32[] {
          far = while(x, test=small, body=grow)
          t = add(total, far)
          kept = add(t, 0.0)
          stored = store(kept)
          fine = less(stored, 50.0)
          assert fine, "too much"
          return stored
        }
        graph small(v: f32[]) -> bool[] {
          y = less(v, 20.0)
          return y
        }
        graph grow(v: f32[]) -> f32[] {
          n = add(turns, 1)
          y = mul(v, 2.0)
          turns <- n
          return y
        }
        graph store(v: f32[]) -> f32[] {
          total <- v
          y = mul(v, 1.0)
          return y
        }
        """
    for plan in PLANS:
        program = opstep.loads(text)
        with pytest.raises(opstep.OpstepError, match="too much"):
            program.run("main", {"x": 1.0}, steps=3, **plan)
        assert {n: a.item() for n, a in program.params.items()} == {"turns": 5, "total": 32.0}
