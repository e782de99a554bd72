"""Messages: how they look, whatever the source line is like."""

from __future__ import annotations

import pickle

from opstep.runtime.ir.diagnostics import (
    Diagnostic,
    Note,
    OpstepError,
    did_you_mean,
    in_order,
    nearest,
    render,
    render_all,
)
from opstep.runtime.ir.graph import Source, Span


def message(text: str, part: str, **more) -> Diagnostic:
    start = text.index(part)
    span = Span(start, start + len(part))
    return Diagnostic("error", "it is wrong", span, Source(text, "a.opg"), **more)


def test_a_message_shows_the_place_the_line_and_the_hint() -> None:
    text = "graph g() {\n  y = rellu(x)\n}\n"
    assert render(message(text, "rellu", hint="did you mean relu?")) == (
        "a.opg:2:7: error: it is wrong\n    y = rellu(x)\n        ^^^^^\nhint: did you mean relu?"
    )


def test_notes_show_their_own_lines() -> None:
    text = "first\nsecond\n"
    other = Source("elsewhere", "lib.opg")
    notes = (Note("see here", Span(0, 5)), Note("and there", Span(0, 4), other))
    assert render(message(text, "second", notes=notes)).split("\n") == [
        "a.opg:2:1: error: it is wrong",
        "  second",
        "  ^^^^^^",
        "a.opg:1:1: note: see here",
        "  first",
        "  ^^^^^",
        "lib.opg:1:1: note: and there",
        "  elsewhere",
        "  ^^^^",
    ]


def test_carets_stand_under_the_span_behind_tabs_and_wide_characters() -> None:
    _, line, carets = render(message("\ta = 变量(x)", "x")).split("\n")
    assert line == "      a = 变量(x)"
    assert carets == "               ^"  # four columns for the tab, two for each wide character
    _, line, carets = render(message("é = e\u0301(x)", "x")).split("\n")
    assert carets.index("^") == 2 + len("é = é(")


def test_long_lines_are_cut_around_the_span() -> None:
    text = "a" * 500 + "WRONG" + "b" * 500
    _, line, carets = render(message(text, "WRONG")).split("\n")
    assert len(line) == 2 + 1 + 100 + 1
    assert line.startswith("  …a")
    assert line.endswith("b…")
    assert line[carets.index("^") : carets.rindex("^") + 1] == "WRONG"
    _, line, carets = render(message("x" * 300, "x")).split("\n")
    assert line == "  " + "x" * 100 + "…"
    assert carets == "  ^"


def test_a_span_over_several_lines_is_marked_to_the_end_of_its_first() -> None:
    assert render(message("f(a,\n  b)\n", "a,\n  b")).split("\n")[1:] == ["  f(a,", "    ^^"]


def test_a_span_at_the_end_of_the_text_has_a_caret() -> None:
    diagnostic = Diagnostic("error", "more is wanted", Span(3, 3), Source("ab\n", "a.opg"))
    assert render(diagnostic) == "a.opg:2:1: error: more is wanted\n  \n  ^"


def test_characters_that_a_terminal_would_obey_are_replaced() -> None:
    text = render(message("\x1b[31mred\x07 \u202e \ud800 x", "x"))
    assert "\x1b" not in text
    assert "\u202e" not in text
    text.encode()


def test_color_is_added_only_on_request() -> None:
    diagnostic = message("abc", "b", hint="try c", notes=(Note("here", Span(0, 1)),))
    plain, colored = render(diagnostic), render(diagnostic, color=True)
    assert "\x1b[" not in plain
    assert colored.count("\x1b[0m") >= 5


def test_messages_without_a_place_are_one_line() -> None:
    assert str(OpstepError("there is no such file")) == "error: there is no such file"
    assert str(OpstepError("empty", source=Source("", "a.opg"))) == "a.opg: error: empty"


def test_messages_are_in_order_and_said_once() -> None:
    source = Source("abcdef", "a.opg")
    made = [Diagnostic("error", f"at {k}", Span(k, k + 1), source) for k in (3, 1, 2, 1)]
    assert [d.message for d in in_order(made)] == ["at 1", "at 2", "at 3"]
    assert str(OpstepError(made)).count("error: at") == 3
    assert render_all(made).count("\n\n") == 3


def test_a_flood_of_messages_is_cut_in_the_text_of_the_exception() -> None:
    source = Source("x" * 200, "a.opg")
    error = OpstepError([Diagnostic("error", "x", Span(k, k + 1), source) for k in range(200)])
    assert len(error.diagnostics) == 200
    assert str(error).endswith("… and 150 more")


def test_errors_can_be_sent_between_processes() -> None:
    error = OpstepError("wrong", hint="do it right")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_near_names() -> None:
    assert nearest("rellu", ["relu", "gelu", "add"])[0] == "relu"
    assert did_you_mean("Relu", ["relu"]) == "did you mean relu?"
    assert did_you_mean("gellu", ["relu", "gelu"]) == "did you mean gelu or relu?"
    assert did_you_mean("zzz", ["relu"]) == ""
    assert did_you_mean("v12345", [f"v{k}" for k in range(100_000)])
