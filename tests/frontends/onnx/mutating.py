"""Models as nobody writes them: one field has another value, is there twice, or is missing."""

from __future__ import annotations

import random
from typing import Any

NUMBERS = (0, 1, -1, 3, 255, 100_000, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
FRACTIONS = (0.0, -1.0, 1e30, float("inf"), float("nan"))
NAMES = ("", "x", "y", "axis", "to", "com.microsoft", "Relu", "Loop", "Size", "é", "a" * 1000)
BYTES = (b"", b"x", bytes(8), b"\xff" * 32)


def mutate(model: Any, draw: random.Random) -> None:
    """Changes one field somewhere in a protobuf message."""
    message = draw.choice(list(_messages(model)))
    there = [f for f, _ in message.ListFields()]
    field = draw.choice(there if there and draw.random() < 0.85 else message.DESCRIPTOR.fields)
    if not field.is_repeated:
        _mutate_one(message, field, draw)
        return
    values = getattr(message, field.name)
    match draw.randrange(4):
        case 0 if values:
            del values[draw.randrange(len(values))]
        case 1 if values:
            values.append(draw.choice(values))
        case 2 if len(values) > 1:
            kept = list(values)
            draw.shuffle(kept)
            del values[:]
            values.extend(kept)
        case _ if field.type == field.TYPE_MESSAGE:
            values.add()
        case _:
            values.insert(draw.randrange(len(values) + 1), _value(field, draw))


def _mutate_one(message: Any, field: Any, draw: random.Random) -> None:
    if draw.random() < 0.2:
        message.ClearField(field.name)
    elif field.type == field.TYPE_MESSAGE:
        getattr(message, field.name).SetInParent()
    else:
        try:
            setattr(message, field.name, _value(field, draw))
        except ValueError:  # a number that this field does not hold
            message.ClearField(field.name)


def _messages(message: Any):
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                yield from _messages(part)


def _value(field: Any, draw: random.Random) -> Any:
    if field.type == field.TYPE_ENUM:
        return draw.choice(field.enum_type.values).number
    kinds = {field.TYPE_STRING: NAMES, field.TYPE_BYTES: BYTES, field.TYPE_FLOAT: FRACTIONS}
    return draw.choice(kinds.get(field.type, NUMBERS))
