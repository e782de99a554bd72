"""The settings of a run: one declaration, and the functions that take them."""

from __future__ import annotations

from inspect import signature

import pytest

import opstep
from opstep.api.settings import FIELDS, RunSettings
from opstep.runtime.ir.errors import InputError, SettingError

OTHER = {(opstep.Debugger, "mode"): "debug"}  # and why: its docs


@pytest.mark.parametrize("function", [opstep.Program.run, opstep.Debugger])
def test_arguments_have_the_defaults_that_are_declared(function):
    taken = signature(function).parameters
    missing = {f.name for f in FIELDS} - set(taken)
    assert missing == ({"autotune", "chaos"} if function is opstep.Debugger else set())
    for declared in FIELDS:
        if declared.name in taken:
            default = OTHER.get((function, declared.name), declared.default)
            assert taken[declared.name].default == default, declared.name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "fast"}, "mode is 'fast'; it can be async or debug"),
        ({"mode": None}, "mode is None; it can be async or debug"),
        ({"kernels": ""}, "kernels is ''; it can be auto, numba or vendor"),
        ({"streams": 65}, "streams is 65; it can be 1 to 64"),
        ({"streams": 2.5}, "streams is 2.5; it can be 1 to 64"),
        ({"steps": "3"}, "steps is '3'; it can be 1 or more"),
        ({"seed": -1}, "seed is -1; it can be 0 or more"),
        ({"seed": 1 << 63}, f"seed is {1 << 63}; it can be 0 to {(1 << 63) - 1}"),
    ],
)
def test_what_a_setting_cannot_be(given, message):
    with pytest.raises(SettingError) as caught:
        RunSettings(**given)
    assert str(caught.value) == f"error: {message}"
    ((name, got),) = given.items()
    assert (caught.value.name, caught.value.got) == (name, got)


def test_a_device_has_one_name():
    assert RunSettings(device="cuda:0") == RunSettings(device="cuda")
    with pytest.raises(InputError, match="there is no device tpu"):
        RunSettings(device="tpu")


def test_switches_replace_those_of_the_mode():
    assert RunSettings(mode="debug", streams=3).policy == opstep.policy("debug", 3)
    assert opstep.policy("debug", 3) == opstep.policy(
        streams=3, alloc="fresh", fill="nan", sync="op"
    )
