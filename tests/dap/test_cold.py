"""The first debugging on a machine: no kernel is compiled yet."""

from __future__ import annotations

import pytest
from dap.client import Client

PROGRAM = """\
graph main(x: f32[4, 5]) -> f32[4, 5] {
  y = mul(x, 2.0)
  z = log(y)
  return z
}
"""


@pytest.fixture
def cold(tmp_path, monkeypatch):
    monkeypatch.setenv("OPSTEP_CACHE", str(tmp_path / "kernels"))
    with Client.over_stdio() as client:
        yield client


def shown(client: Client, scope: str) -> dict[str, str]:
    scopes = client.request("scopes", frameId=client.stack()[0]["id"])["scopes"]
    number = next(s["variablesReference"] for s in scopes if s["name"] == scope)
    found = client.request("variables", variablesReference=number)["variables"]
    return {v["name"]: v["value"] for v in found}


@pytest.mark.slow
def test_a_cold_start_stops_with_values_and_counts_what_it_compiles(cold, program, tmp_path):
    cold.start(program(PROGRAM), inputs={"x": "ones"}, stopOnEntry=True)
    cold.expect_stop("entry")
    assert shown(cold, "Inputs") == {"x": "f32[4, 5]  all 1"}
    kept = {p.read_bytes().partition(b"\n")[0] for p in (tmp_path / "kernels").glob("*.o")}
    assert not any(b"statistics" in head or b'"log"' in head for head in kept)
    cold.go("next", "step")
    assert shown(cold, "Values") == {"y": "f32[4, 5]  all 2"}
    frame = cold.stack()[0]["id"]
    assert cold.request("evaluate", expression="mean(y)", frameId=frame)["result"] == "2.0"
    cold.go("next", "step")
    bars = [e for e in cold.events if e["event"].startswith("progress")]
    assert bars[0]["event"] == "progressStart" and " of " in bars[0]["body"]["message"]
    assert any("log, " in b["body"].get("message", "") for b in bars)


def test_a_warm_start_shows_no_bar(client, program):
    path = program(PROGRAM)
    with Client.over_socket() as other:  # compiles what there is to compile
        other.start(path, inputs={"x": "ones"})
        other.expect_end()
    client.start(path, inputs={"x": "ones"}, stopOnEntry=True)
    client.expect_stop("entry")
    client.go("next", "step")
    client.go("next", "step")
    assert not any(e["event"] == "progressStart" for e in client.events)
