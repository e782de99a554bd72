"""The protocol's JSON schema, against which every message of the tests is held, both ways.

The schema comes with debugpy, which carries a version that is somewhat older than the one that the
server speaks: `NEWER` has what came after it, as far as the server uses it.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA = "_vendored/pydevd/_pydevd_bundle/_debug_adapter/debugProtocol.json"

INTEGER, STRING, BOOLEAN = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
FRAME = {"arguments", "body", "command", "event", "seq"}  # properties of messages themselves

# Definition -> properties that it has got since.
NEWER: dict[str, dict[str, Any]] = {
    "Breakpoint": {"reason": {"type": "string", "enum": ["pending", "failed"]}},
    "Capabilities": {
        "supportsANSIStyling": BOOLEAN,
        "supportsDataBreakpointBytes": BOOLEAN,
        "breakpointModes": {"type": "array"},
    },
    # Columns of our own: the protocol allows them where `additionalModuleColumns` names them.
    "Module": {"op": STRING, "registers": INTEGER, "sharedMemory": INTEGER},
    "Variable": {
        "declarationLocationReference": INTEGER,
        "valueLocationReference": INTEGER,
        "__vscodeVariableMenuContext": STRING,  # VS Code's own: for conditions of its menus
    },
}
# The same for the bodies of responses and events.
NEWER_BODIES: dict[str, dict[str, Any]] = {
    "EvaluateResponse": {"valueLocationReference": INTEGER},
    "OutputEvent": {"locationReference": INTEGER},
    "SetExpressionResponse": {"valueLocationReference": INTEGER, "memoryReference": STRING},
    "SetVariableResponse": {"valueLocationReference": INTEGER, "memoryReference": STRING},
    "DataBreakpointInfoResponse": {},
}
# Arguments of requests.
NEWER_ARGUMENTS: dict[str, dict[str, Any]] = {
    "InitializeRequestArguments": {"supportsANSIStyling": BOOLEAN},
    "EvaluateArguments": {"line": INTEGER, "column": INTEGER, "source": {"type": "object"}},
    "DataBreakpointInfoArguments": {"bytes": COUNT, "asAddress": BOOLEAN, "mode": STRING},
}


def _message(kind: str, name: str, payload: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """A definition like those of the schema."""
    return {
        "allOf": [
            {"$ref": f"#/definitions/{kind}"},
            {"type": "object", "properties": {name: payload}, "required": required},
        ]
    }


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


# Messages that the older schema does not have at all.
NEW_MESSAGES = {
    "LocationsRequest": _message(
        "Request", "arguments", _object(["locationReference"], locationReference=INTEGER),
        ["command", "arguments"],
    ),
    "LocationsResponse": _message(
        "Response",
        "body",
        _object(
            ["source", "line"],
            source={"$ref": "#/definitions/Source"},
            line=INTEGER, column=INTEGER, endLine=INTEGER, endColumn=INTEGER,
        ),
        ["body"],
    ),
    "StartDebuggingRequest": _message(
        "Request",
        "arguments",
        _object(
            ["configuration", "request"],
            configuration={"type": "object"},
            request={"type": "string", "enum": ["launch", "attach"]},
        ),
        ["command", "arguments"],
    ),
    "StartDebuggingResponse": {"allOf": [{"$ref": "#/definitions/Response"}]},
}  # fmt: skip


@cache
def schema() -> dict[str, Any]:
    """The definitions, closed: a property that none of them has is a mistake."""
    package = importlib.util.find_spec("debugpy")
    assert package is not None and package.origin is not None, "the tests need debugpy"
    text = (Path(package.origin).parent / SCHEMA).read_text(encoding="utf-8")
    found = json.loads(text)
    definitions = found["definitions"]
    for name, properties in (NEWER | NEWER_ARGUMENTS).items():
        definitions[name]["properties"] |= properties
    given = definitions["RestartArguments"]["properties"]["arguments"]
    given["anyOf"] = given.pop("oneOf")  # what is right for launch is right for attach
    for name, properties in NEWER_BODIES.items():
        definitions[name]["allOf"][1]["properties"]["body"]["properties"] |= properties
    for name, definition in NEW_MESSAGES.items():
        definitions.setdefault(name, definition)
    for name, definition in definitions.items():
        if name not in ("LaunchRequestArguments", "AttachRequestArguments"):
            _close(definition)
    return found


def _close(definition: Any) -> None:
    """Objects of named properties have no others. Messages are put together (``allOf``) of parts
    that do not know each other: of these, bodies and arguments are closed.
    """
    if isinstance(definition, list):
        for part in definition:
            _close(part)
    elif isinstance(definition, dict):
        whole = definition.get("type") == "object" and "allOf" not in definition
        properties = definition.get("properties")
        message = properties is not None and FRAME & set(properties)
        if whole and properties and not message:
            definition.setdefault("additionalProperties", False)
        for part in definition.values():
            _close(part)


@cache
def _validator(name: str) -> Any:
    from jsonschema import Draft4Validator

    whole = schema()
    return Draft4Validator({**whole, "$ref": f"#/definitions/{name}"})


def definition_of(message: dict[str, Any]) -> str:
    """``StackTraceResponse`` for such a response."""
    kind = message["type"]
    if kind == "event":
        return _capital(message["event"]) + "Event"
    if kind == "response" and not message["success"]:
        return "ErrorResponse"
    return _capital(message["command"]) + kind.capitalize()


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def check_message(message: dict[str, Any]) -> None:
    """Raises `AssertionError` where a message is not as the protocol wants it. Of requests of our
    own only the frame is known.
    """
    name = definition_of(message)
    if name not in schema()["definitions"]:
        assert "/" in name, f"the protocol has no {name}"
        name = {"request": "Request", "response": "Response"}[message["type"]]
    found = sorted(_validator(name).iter_errors(message), key=str)
    said = "\n".join(f"  {'.'.join(map(str, e.absolute_path))}: {e.message[:300]}" for e in found)
    assert not found, (
        f"{name} is not as the protocol wants it:\n{said}\n{json.dumps(message)[:800]}"
    )
