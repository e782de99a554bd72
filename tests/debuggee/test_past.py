"""Moves in the past of a script, and what is seen there."""

from __future__ import annotations

import pytest
from recorded import ask

STEPS = """
    class Account:
        def __init__(self, x):
            self.x = x
        def add(self, k):
            self.x += k
            return self
    total = 0
    def double(x):
        y = 2 * x
        return y
    def work(n):
        found = []
        for i in range(n):
            found.append(double(i))
        return found
    a = Account(1)
    a.add(4)
    result = work(3)
    end = 1
"""


def test_moves_step_as_they_do_forwards(tmp_path):
    questions = """
        def place(moved):
            return past.stack(moved.position)[0]["line"] if moved.position else moved.reason
        start = at("return found")
        over = past.move("stepBack", start, {})
        into = past.move("stepIn", at("found.append", 1), {})
        answer = {
            "over": place(over) == line("for i"),
            "back over the call": place(past.move("stepBack", over.position, {}))
                == line("found.append"),
            "into": place(into) == line("y = 2"),
            "out": place(past.move("stepOut", into.position, {})) == line("for i"),
            "next": place(past.move("next", at("found.append", 0), {})) == line("for i"),
            "back out": place(past.move("stepBack", at("y = 2", 0), {})) == line("found.append"),
            "present": place(past.move("next", at("end = 1"), {})),
            "entry": past.move("reverseContinue", None, {}).reason,
            "before": past.move("stepBack",
                past.move("reverseContinue", None, {}).position, {}).reason,
        }
    """
    found = ask(tmp_path, STEPS, questions)
    assert found.pop("present") == "present"
    assert (found.pop("entry"), found.pop("before")) == ("entry", "entry")
    assert found == dict.fromkeys(found, True)


def test_breakpoints_stop_in_the_past_by_their_conditions(tmp_path):
    questions = """
        one = back("y = 2")
        two = back("y = 2", "x == 1")
        none = back("y = 2", "x == 7")
        wrong = back("y = 2", "nobody > 1")
        again = past.move("continue", two.position, {path: {line("y = 2"): None}})
        answer = [values(m.position).get("x") for m in (one, two, again)], none.reason, wrong.text
    """
    found, none, wrong = ask(tmp_path, STEPS, questions)
    assert found == ["2", "1", "2"]
    assert none == "entry"
    assert wrong == "the condition nobody > 1 fails: name 'nobody' is not defined"


def test_stacks_and_values_are_those_of_the_line(tmp_path):
    questions = """
        then = at("y = 2", -1)
        stack = past.stack(then)
        frames = [(f["name"], f["line"] == line(t), f["module"])
                  for f, t in zip(stack, ("y = 2", "found.append", "result = work"))]
        before, after = (values(p)["a"] for p in (at("a.add"), at("result =")))
        answer = frames, [values(then, k) for k in (0, 1)], before, after, \\
            variables(then, 0, 1)["total"]["value"]
    """
    frames, local, before, after, total = ask(tmp_path, STEPS, questions)
    assert frames == [[n, True, "script"] for n in ("double", "work", "<module>")]
    assert local == [{"x": "2"}, {"n": "3", "found": "[0, 2]", "i": "2"}]
    assert (before, after, total) == ("Account(x=1)", "Account(x=5)", "0")


def test_children_are_there_on_demand_and_marked_where_too_deep(tmp_path):
    script = """
        class Box:
            def __init__(self): self.d = {"k": [1, {"deep": (2, 3)}]}
        box = Box()
        box.d["k"][1]["deep"] = 0
        end = 1
    """
    questions = """
        def down(variable, *names):
            for name in names:
                children = past.variables(variable["variablesReference"])
                variable = next(v for v in children if v["name"] == name)
            return variable["type"], variable["value"], variable["marks"]
        box = variables(at("box.d"))["box"]
        answer = down(box, "d", "'k'", "0"), down(box, "d", "'k'"), down(box, "d", "'k'", "1")
    """
    item, inner, deep = ask(tmp_path, script, questions)
    assert item == ["int", "1", []]
    assert inner == ["list", "[1, {'deep': 0}]", ["as it is now"]]  # four levels from the name
    assert deep == ["dict", "{'deep': 0}", ["as it is now"]]


def test_expressions_see_the_past_and_leave_the_present_alone(tmp_path):
    script = f"""
        import os, random
        items = [1, 2]
        calls = []
        def loud():
            calls.append(1)
        class Box: total = 0
        box = Box()
        box.inner = items
        it = iter([7, 8])
        random.seed(1)
        here = 1
        items.append(3)
        out = {str(tmp_path / "out")!r}
        end = 1
    """
    questions = """
        import random
        then = at("here = 1")
        state = random.getstate()
        given = [past.evaluate(e, then) for e in (
            "items", "items.append(9) or items", "box.inner is items",
            "[x + len(items) for x in items]",
            "random.random() < 2", "(lambda k: items[k])(1)")]
        refused_ones = [refused(e, then) for e in (
            "loud()", "open(out, 'w')", "os.remove(out)", "setattr(Box, 'total', 1)", "next(it)",
            "nobody", "print(1)")]
        same = (module.items, module.calls, module.Box.total, next(module.it),
                random.getstate() == state)
        answer = given, refused_ones, same, os.path.exists(module.out)
    """
    given, refused, same, exists = ask(tmp_path, script, questions)
    assert given == [[1, 2], [1, 2, 9], True, [3, 4], True, 2]
    assert not any(text.startswith("gave") for text in refused)
    assert refused[0] == "loud is a function of the script: it would run in the present"
    assert (same, exists) == ([[1, 2, 3], [], 0, 7, True], False)


def test_hot_lines_are_marked_and_named(tmp_path):
    script = """
        def work():
            items, box = [], {}
            for k in range(5000):
                items.append(k)
                box[k % 3] = k
                pair = [k, box]
            return 0
        work()
    """
    questions = """
        turns = [p for p, _ in past.targets(path, line("items.append"), most=10_000)][::-1]
        middle = variables(turns[-100])
        early = variables(turns[10])
        pairs = [variables(p)["pair"] for p in (turns[10], turns[-100], at("return 0"))]
        answer = len(turns), early["items"], middle["k"], middle["items"], pairs, \
            "; ".join(past.left_out())
    """
    turns, early, k, items, pairs, summary = ask(tmp_path, script, questions)
    assert 1200 < turns < 1300
    assert (early["value"], early["marks"]) == ("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", [])
    assert (k["value"], k["marks"]) == ("4900", [])
    assert items["marks"]
    assert [(p["value"], p["marks"]) for p in pairs] == [
        ("[9, {0: 9, 1: 7, 2: 8}]", []),
        ("<list>", ["not kept"]),
        ("[4999, {0: 4998, 1: 4999, 2: 4997}]", []),
    ]
    assert "script.py:5" in summary and "1,000 turns" in summary


def test_steps_of_training_make_lines_cool_again(tmp_path):
    script = """
        def work():
            for step in range(5):
                for k in range(800):
                    x = step * 1000 + k
                past.step_done()
            return x
        work()
    """
    questions = """
        answer = len(past.targets(path, line("x = step"), most=10_000)), len(past.steps), \\
            [values(p)["step"] for p in past.steps], past.figures()["hot"]
    """
    turns, steps, values, hot = ask(tmp_path, script, questions)
    assert (turns, steps, values, hot) == (4000, 5, ["0", "1", "2", "3", "4"], [])


def test_other_threads_are_said_to_be_left_out(tmp_path):
    script = """
        import threading
        stop = threading.Event()
        def other():
            inside = 1
            stop.wait()
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        end = 1
    """
    questions = """
        answer = past.targets(path, line("inside = 1")), past.left_out(), module.stop.set()
    """
    inside, summary, _ = ask(tmp_path, script, questions)
    assert inside == []
    assert "threads other than the main one are not recorded" in summary[0]


def test_code_outside_the_folders_is_not_recorded(tmp_path):
    script = """
        import textwrap
        t = textwrap.dedent("  x")
        end = 1
    """
    questions = """
        position, names = past.move("reverseContinue", None, {}).position, set()
        while position:
            names |= {f["path"] for f in past.stack(position)}
            position = past.move("stepIn", position, {}).position
        answer = [os.path.basename(n) for n in names]
    """
    assert ask(tmp_path, script, questions) == ["script.py"]


def test_without_a_compiler_the_reason_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("OPSTEP_CACHE", str(tmp_path / "cache"))
    with pytest.raises(AssertionError, match=r"InputError.*recorded: it takes no-such-compiler"):
        ask(tmp_path, "x = 1", "answer = 1")
