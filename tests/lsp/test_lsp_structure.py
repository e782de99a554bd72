"""Folding, selection ranges and document links."""

from itertools import pairwise

import pytest
from lsp_client import editor

TEXT = """# The first line
# and the second

param w: f32[8] = ones()
param b: f32[8] = zeros()
# a comment
state s: f32[8] = zeros()

param alone: f32[8]

# region helpers
graph main(x: f32[N, 8]) -> f32[N, 8] {
  # one
  # two
  y = mul(
    x,
    w,
  )
  z = add(y, b)

  v = relu(z)
  return v
}
# endregion

graph short(x: f32[N]) -> f32[N] { return x }
"""


@pytest.fixture(scope="module")
def client():
    with editor() as found:
        yield found


def folds(client, text):
    client.open(text)
    return [(f["startLine"], f["endLine"], f.get("kind")) for f in client.about("foldingRange")]


def test_folds(client):
    assert folds(client, TEXT) == [
        (0, 1, "comment"),
        (3, 6, None),
        (10, 23, "region"),
        (11, 21, None),
        (12, 13, "comment"),
        (14, 16, None),
    ]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        ("graph f() {\n", []),
        ("# region\n# region\n# endregion\n# endregion\n", [(0, 3, "region"), (1, 2, "region")]),
        ("# endregion\n", []),
        ("param w: f32[8] = normal(\n  std=0.1,\n)\n", [(0, 2, None)]),
        ("graph f(x: f32[N]) {\n  y = relu(x)\n", [(0, 1, None)]),
    ],
)
def test_folds_of_odd_texts(client, text, expected):
    assert folds(client, text) == expected


def selections(client, text):
    """The texts selected at the mark, from the smallest on."""
    document = client.open(text.replace("|", "‹here›"))
    found = client.about("selectionRange", positions=[document.position("here")])[0]
    chosen = []
    while found:
        chosen.append(document.at(found["range"]))
        found = found.get("parent")
    return chosen


def test_a_selection_grows_from_the_name_to_the_file(client):
    text = TEXT.replace("z = add(y, b)", "z = add(y, |b)")
    plain = text.replace("|", "")
    body = plain[plain.index("# one") : plain.index("\n}\n# endregion")]
    block = body[: body.index("\n\n")]
    graph = plain[plain.index("graph main") : plain.index("\n# endregion")]
    found = selections(client, text)
    for piece in ["b", "y, b", "add(y, b)", "z = add(y, b)", block, body, graph, plain]:
        assert piece in found
    assert found == sorted(found, key=len)
    assert all(inner in outer for inner, outer in pairwise(found))


@pytest.mark.parametrize(
    "line, pieces",
    [
        ("z = cast(y, dtype=f|32)", ["f32", "dtype=f32", "y, dtype=f32", "cast(y, dtype=f32)"]),
        ("z = reshape(y, shape=[N, |8])", ["8", "N, 8", "[N, 8]", "shape=[N, 8]"]),
        ("z|z = add(y, b)", ["zz", "zz = add(y, b)"]),
        ("z: f32[N, |8] = add(y, b)", ["8", "N, 8", "f32[N, 8]", "z: f32[N, 8]"]),
        ("s <- |y", ["y", "s <- y"]),
        ("z = mul(\n    |y,\n    w,\n  )", ["y", "mul(\n    y,\n    w,\n  )"]),
        ("z = add(y, b|", ["b"]),
    ],
)
def test_parts_of_a_statement(client, line, pieces):
    found = selections(client, TEXT.replace("z = add(y, b)", line))
    assert [p for p in found if p in pieces] == pieces


def test_every_position_of_a_text_has_nested_ranges(client):
    document = client.open(TEXT)
    positions = [document.position(k) for k in range(len(document.text) + 1)]
    for position, found in zip(
        positions, client.about("selectionRange", positions=positions), strict=True
    ):
        at, spans = document.offset(position), []
        while found:
            r = found["range"]
            spans.append((document.offset(r["start"]), document.offset(r["end"])))
            found = found.get("parent")
        assert spans[-1] == (0, len(document.text))
        assert all(start <= at <= end for start, end in spans)
        assert all(a[0] >= b[0] and a[1] <= b[1] and a != b
                   for a, b in pairwise(spans))  # fmt: skip


# --- links ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    for name in ("model.py", "lenet.safetensors", "digits.npz", "sub/notes.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


def links(client, folder, text):
    document = client.open(text, (folder / "a.opg").as_uri())
    return [(document.at(f["range"]), f["target"].removeprefix(folder.as_uri()), f["tooltip"])
            for f in client.about("documentLink")]  # fmt: skip


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            '  y = relu(x) at "model.py":12\n',
            [('model.py":12', "/model.py#L12", "model.py, line 12")],
        ),
        (
            '  y = relu(x) at "model.py":12, "gone.py":1, "sub/notes.md":3 in "model.py"\n',
            [
                ('model.py":12', "/model.py#L12", "model.py, line 12"),
                ('sub/notes.md":3', "/sub/notes.md#L3", "sub/notes.md, line 3"),
            ],
        ),
        ('  y = relu(x) at "gone.py":12\n', []),
        (
            "# weights: lenet.safetensors.\n",
            [("lenet.safetensors", "/lenet.safetensors", "lenet.safetensors")],
        ),
        (
            "# digits.npz:test_images\n",
            [("digits.npz:test_images", "/digits.npz", "digits.npz, test_images")],
        ),
        ("# see sub/notes.md, ./model.py:3\n", [
            ("sub/notes.md", "/sub/notes.md", "sub/notes.md"),
            ("./model.py:3", "/model.py#L3", "./model.py, line 3")]),
        ("  assert a, \"# model.py\"\n", []),
        ("  assert a, \"x\"  # model.py\n", [("model.py", "/model.py", "model.py")]),
        ("model.py\n", []),
        ("# nothing here, e.g. this and that.\n", []),
        ("# \0.py \\ud800\n", []),
        ('  y = relu(x) at "\\q.py":12\n', []),
    ],
)  # fmt: skip
def test_links_to_files_that_are_there(client, folder, text, expected):
    assert links(client, folder, text) == expected
