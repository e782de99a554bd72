"""Where lines of the past stand in loops and in training."""

from __future__ import annotations

from recorded import ask

LOOPS = """
    def inner(n):
        total = 0
        for k in range(
            n,
        ):
            if k == 1:
                continue
            total += k
        return total

    def nothing():
        return 0

    for epoch in range(2):
        for batch in [
            5, 6, 7,
        ]:
            found = inner(batch)
            match batch:
                case 5:
                    five = True
        past.step_done()
    for x in ():
        pass
    for x in "ab": y = x
    alone = nothing()
    while True:
        for z in range(3):
            last = z
        if epoch:
            break
        epoch += 1
    end = 1
"""


def moments(tmp_path, *lines: str) -> list[list[str]]:
    questions = f"""
        answer = [
            [moment for _, moment in past.targets(path, line(text), most=100)][::-1]
            for text in {lines!r}
        ]
    """
    return ask(tmp_path, LOOPS, questions)


def test_lines_know_their_turns(tmp_path):
    found, five, total, last = moments(
        tmp_path, "found = inner", "five =", "total += k", "last = z"
    )
    assert found[:3] == [
        f"step 0, iteration {k} of 3, iteration 1 of 2" for k in (1, 2, 3)
    ] and found[3:] == [
        f"step 1, iteration {k} of 3, iteration 2 of 2" for k in (1, 2, 3)
    ]  # fmt: skip
    assert five == [found[0], found[3]]
    in_call = "step 0, iteration {} of 5, iteration 1 of 3 (line 16), iteration 1 of 2 (line 15)"
    assert total[:4] == [in_call.format(k) for k in (1, 3, 4, 5)]
    assert last == [f"step 2, iteration {k} of 3" for k in (1, 2, 3)]


def test_where_there_is_no_turn_none_is_named(tmp_path):
    heads, zero, one_line, alone = moments(
        tmp_path, "for epoch", "return 0", 'for x in "ab"', "alone ="
    )
    assert all("iteration" not in moment for moment in heads)
    assert zero == alone == ["after step 1"] and set(one_line) == {"step 2"}


def test_a_loop_that_runs_has_no_total(tmp_path):
    script = """
        def work():
            for k in range(5):
                x = k
                if k == 2:
                    return x
        for n in range(3):
            last = n
            if n == 1:
                work()
                end = 1
                break
    """
    questions = """
        answer = past.targets(path, line("x = k"))[0][1], past.moment(None)
    """
    assert ask(tmp_path, script, questions) == [
        "iteration 3 of 3, iteration 2 (line 7)", "iteration 2",
    ]  # fmt: skip


def test_lines_that_are_hot_have_no_turn(tmp_path):
    script = """
        for k in range(3000):
            x = k
        end = 1
    """
    questions = """
        answer = sorted({moment for _, moment in past.targets(path, line("x = k"))})
    """
    assert ask(tmp_path, script, questions) == [""]
