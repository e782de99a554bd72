"""What a stop in a backward shows, at the lines of Python: there are no variables of its own."""

from __future__ import annotations

from dap.test_data import scopes, values

MODEL = """\
def distance(a, b):
    return (a - b).log()


class Loss:
    def forward(self, a, b):
        return distance(a, b)
"""

BACKWARD = """\
graph main(g: f32[2]) -> f32[2] {
  other = backward(g)
  return other
}

graph backward(g: f32[2]) -> f32[2] {
  twice = mul(g, 2.0) at "net.py":2, 7
  other = log(twice) at "net.py":2, 7
  return other
}
"""


def test_a_stop_in_a_backward_shows_what_there_is(client, program):
    program(MODEL, "net.py")
    client.launch(program(BACKWARD), graph="main", inputs={"g": [-1.0, 1.0]})
    client.request("setExceptionBreakpoints", filters=["nan-origin"])
    client.request("configurationDone")
    client.expect_stop("exception")
    frames = client.stack()
    assert [f["name"] for f in frames[:2]] == ["distance backward", "Loss.forward backward"]
    assert list(scopes(client))[:3] == ["All values", "Inputs", "Locals"]
    assert values(client, "Locals") == {} and "other" in values(client, "All values")
    told = [client.request("opstep/values", frameId=f["id"]) for f in frames[:2]]
    assert [t["hasRun"] for t in told] == [True, False]
