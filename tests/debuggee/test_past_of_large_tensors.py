"""Large tensors in the past: what they held before ops wrote to them, and marks where that is not
known.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from recorded import ask

pytest.importorskip("torch")

from opstep.debuggee.past.rebuild import AS_NOW

pytestmark = pytest.mark.usefixtures("compiled_parts")
MEGA = 1 << 20
HEAD = """
import torch
past.watch_writes()
"""
QUESTIONS = """
def seen_at(expression, position):
    found = past.watch(expression, position)
    return found["value"], *found["marks"]
def seen(expression, text, turn=-1):
    return seen_at(expression, at(text, turn))
def all_seen(expression, text):
    return [seen_at(expression, position) for position in times(text)]
"""


def asked(folder: Any, script: str, answer: str, memory: int = 64 * MEGA) -> Any:
    questions = f"{QUESTIONS}\nanswer = {answer.strip()}"
    return ask(folder, HEAD + dedent(script), questions, memory)


def test_writes_of_ops_are_taken_back_in_all_views(tmp_path):
    script = """
        def work():
            x = torch.zeros(20_000)
            y = x[100:]
            for k in range(3):
                x.add_(1)
                y.mul_(2)
                end = k
            torch._foreach_add_([x, y], 1.0)
            torch.neg(y, out=y)
            x.data.fill_(9)
            return x
        work()
    """
    found = asked(tmp_path, script, """
        all_seen("x[0].item(), y.mean().item(), x[100:].equal(y)", "x.add_(1)"), [
            seen("x[0].item(), y.mean().item()", t) for t in ("torch.neg", "x.data", "return x")]
    """)  # fmt: skip
    turns = [[f"({k}.0, {v}.0, True)"] for k, v in enumerate((0, 2, 6))]
    assert found == [turns, [["(4.0, 16.0)"], ["(4.0, -16.0)"], ["(9.0, 9.0)"]]]


@pytest.mark.parametrize("optimizer", ["SGD(P, 0.1, momentum=0.9)", "AdamW(P)",
                                       "Adam(P, fused=True)", "Adam(P, foreach=True)"])  # fmt: skip
def test_parameters_and_states_before_each_step(tmp_path, optimizer):
    script = f"""
        torch.manual_seed(0)
        def work():
            model = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.Linear(100, 200))
            w = model[0].weight
            optimizer = torch.optim.{optimizer.replace("P", "model.parameters()")}
            seen = []
            for k in range(4):
                model(torch.ones(2, 200)).pow(2).sum().backward()
                seen.append(w.sum().item())
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            return seen
        work()
    """
    found = asked(tmp_path, script, """(
        all_seen("w.sum().item()", "optimizer.step()"),
        all_seen("model[0].weight.sum().item()", "optimizer.step()"), values(at("return seen")))
    """)  # fmt: skip
    by_name, by_model, end = found
    was = end["seen"].strip("[]").split(", ")
    assert len(set(was)) == 4
    assert [value for value, *_ in by_name] == [value for value, *_ in by_model] == was
    assert all(len(each) == 1 for each in by_name + by_model)  # no marks


def test_gradients_that_are_accumulated(tmp_path):
    script = """
        def work():
            w = torch.ones(20_000, requires_grad=True)
            w.sum().backward()
            g = w.grad
            for k in range(3):
                (w + w).sum().backward()
            return g
        work()
    """
    found = asked(tmp_path, script, """
        all_seen("g.mean().item()", "(w + w)"), seen("g[0].item()", "return g")
    """)  # fmt: skip
    assert found == [[["1.0"], ["3.0"], ["5.0"]], ["7.0"]]


def test_other_threads_and_inference(tmp_path):
    script = """
        import threading
        def work():
            x = torch.zeros(20_000)
            with torch.inference_mode():
                x.add_(1)
            with torch.no_grad():
                x.add_(1)
            thread = threading.Thread(target=lambda: x.add_(1))
            thread.start()
            thread.join()
            return x
        work()
    """
    found = asked(tmp_path, script, """
        [seen("x.mean().item()", t, 0) for t in ("with torch.inf", "with torch.no", "thread =",
                                                 "return x")]
    """)  # fmt: skip
    assert found == [["0.0"], ["1.0"], ["2.0"], ["3.0"]]


def test_tensors_that_get_another_storage(tmp_path):
    script = """
        def work():
            x = torch.zeros(20_000)
            x.data = torch.ones(30_000, dtype=torch.float64)
            one = x.add_(1)
            x.resize_(40_000)
            x.zero_()
            x.set_(torch.full((25_000,), 7.0, dtype=torch.float64))
            del one
            x.untyped_storage().resize_(0)
            return x
        work()
    """
    found = asked(tmp_path, script, """
        [seen("len(x), x[0].item(), x[-1].item()", t) for t in
            ("x.data", "one =", "x.resize_", "x.set_", "del one", "x.untyped")], \\
        values(at("return x"))["x"]
    """)  # fmt: skip
    sizes = [(20000, 0), (30000, 1), (30000, 2), (40000, 0), (25000, 7), (25000, 7)]
    assert found == [[[f"({n}, {v}.0, {v}.0)"] for n, v in sizes], "<Tensor>"]


def test_memory_that_is_handed_out_is_not_known(tmp_path):
    script = """
        import numpy as np
        def work():
            x = torch.zeros(20_000)
            x.add_(1)
            a = x.numpy()
            a[:] = 5
            a = None
            back = 1
            back = 2
            back = 3
            x.add_(1)
            shared = torch.from_numpy(np.zeros(20_000))
            shared.add_(1)
            address = x.data_ptr()
            x.add_(1)
            return x
        work()
    """
    found = asked(tmp_path, script, """
        [seen("x.mean().item()", t) for t in
            ("x.add_(1)", "a = x.numpy", "a[:] = 5", "shared =", "address =", "return x")], \\
        seen("shared.mean().item()", "shared.add_")
    """)  # fmt: skip
    known = [["0.0"], ["1.0"], ["7.0", AS_NOW], ["6.0"], ["6.0"], ["7.0", AS_NOW]]
    assert found == [known, ["1.0", AS_NOW]]


def test_what_inductor_compiled_writes_in_place(tmp_path):
    script = """
        @torch.compile
        def update(x, y):
            x.add_(y).mul_(2)
            return y + 1
        def work():
            x, y = torch.zeros(20_000), torch.ones(20_000)
            for k in range(3):
                update(x, y)
            return x
        work()
    """
    found = asked(tmp_path, script, """
        all_seen("x.mean().item(), y.mean().item()", "    update(x, y)")
    """)  # fmt: skip
    assert found == [["(0.0, 1.0)"], ["(2.0, 1.0)"], ["(6.0, 1.0)"]]


def test_copies_stay_within_memory_and_the_oldest_go_first(tmp_path):
    script = """
        def work():
            x, most = torch.zeros(100_000), 0
            optimizer = torch.optim.SGD([x.requires_grad_()], 1.0)
            for k in range(1000):
                x.sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                past.step_done()
                most = max(most, past.figures()["bytes"])
            return most
        most = work()
    """
    found = asked(tmp_path, script, """(
        values(at("return most"))["most"], past.figures()["bytes"],
        all_seen("x.mean().item()", "optimizer.step()"), "; ".join(past.left_out()))
    """, 8 * MEGA)  # fmt: skip
    most, at_end, seen, summary = found
    assert max(int(most), at_end) <= 8 * MEGA
    known = [value for value, *marks in seen if not marks]
    assert 10 < len(known) < 1000
    assert [v for v, *_ in seen[-len(known) :]] == [f"{-k}.0" for k in range(1000)][-len(known) :]
    assert all(marks == [AS_NOW] for _, *marks in seen[: -len(known)])
    assert "older values of large tensors were dropped" in summary


def test_elements_that_a_hot_loop_writes_are_marked_and_never_wrong(tmp_path):
    script = """
        def work():
            x = torch.zeros(200_000)
            for k in range(2500):
                x[k] = k
            x.add_(1)
            return x
        work()
    """
    found = asked(tmp_path, script, """
        [seen("x.sum().item()", "x[k] = k", k) for k in (0, 1, 2, 3, 100, 900)], \\
        [seen("x[:2500].sum().item()", t) for t in ("x.add_", "return x")]
    """)  # fmt: skip
    loop, end = found
    assert loop[:4] == [["0.0"], ["0.0"], ["1.0"], ["3.0"]]
    assert all(marks == [AS_NOW] for _, *marks in loop[4:])
    assert end == [[f"{2500 * 2499 / 2}"], [f"{2500 * 2501 / 2}"]]


def test_batches_of_workers(tmp_path):
    script = """
        from torch.utils.data import DataLoader, TensorDataset
        def work():
            data = TensorDataset(torch.arange(60_000.0).reshape(3, 20_000))
            for (batch,) in DataLoader(data, batch_size=1, num_workers=1):
                batch.add_(1)
            return data
        work()
    """
    found = asked(tmp_path, script, """
        all_seen("batch[0, 0].item()", "batch.add_"), seen("data.tensors[0][2, 1]", "return data")
    """)  # fmt: skip
    assert [marks for _, *marks in found[0]] == [[AS_NOW]] * 3  # the memory is the worker's too
    assert found[1] == ["tensor(40001.)"]
