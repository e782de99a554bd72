"""Hypothesis strategies for modules: whatever the grammar can say, sense or nonsense."""

from __future__ import annotations

from hypothesis import strategies as st

from opstep.runtime.ir.dims import Expr, symbol
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Attr,
    Binding,
    Comments,
    Declaration,
    Graph,
    Literal,
    MeshAxis,
    MeshDeclaration,
    Module,
    Name,
    Provenance,
    Return,
    Sharding,
    SourceLine,
    TypeParameter,
    Update,
)
from opstep.runtime.ir.lexer import RESERVED
from opstep.runtime.ir.mesh import MOST_RANKS
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import DTYPES, FAMILIES, TensorType

_words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
plain_names = _words.filter(lambda w: w not in RESERVED)
dotted_names = st.builds(
    lambda head, rest: ".".join([head, *rest]),
    plain_names,
    st.lists(st.from_regex(r"[A-Za-z0-9_]{1,4}", fullmatch=True), max_size=3),
).filter(lambda w: w not in RESERVED)
new_names = plain_names.map(Name)
tensor_names = dotted_names | st.text(
    st.characters(exclude_characters="`").filter(str.isprintable), min_size=1, max_size=8
)
used_names = tensor_names.map(Name)

ints = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
floats = st.floats()
literals = (ints | floats).map(Literal)


@st.composite
def dims(draw, symbolic: bool = False):
    """A dim as the parser gives it; `symbolic` ones have a symbol in them, and more than it."""
    value = symbol(draw(plain_names))
    for _ in range(draw(st.integers(1 if symbolic else 0, 3))):
        operator = draw(st.sampled_from("+-*/%"))
        other = draw(st.integers(1, 9) | plain_names.map(symbol))
        if operator == "/":
            value = value // other
        elif operator == "%":
            value = value % other
        else:
            value = {"+": value + other, "-": value - other, "*": value * other}[operator]
    if symbolic and (type(value) is int or value.lone_symbol()):
        value = symbol(draw(plain_names)) * 2 + 1
    return value


types = st.builds(
    TensorType,
    st.sampled_from(list(DTYPES.values())),
    st.lists(
        st.integers(0, 1000) | dims().filter(lambda d: type(d) is Expr or d >= 0), max_size=3
    ).map(tuple),
)

scalars = (
    ints
    | floats
    | st.booleans()
    | st.none()
    | st.text(max_size=12)
    | plain_names.map(Ref)
    | dims(symbolic=True)
)
values = scalars | st.lists(scalars, max_size=3).map(tuple)
attrs = st.lists(st.builds(Attr, _words.map(Name), values), max_size=3).map(tuple)
_source_lines = st.builds(SourceLine, st.text(max_size=8), st.integers(0, 2**63 - 1))
provenances = st.none() | st.builds(
    Provenance, st.lists(_source_lines, min_size=1, max_size=3).map(tuple), st.text(max_size=8)
)

_comment = st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=12)
comment_lines = _comment.map(lambda text: text.rstrip() or " ")
behind = st.none() | _comment.map(str.rstrip)


@st.composite
def comments(draw, first: bool = False, last: bool = False):
    """Comments as the parser gives them: one blank line in a row, none at a block's ends."""
    lines: list[str] = []
    for line in draw(st.lists(comment_lines | st.just(""), max_size=3)):
        if line or (lines[-1] if lines else not first):
            lines.append(line)
    while last and lines and not lines[-1]:
        lines.pop()
    return Comments(tuple(lines), draw(behind))


bindings = st.builds(Binding, new_names, st.none() | types)
operands = used_names | literals


@st.composite
def statements(draw, first: bool):
    text = comments(first=first)
    return draw(
        st.builds(
            Apply,
            st.lists(bindings, max_size=3).map(tuple),
            new_names,
            st.lists(operands, max_size=4).map(tuple),
            attrs,
            provenances,
            text,
        )
        | st.builds(Assert, used_names, st.text(max_size=12), provenances, text)
        | st.builds(Update, used_names, operands, provenances, text)
        | st.builds(
            Return, st.lists(used_names, min_size=1, max_size=3).map(tuple), provenances, text
        )
    )


@st.composite
def declarations(draw, apart: bool):
    init, given, value = None, (), None
    how = draw(st.sampled_from(["op", "number", "nothing"]))
    if how == "op":
        init, given = draw(new_names), draw(attrs)
    elif how == "number":
        value = draw(literals | st.booleans().map(Literal))
    kind = draw(st.sampled_from(["param", "state"]))
    text = draw(comments(first=apart))
    over = st.lists(new_names, min_size=1, max_size=3).map(tuple)
    sharding = draw(st.none() | st.builds(Sharding, over, st.integers(0, 2**63 - 1)))
    return Declaration(
        kind, draw(used_names), draw(types), init, given, value, text, sharding=sharding
    )


@st.composite
def meshes(draw, apart: bool):
    """`apart`: as for declarations."""
    axes = st.builds(MeshAxis, new_names, st.integers(1, MOST_RANKS))
    some = draw(st.lists(axes, min_size=1, max_size=3, unique_by=lambda a: a.name.text))
    return MeshDeclaration(tuple(some), draw(comments(first=apart)))


@st.composite
def type_parameters(draw):
    """Variables with names that no symbol has."""
    families = draw(st.lists(st.sampled_from(list(FAMILIES)), max_size=2))
    return tuple(
        TypeParameter(Name(f"element_type_{k}"), Name(family)) for k, family in enumerate(families)
    )


@st.composite
def graphs(draw):
    body: list = []
    for _ in range(draw(st.integers(0, 4))):
        body.append(draw(statements(first=not body)))
    parameters = draw(type_parameters())
    own_types = types
    if parameters:
        variables = st.sampled_from([p.variable for p in parameters])
        own_types = types | st.builds(TensorType.with_dtype, types, variables)
        attr = st.builds(Attr, _words.map(Name), variables)
        body.append(draw(st.builds(Apply, st.just(()), new_names, st.just(()), st.tuples(attr))))
    return Graph(
        draw(new_names),
        tuple(draw(st.lists(st.builds(Binding, new_names, own_types), max_size=3))),
        tuple(draw(st.lists(own_types, max_size=3))),
        tuple(body),
        draw(comments(first=True)),
        draw(comments(first=not body, last=True)),
        type_parameters=parameters,
    )


@st.composite
def modules(draw):
    items: list = []
    apart = True  # a blank line next to a graph belongs to the form, and is not kept
    for _ in range(draw(st.integers(0, 4))):
        item = draw(graphs() | declarations(apart) | meshes(apart))
        items.append(item)
        apart = isinstance(item, Graph)
    closing = draw(comments(first=apart, last=True))
    return Module(tuple(items), Comments(closing.above))
