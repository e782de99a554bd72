"""What has no past says so: other threads, code without a file, children. What runs in the main
thread by turns, as coroutines do, has one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from dap.client import Refused, markers_of
from dap.test_time_travel import locals_of, move

pytestmark = pytest.mark.usefixtures("compiled_parts")


def written(folder: Path, text: str) -> tuple[Path, dict[str, int]]:
    path = folder / "train.py"
    path.write_text(text)
    return path, markers_of(path)


def test_a_thread_without_a_past_says_so_and_main_has_its_own(session, tmp_path):
    path, lines = written(tmp_path, """\
import threading

def work(n):
    for k in range(n):
        total = k  # break: inside

thread = threading.Thread(target=work, args=(3,), name="loader")
thread.start()
before = 1
thread.join()  # break: joining
print("end")  # break: end
""")  # fmt: skip
    session.begin(path, "inside")
    line, stop = session.at("breakpoint")
    assert line == lines["inside"] and stop["threadId"] != 1
    why = "the past of thread loader is not recorded: only the main thread's is"
    for command in ("stepBack", "reverseContinue"):
        with pytest.raises(Refused, match=why):
            session.request(command, threadId=stop["threadId"])
    source = {"path": str(path)}
    assert session.stack(stop["threadId"])[0]["line"] == lines["inside"]
    targets = session.request("gotoTargets", source=source, line=lines["inside"] + 2)["targets"]
    back = [t["id"] for t in targets if t["label"].startswith("Back")]
    with pytest.raises(Refused, match=why):
        session.request("goto", threadId=stop["threadId"], targetId=back[0])
    session.set_breakpoints(path, ["end"])
    session.request("continue", threadId=stop["threadId"])
    assert session.at("breakpoint")[0] == lines["end"]
    assert move(session, "stepBack")[0] == lines["joining"]
    assert "total" not in locals_of(session) and locals_of(session)["before"] == "1"


def test_coroutines_step_back_in_their_own_frames(session, tmp_path):
    path, lines = written(tmp_path, """\
import asyncio

async def part(name, n):
    total = 0
    for k in range(n):
        await asyncio.sleep(0)
        total += k  # break: adding
    return name, total  # break: done

async def main():
    return await asyncio.gather(part("a", 2), part("b", 3))

found = asyncio.run(main())
print(found)  # break: end
""")  # fmt: skip
    session.begin(path, "end")
    assert session.at("breakpoint")[0] == lines["end"]
    session.set_breakpoints(path, ["done"])
    assert move(session, "reverseContinue")[0] == lines["done"]
    assert locals_of(session) == {"k": "2", "n": "3", "name": "'b'", "total": "3"}
    assert move(session, "reverseContinue")[0] == lines["done"]
    assert locals_of(session) == {"k": "1", "n": "2", "name": "'a'", "total": "1"}
    # The line before in the same coroutine, though the other one ran in between.
    assert move(session, "stepBack")[0] == lines["adding"] - 2
    assert move(session, "stepBack")[0] == lines["adding"]
    assert locals_of(session) == {"k": "1", "n": "2", "name": "'a'", "total": "0"}


def test_code_without_a_file_has_no_frames_in_the_past(session, tmp_path):
    path, lines = written(tmp_path, """\
def inner(a):
    b = a + 1  # break: inner
    return b

space = {"inner": inner}
exec("def made(c):\\n    d = c * 2\\n    return inner(d)", space)
result = space["made"](5)  # break: calling
exec("z = result + 1")
print(z)  # break: end
""")  # fmt: skip
    session.begin(path, "inner")
    assert session.at("breakpoint")[0] == lines["inner"]
    session.set_breakpoints(path, ["end"])
    session.request("continue", threadId=1)
    assert session.at("breakpoint")[0] == lines["end"]
    assert "z" in locals_of(session)
    session.set_breakpoints(path, ["inner"])
    assert move(session, "reverseContinue")[0] == lines["inner"]
    assert [f["name"] for f in session.frames] == ["inner", "<module>"]
    assert locals_of(session) == {"a": "10"}
    assert session.frames[1]["line"] == lines["calling"]
    shown = session.request("scopes", frameId=session.frames[1]["id"])["scopes"][0]
    names = session._values(shown["variablesReference"])
    assert "z" not in names and "c" not in names and "d" not in names
    assert move(session, "stepOut")[0] == lines["calling"] + 1


def test_from_code_without_a_file_one_steps_back_to_who_ran_it(session, tmp_path):
    path, lines = written(tmp_path, """\
a = 1
exec("b = a + 1\\nc = b + 1\\nraise KeyError(c)")  # break: running
""")  # fmt: skip
    session.begin(path, filters=["uncaught"])
    session.at("exception")
    assert session.frames[-1]["line"] == lines["running"]
    assert move(session, "stepBack")[0] == lines["running"]
    assert [f["name"] for f in session.frames] == ["<module>"]
    assert locals_of(session)["a"] == "1" and "b" not in locals_of(session)


def test_a_forked_child_runs_on_without_a_past(session, tmp_path):
    path, lines = written(tmp_path, """\
import os
status = 0
child = os.fork()
if child == 0:
    for k in range(1000):
        status += k % 2
    os._exit(status % 256)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # break: waiting
print(status)  # break: end
""")  # fmt: skip
    session.begin(path, "end", subProcess=False)
    assert session.at("breakpoint")[0] == lines["end"]
    assert session.evaluate("status") == str(500 % 256)
    assert move(session, "stepBack")[0] == lines["waiting"]
    assert session.evaluate("status") == "0"
    assert move(session, "stepBack")[0] == lines["waiting"] - 4


THREADS = """\
import threading

go = threading.Event()


def work(n):
    for j in range(3):
        n += j  # break: work


def run():
    go.wait()
    work(10)


work(0)
thread = threading.Thread(target=run)
thread.start()
for k in range(5):
    if k == 3:
        go.set()
        thread.join()
"""


def test_a_stop_of_another_thread_has_no_word_of_the_main_ones_loops(session, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(THREADS)
    session.begin(path, {"line": markers_of(path)["work"], "condition": "n >= 10"})
    _, stop = session.at("breakpoint")
    assert stop["threadId"] != 1
    assert "iteration" not in stop.get("description", "")
    with pytest.raises(Refused, match="only the past of the main thread is recorded"):
        session.evaluate("op.ago('n')")
    session.set_breakpoints(path, [])
    session.request("continue", threadId=stop["threadId"])
    session.expect_end(0)


def test_places_and_threads_that_there_are_not(session, tmp_path):
    """They are refused, and the session stands where it stood."""
    path, lines = written(tmp_path, "x = 1\ny = x\nprint(y)  # break: end\n")
    session.begin(path, "end")
    session.at("breakpoint")
    with pytest.raises(Refused, match="the past no longer has this position"):
        session.request("goto", threadId=1, targetId=(1 << 30) + 99_999)
    with pytest.raises(Refused, match="there is no thread 77"):
        session.request("stepBack", threadId=77)
    with pytest.raises(Refused, match="cannot be restarted"):
        session.request("restartFrame", frameId=session.frames[0]["id"])
    with pytest.raises(Refused, match="by a new session"):
        session.request("restart")
    move(session, "stepBack")
    assert session.frames[0]["line"] == lines["end"] - 1
    assert session.evaluate("x") == "1"


def test_an_expanded_tensor_is_copied_as_it_is_stored(session, tmp_path):
    """Its elements are more than there is memory for."""
    pytest.importorskip("torch")
    path, _ = written(
        tmp_path, "import torch\nx = torch.ones(1).expand(10**12)\ny = 1\nz = 2  # break: end\n"
    )
    session.begin(path, "end")
    session.at("breakpoint")
    move(session, "stepBack")
    assert session.evaluate("x[-1].item(), x.stride()") == "(1.0, (0,))"
    assert locals_of(session)["x"].startswith("f32[1000000000000]  all 1")


def test_a_script_that_goes_to_another_folder_finds_its_modules(session, tmp_path):
    (tmp_path / "sibling.py").write_text("value = 7\n")
    (tmp_path / "data").mkdir()
    path, lines = written(
        tmp_path, "import os\nos.chdir('data')\nimport sibling\nx = sibling.value  # break: end\n"
    )
    session.initialize()
    session.send("launch", {"program": path.name, "cwd": str(tmp_path)})
    session.expect("initialized")
    session.configure(path, "end")
    assert session.at("breakpoint")[0] == lines["end"]
    move(session, "stepBack")
    assert session.frames[0]["source"]["path"] == str(path)
