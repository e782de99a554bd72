"""One error, in the words of each door: Python, the command line, launch.json."""

from __future__ import annotations

import pickle

import pytest

import opstep
from opstep.api import sources
from opstep.cli.common import in_switches
from opstep.dap.client import in_launch
from opstep.runtime.ir.errors import InputError, MissingInputs, UnboundSymbols, UnknownName
from opstep.runtime.ir.wording import Argument, Wording, in_python, worded

TEXT = """\
param w: f32[3]
graph main(x: f32[N], y: f32[M]) -> f32[N] {
  z = relu(x)
  return z
}
graph weights() -> f32[3] {
  return w
}
"""


def told(error: InputError) -> list[str]:
    """The hint, or else the message, in Python and in two other doors."""
    text = error.diagnostics[0].hint or error.diagnostics[0].message
    return [worded(text, words) for words in (in_python, in_switches, in_launch)]


@pytest.mark.parametrize(
    ("does", "python", "switches", "launch"),
    [
        (
            lambda p: p.run("main", {"y": [1.0]}),
            "give inputs={'x': array}",
            "give --input x=FILE.npy, or --input random for all of them",
            'give "inputs": {"x": "FILE.npy"}, or "inputs": "random" for all of them',
        ),
        (
            lambda p: sources.gather(p, p.graph("main"), ["random"], {}, 0),
            "add symbols={'N': 8, 'M': 8}",
            "add --symbol N=8 --symbol M=8",
            'add "symbols": {"N": 8, "M": 8}',
        ),
        (
            lambda p: p.run("weights"),
            "load it: params['w'] = array, or give it an initialiser such as = zeros()",
            "load it: --params FILE.safetensors, or give it an initialiser such as = zeros()",
            'load it: "params": "FILE.safetensors", or give it an initialiser such as = zeros()',
        ),
        (
            lambda p: sources.gather(p, p.graph("main"), ["x=1", "x=zeros"], {}, 0),
            "inputs=['x=zeros']: x was given before",
            "--input x=zeros: x was given before",
            '"inputs": {"x": "zeros"}: x was given before',
        ),
        (
            lambda p: opstep.Recording(workspace="w.db", stats="x", stats_also="channels=x"),
            "stats_also='channels=x': expected channels=AXIS, such as -1",
            "--stats-also channels=x: expected channels=AXIS, such as -1",
            "stats_also='channels=x': expected channels=AXIS, such as -1",
        ),
    ],
)
def test_each_door_has_its_words(does, python, switches, launch):
    with pytest.raises(InputError) as caught:
        does(opstep.loads(TEXT))
    assert told(caught.value) == [python, switches, launch]
    assert python in str(caught.value)
    assert switches in caught.value.text(in_switches)


def test_what_a_door_has_not_is_left_out():
    hint = Wording.any_of(
        ("use a smaller batch",), (Argument("alloc", "reuse"),), (Argument("fallback", "cpu"),)
    )
    assert hint == "use a smaller batch, or alloc='reuse'"
    assert hint.text_in(in_switches) == "use a smaller batch, --alloc reuse, or --fallback cpu"
    assert hint.text_in(lambda argument: None) == "use a smaller batch"
    assert Wording.any_of((Argument("patience"), " is too short")) == ""


def test_errors_hold_what_they_are_about():
    program = opstep.loads(TEXT)
    with pytest.raises(MissingInputs) as missing:
        sources.gather(program, program.graph("main"), [], {}, 0)
    assert missing.value.names == ("x", "y")
    with pytest.raises(UnboundSymbols) as unbound:
        program.plan("main")
    assert unbound.value.symbols == ("N",)
    with pytest.raises(UnknownName, match="did you mean main") as unknown:
        program.run("mian")
    assert (unknown.value.name, unknown.value.candidates) == ("mian", ("main", "weights"))
    for error in (missing.value, unbound.value, unknown.value):  # as another process sends it
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), vars(again), told(again)) == (type(error), vars(error), told(error))
