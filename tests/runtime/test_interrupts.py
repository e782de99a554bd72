"""Whatever ends a run, params and states are those of the last step that was told, the workspace
says which that was, and to repeat it gives the same bits.

`pytest tests/runtime/test_interrupts.py --interrupts 200` presses Ctrl-C that often; half as often
comes SIGTERM, and half as often a task is cancelled.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import suppress

import pytest
from interrupting import PLANS, PROGRAMS, STEPS, X, signalled, trajectory, values

import opstep


@pytest.fixture(scope="module")
def trajectories():
    return {name: trajectory(text) for name, text in PROGRAMS.items()}


def check_left_behind(path, name, program, told, expected) -> None:
    """`told`: how many steps; `expected`: the program's trajectory."""
    assert values(program) == expected[told], f"{name}: not those of step {told}"
    with opstep.Workspace(path) as ws:
        run = ws.run("last")
        assert run.steps == told
        assert run.status == ("done" if told == STEPS else "interrupted") or told == STEPS
        for tensor in run.tensors:
            if tensor.kind in ("param", "state") and tensor.step == told - 1 >= 0:
                assert ws.elements(tensor).tobytes() == expected[told][tensor.name]
        if told:
            again = ws.rerun(run)
            assert again.identical, (name, told, again.different, again.error)
            assert not told or set(again.same) & set(program.params)


def processor_time(folder, text: str, plan: dict) -> float:
    """Seconds that an undisturbed run takes, once all is compiled."""
    for _ in range(2):
        program = opstep.loads(text)
        began = time.process_time()
        with opstep.Recording(workspace=folder / "undisturbed.db") as recording:
            program.run("main", X, steps=STEPS, recording=recording, **plan)
    return time.process_time() - began


def cases(count: int, seed: int):
    """Which program under which plan, and when: a share of the run's time."""
    rng = random.Random(seed)
    for k in range(count):
        plan = PLANS[k // len(PROGRAMS) % len(PLANS)]
        yield list(PROGRAMS)[k % len(PROGRAMS)], plan, rng.random() * 1.1, rng


@pytest.mark.parametrize("number, share", [(signal.SIGINT, 1.0), (signal.SIGTERM, 0.5)])
def test_signals(tmp_path, trajectories, interrupts, number, share):
    """Ctrl-C; and SIGTERM, which a recording turns into `SystemExit`."""
    took: dict = {}
    stopped = 0
    ended = SystemExit if number == signal.SIGTERM else KeyboardInterrupt
    for name, plan, when, _ in cases(int(interrupts * share), number):
        text = PROGRAMS[name]
        if (name, str(plan)) not in took:
            took[name, str(plan)] = processor_time(tmp_path, text, plan)
        program, told = opstep.loads(text), 0

        def tell() -> None:
            nonlocal told
            told += 1

        path = tmp_path / f"{name}.db"
        try:
            with (
                opstep.Recording(workspace=path) as recording,
                signalled(number, when * took[name, str(plan)]),
            ):
                program.run("main", X, steps=STEPS, recording=recording, on_step=tell, **plan)
        except ended:
            stopped += 1
        if recording.runs:
            check_left_behind(path, f"{name}, {plan}, at {when}", program, told, trajectories[name])
    assert stopped >= interrupts * share / 3


def test_cancelled_tasks(tmp_path, trajectories, interrupts):
    stopped = 0
    for name, plan, _, rng in cases(max(interrupts // 2, 2), 5):
        program, told = opstep.loads(PROGRAMS[name]), 0

        def tell() -> None:
            nonlocal told
            told += 1

        path, rounds, limited = tmp_path / f"{name}.db", rng.randrange(200), rng.random() < 0.5

        async def cancelled(recording, program=program, tell=tell, plan=plan, rounds=rounds):
            run = program.run_async(
                "main", X, steps=STEPS, recording=recording, on_step=tell, **plan
            )
            task = asyncio.ensure_future(run)
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await task

        async def too_slow(recording, program=program, tell=tell, plan=plan, rounds=rounds):
            run = program.run_async(
                "main", X, steps=STEPS, recording=recording, on_step=tell, **plan
            )
            await asyncio.wait_for(run, rounds * 1e-4)

        with opstep.Recording(workspace=path) as recording:
            try:
                asyncio.run((too_slow if limited else cancelled)(recording))
            except (asyncio.CancelledError, TimeoutError):
                stopped += 1
        if recording.runs:
            check_left_behind(path, f"{name}, {plan}", program, told, trajectories[name])
    assert stopped


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
