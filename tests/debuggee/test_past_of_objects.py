"""The recorder keeps no object alive that the program has let go of, and little memory."""

from __future__ import annotations

import pytest
from recorded import ask

MEGA = 1 << 20


@pytest.mark.parametrize("target", ["s", "box.s", "d['s']"])
def test_old_texts_are_not_kept_whole(tmp_path, target):
    """2,000 texts of 200 kB on average were 400 MB."""
    script = f"""
        class Box: pass
        def work():
            box, d = Box(), {{"s": ""}}
            s = box.s = ""
            for k in range(2000):
                {target} += "x" * 200
            return {target}
        work()
    """
    questions = """
        end = at("return")
        answer = past.figures()["bytes"], values(end), past.figures()["dropped"]
    """
    kept, values, dropped = ask(tmp_path, script, questions)
    assert (kept < 8 * MEGA, dropped) == (True, 0)
    assert values["k"] == "1999"


def test_a_file_is_closed_when_the_program_lets_go_of_it(tmp_path):
    script = f"""
        path = {str(tmp_path / "out")!r}
        def write(text):
            f = open(path, "w")
            f.write(text)
        def files():
            inner = [open(path, "w")]
            inner[0].write("in a list")
            box = {{"files": inner}}
        write("one"); one = open(path).read()
        files()
        two = open(path).read()
        f = open(path, "w")
        f.write("three")
        f = None; three = open(path).read()
        end = 1
    """
    found = ask(tmp_path, script, "answer = values(at('end = 1'))")
    assert [found[k] for k in ("one", "two", "three")] == ["'one'", "'in a list'", "'three'"]


def test_finalizers_run_and_weak_references_die(tmp_path):
    script = """
        import weakref
        seen = []
        class Loud:
            def __del__(self):
                seen.append("del")
        class Quiet:
            def __init__(self): self.inner = [1]
        def gen():
            try:
                yield 1
            finally:
                seen.append("finally")
        def local():
            q = Quiet()
            return weakref.ref(q)
        def finalized():
            loud, g = Loud(), gen()
            next(g)
            items = [loud, g]
            del loud, g
        finalized(); one = list(seen)
        two = local()() is None
        q = Quiet()
        r = weakref.ref(q)
        items = [q]
        del q
        still = r() is not None
        items.clear()
        three = r() is None
        q = Quiet()
        r = weakref.ref(q)
        q = None
        four = r() is None
        end = 1
    """
    questions = """
        then = at("items.clear()")
        answer = values(at("end = 1")), values(then)["items"]
    """
    found, items = ask(tmp_path, script, questions)
    assert sorted(found["one"][1:-1].split(", ")) == ["'del'", "'finally'"]
    assert [found[k] for k in ("two", "still", "three", "four")] == ["True"] * 4
    assert items == "[Quiet(inner=<list, 1 item>)]"


def test_what_died_is_shown_as_it_was(tmp_path):
    script = """
        import collections
        Pair = collections.namedtuple("Pair", "a b")
        class Node:
            def __init__(self, x): self.x, self.next = x, None
        def work():
            node = Node([1])
            node.next = Node({"k": [2]})
            node.x.append(2)
            pair = Pair(node, collections.deque([3]))
            return 0
        work()
        work = None
    """
    questions = """
        then = at("return 0")
        answer = values(then), past.evaluate("node.x, node.next.x", then)
    """
    found, inside = ask(tmp_path, script, questions)
    assert found["node"] == "Node(x=[1, 2], next=Node(x=<dict, 1 item>, next=None))"
    assert found["pair"] == "Pair(a=Node(x=<list, 2 items>, next=<Node>), b=deque([3]))"
    assert inside == [[1, 2], {"k": [2]}]


def test_memory_is_bounded_and_the_oldest_lines_go_first(tmp_path):
    script = """
        def work():
            most = 0
            for k in range(900):
                items = list(range(k, k + 3000))
                most = max(most, past.figures()["bytes"])
            return most
        most = work()
    """
    questions = """
        first = past.move("reverseContinue", None, {})
        answer = past.figures()["bytes"], values(at("return most")), first.text, \\
            "; ".join(past.left_out()), \\
            variables(at("most = max", 0))["items"]
    """
    kept, end, text, summary, items = ask(tmp_path, script, questions, memory=8 * MEGA)
    assert kept < 8.5 * MEGA and int(end["most"]) < 8.5 * MEGA
    assert "lines before were dropped" in text
    assert "older lines were dropped" in summary
    assert items["value"].startswith("[") and items["marks"] == []


def test_memory_of_tensors_is_counted_once(tmp_path):
    pytest.importorskip("torch")
    script = """
        import torch
        def work():
            w = torch.zeros(1_000_000)
            for k in range(60):
                x = torch.full((250_000,), float(k))
                y = x[1:]
            return k
        work()
    """
    questions = """
        answer = past.figures()["bytes"], variables(at("return k"))["x"], \\
            past.evaluate("(x.sum() / len(x)).item()", at("return k")), "; ".join(past.left_out())
    """
    kept, x, mean, _ = ask(tmp_path, script, questions, memory=16 * MEGA)
    assert kept < 17 * MEGA
    assert x["value"] == "Tensor (250000,) torch.float32"
    assert mean == 59


def test_a_child_of_a_fork_is_not_recorded(tmp_path):
    script = """
        import os
        def work():
            child = os.fork()
            if child == 0:
                before = past.figures()["events"]
                for k in range(10):
                    pass
                os._exit(past.figures()["events"] - before)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = work()
        end = 1
    """
    assert ask(tmp_path, script, "answer = values(at('end = 1'))['status']") == "0"


def test_what_functions_and_classes_have_is_marked(tmp_path):
    """They are not copied: what an expression reads of them is of the present."""
    script = """
        import enum
        class Account:
            rate = 1
            def __init__(self):
                self.x = 1
            def add(self):
                self.x += 1
        class Colour(enum.Enum):
            RED = 1
        def counter():
            count = 0
            def more(by=[]):
                nonlocal count
                count += 1
                return count
            return more
        account, more = Account(), counter()
        more(); account.add(); Account.rate = 2; more.seen = 1
        then = 1
        more(); account.add(); Account.rate = 3; more.seen = 2
        end = 1
    """
    shared = ["more.__closure__[0].cell_contents", "more.seen", "Account.rate", "account.rate"]
    own = ["account.x", "Colour.RED.value", "account.__class__.__name__", "more", "Account"]
    questions = f"""
        marks = lambda texts: [past.watch(text, at("then = 1"))["marks"] for text in texts]
        answer = marks({shared}), marks({own}), past.evaluate("account.x", at("then = 1"))
    """
    assert ask(tmp_path, script, questions) == [[["as it is now"]] * 4, [[]] * 5, 2]


def test_tensors_without_sizes_or_storage_do_no_harm(tmp_path):
    """A nested tensor throws where its sizes are asked for, which ended the script."""
    pytest.importorskip("torch")
    script = """
        import torch, warnings
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        others = [torch.eye(2).to_sparse(), torch.ones(2, device="meta"), torch.empty(0)]
        x = torch.ones(2)
        end = 1
    """
    assert ask(tmp_path, script, "answer = past.evaluate('x.tolist()', at('end = 1'))") == [1, 1]


def test_an_order_that_was_changed_is_marked(tmp_path):
    script = """
        from collections import OrderedDict
        moved, kept = OrderedDict(a=1, b=2), OrderedDict(a=1, b=2)
        moved.move_to_end("a")
        end = 1
    """
    questions = """
        found = variables(at("end = 1"))
        answer = found["moved"]["marks"], found["kept"]["marks"]
    """
    assert ask(tmp_path, script, questions) == [["uncertain"], []]
