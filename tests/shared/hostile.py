"""Files that are not what they claim, made from good ones by knowledge of their formats."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

NUMBERS = (
    0, -1, 1, 2, 3, 255, 10**5, 10**9, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64,
    10**30, -(2**63), -(10**40),
)  # fmt: skip
WORDS = (
    "", "x", "é", "\u202e", "\ud83d\ude00", "\x00", "a" * 5000, "../../x", "/etc/passwd", "%s%n",
    "Integer(9)**Integer(9)**Integer(9)**Integer(9)", "s0", "float32", "f32", "F32", "BF16", "i64",
    "[" * 2000, "NaN", "1e999", "-0", "__import__('os')", "9" * 5000, "main", "random", "\n", "|O",
)  # fmt: skip


def mutated(data: bytes, kind: str, draw: random.Random) -> bytes:
    """One to three changes of a file of this kind."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = KINDS.get(kind, in_bytes) if draw.random() < 0.8 else in_bytes
        data = change(data, draw)
    return data


def in_bytes(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return draw.randbytes(8)
    at = draw.randrange(len(data))
    end = min(len(data), at + draw.choice((1, 2, 4, 8, 100, 5000)))
    match draw.randrange(7):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        case 2:
            return data[:at] + draw.randbytes(end - at) + data[end:]
        case 3:
            return data[:at] + data[at:end] * draw.choice((2, 3, 50)) + data[end:]
        case 4:
            return data[:at] + data[end:]
        case 5:
            number = draw.choice(NUMBERS) & (2**64 - 1)
            form = draw.choice(("<I", "<Q", ">I", ">Q", "<H"))
            word = struct.pack(form, number & ((1 << 8 * struct.calcsize(form)) - 1))
            return data[:at] + word + data[at + len(word) :]
        case _:
            return data[:at] + bytes([draw.choice((0, 255))]) * (end - at) + data[end:]


# --- JSON -----------------------------------------------------------------------------------------


def value(draw: random.Random) -> Any:
    match draw.randrange(6):
        case 0:
            return draw.choice((None, True, 0.5, 1e308, float("inf"), [], {}, [[]], {"": None}))
        case 1 | 2:
            return draw.choice(NUMBERS)
        case 3:
            deep: Any = 1
            for _ in range(draw.choice((3, 50, 500))):
                deep = [deep] if draw.random() < 0.5 else {"a": deep}
            return deep
        case _:
            return draw.choice(WORDS)


def in_json(data: bytes, draw: random.Random) -> bytes:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return in_bytes(data, draw)
    places: list[tuple[Any, Any]] = []
    todo = [content]
    while todo:
        one = todo.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        places += [(one, key) for key in keys]
        todo += [one[key] for key in keys if isinstance(one[key], (dict, list))]
    if not places:
        return json.dumps(value(draw)).encode()
    inside, key = draw.choice(places)
    match draw.randrange(5):
        case 0:
            del inside[key]
        case 1:
            inside[key] = draw.choice(places)[0]  # perhaps itself, which JSON cannot say
        case 2 if isinstance(inside, list):
            inside.insert(key, inside[key])
        case _:
            inside[key] = value(draw)
    try:
        text = json.dumps(content)
    except (ValueError, RecursionError):
        text = "[" * draw.choice((10, 100_000)) + json.dumps(value(draw))
    return text.encode("utf-8", "surrogatepass")


# --- arrays ---------------------------------------------------------------------------------------

SHAPES = (
    "()", "(4,)", "(1000000000,)", "(-1,)", "(4", "(True,)", "(2.0,)", "('4',)", "(0,)*9", "4",
    "(9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9)", "(4294967296, 4294967296)", "(0, 1000000000000)",
    "[4]", "(" * 300 + ")" * 300, "(9**9**9,)", "(10**10,)", "{}", "(1" + "0" * 5000 + ",)",
)  # fmt: skip
TYPES = (
    "'<f4'", "'>f4'", "'|O'", "'<f16'", "'<U1000000000'", "'|S0'", "'V2'", "'|V1000000000'",
    "'<m8'", "[('a', '<f4', (1000000000,))]", "'<c8'", "'é'", "''", "None", "'(4,)f4'",
    "'f4,f4'", "[]", "'<f4' * 9", "'|b1'", "'|i1'", "['<f4']", "'a' * 99",
)  # fmt: skip


def in_npy(data: bytes, draw: random.Random) -> bytes:
    found = re.match(rb"\x93NUMPY..(..)(\{.*?\}\s*\n)", data, re.DOTALL)
    if found is None:
        return in_bytes(data, draw)
    header = found[2].decode("latin1")
    match draw.randrange(4):
        case 0:
            header = re.sub(r"'shape': .*?\)", lambda _: f"'shape': {draw.choice(SHAPES)}", header)
        case 1:
            header = re.sub(r"'descr': '.*?'", lambda _: f"'descr': {draw.choice(TYPES)}", header)
        case 2:
            header = header.replace("False", draw.choice(("True", "0", "None", "'x'")))
        case _:
            header = in_text(header, draw)
    raw = header.encode("utf-8", "surrogatepass")
    length = len(raw) if draw.random() < 0.9 else draw.choice((0, 1, 65535))
    version = bytes([draw.choice((1, 1, 1, 1, 1, 2, 3, 9)), 0])
    size = struct.pack("<H" if version[0] == 1 else "<I", length & 0xFFFF)
    return b"\x93NUMPY" + version + size + raw + data[found.end() :]


def in_safetensors(data: bytes, draw: random.Random) -> bytes:
    (size,) = struct.unpack("<Q", data[:8]) if len(data) >= 8 else (0,)
    header = in_json(data[8 : 8 + size], draw)
    length = len(header) if draw.random() < 0.85 else draw.choice(NUMBERS) & (2**64 - 1)
    return struct.pack("<Q", length) + header + data[8 + size :]


def in_zip(data: bytes, draw: random.Random) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(m.filename, archive.read(m)) for m in archive.infolist()]
    except Exception:
        return in_bytes(data, draw)
    if not members or draw.random() < 0.15:
        return in_headers(data, draw)
    k = draw.randrange(len(members))
    name, content = members[k]
    method = zipfile.ZIP_STORED
    match draw.randrange(12):
        case 0:
            del members[k]
        case 1:
            members.append(members[k])
        case 2:
            folder = name.rpartition("/")[0]
            members[k] = (
                draw.choice((f"{folder}/{draw.choice(WORDS)}", draw.choice(WORDS))),
                content,
            )
        case 3:  # nearly nothing, but large
            method = zipfile.ZIP_DEFLATED
            members[k] = name, content + bytes(draw.choice((1 << 20, 1 << 26)))
        case 4:
            method = draw.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        case _:
            ending = name.rpartition(".")[2]
            inner = {"json": in_json, "npy": in_npy, "pt": in_zip}.get(ending, in_bytes)
            members[k] = name, inner(content, draw)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in members:
            at = zipfile.ZipInfo(name.encode("utf-8", "replace").decode()[:60_000])
            with warnings.catch_warnings(action="ignore"):  # of two members of one name
                archive.writestr(at, content, method)
    return in_headers(made.getvalue(), draw) if draw.random() < 0.1 else made.getvalue()


def in_headers(data: bytes, draw: random.Random) -> bytes:
    """A field of a header of an archive: sizes, places, flags, methods."""
    places = [m.start() for m in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06|\x06\x06)", data)]
    if not places:
        return in_bytes(data, draw)
    at = draw.choice(places) + draw.randrange(4, 46)
    word = struct.pack("<I", draw.choice(NUMBERS) & 0xFFFFFFFF)[: draw.choice((2, 4))]
    return data[:at] + word + data[at + len(word) :]


# --- texts ----------------------------------------------------------------------------------------

TOKEN = re.compile(r"\w+|[^\w\s]|\s+")


def in_text(text: str, draw: random.Random) -> str:
    tokens = TOKEN.findall(text) or [""]
    k = draw.randrange(len(tokens))
    end = min(len(tokens), k + draw.choice((1, 1, 2, 10, 60)))
    many = draw.choice((10, 300, 3000))
    match draw.randrange(9):
        case 0:
            del tokens[k:end]
        case 1:
            tokens[k:k] = tokens[k:end] * draw.choice((1, 2, 40))
        case 2:
            other = draw.randrange(len(tokens))
            tokens[k], tokens[other] = tokens[other], tokens[k]
        case 3 | 4:
            same = [t for t in tokens if t.isidentifier() == tokens[k].isidentifier()]
            tokens[k] = draw.choice(same)
        case 5:
            tokens[k] = str(draw.choice(NUMBERS))
        case 6:
            tokens[k] = draw.choice(WORDS)
        case 7:
            opening, closing = draw.choice(("()", "[]", "{}", "<>", "-1", "*2", "^2"))
            tokens[k] = opening * many + tokens[k] + closing * draw.choice((0, many))
        case _:
            numbers = [i for i, t in enumerate(tokens) if t.isdigit()] or [k]
            tokens[draw.choice(numbers)] = str(draw.choice(NUMBERS))
    return "".join(tokens)


def in_program(data: bytes, draw: random.Random) -> bytes:
    text = in_text(data.decode("utf-8", "replace"), draw)
    return text.encode("utf-8", "surrogatepass")


KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".pt2": in_zip, ".npz": in_zip, ".npy": in_npy, ".safetensors": in_safetensors,
    ".opg": in_program,
}  # fmt: skip
