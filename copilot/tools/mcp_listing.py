"""What a server says of its tools, made fit for models and people; whatever is unfit is left out by name (A28.4)."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from copilot import schemas
from copilot.events import JSON
from copilot.mcp import Listed
from copilot.rows import storable
from copilot.tags import block, escape, escape_server_tags
from copilot.tools.calls import canonical

if TYPE_CHECKING:  # the SDK is heavy, and this is its only use here
    from mcp import types

NAME_CHARACTERS = 64
HASH_CHARACTERS = 8
SCHEMA_CHARACTERS = 8_000
DESCRIPTION_CHARACTERS = 2_000
SHOWN_CHARACTERS = 300  # of a description, on a page
MOST_TOOLS = 64
INSTRUCTIONS_CHARACTERS = 4_000
ALL_INSTRUCTIONS_CHARACTERS = 12_000

TOO_MANY = f"Only the first {MOST_TOOLS} tools of all servers are offered."
_not_in_names = re.compile(r"[^A-Za-z0-9_-]")
_usable_key = re.compile(
    r"[A-Za-z0-9_.-]{1,64}"
)  # others are refused by a provider, and the request with them
_control = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class Described:
    """One tool of a server: fit for a model, or left out for a reason."""

    tool: str  # the server's own name for it
    description: str = ""
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    read_only: bool = False  # the server says so
    left_out: str = ""

    def listed(self) -> Listed:
        shown = storable(self.description)[:SHOWN_CHARACTERS]
        return Listed(
            name=self.tool[:200],
            description=shown,
            parameters=dict(self.parameters),
            read_only=self.read_only,
            left_out=self.left_out,
        )


def describe(tools: Iterable[types.Tool], redact: Callable[[str], str] = str) -> tuple[Described, ...]:
    """Every tool of a server's list; takes its time, so not on the loop."""
    return tuple(_described(tool, redact) for tool in tools)


def _described(tool: types.Tool, redact: Callable[[str], str]) -> Described:
    name = foreign(tool.name)
    description = foreign(redact(tool.description or tool.title or ""))[:DESCRIPTION_CHARACTERS]
    try:
        parameters = _parameters(tool.input_schema)
    except _Unfit as problem:
        return Described(tool=name, description=description, left_out=str(problem))
    hints = tool.annotations
    return Described(
        tool=name,
        description=description,
        parameters=parameters,
        read_only=hints is not None and hints.read_only_hint is True,
        left_out="" if tool.name == name else "Its name is not plain text.",
    )


def foreign(text: str) -> str:
    """A server's words: data, that can neither pass for ours nor break what carries them."""
    return escape_server_tags(_control.sub("", storable(text)))


# --- schemas -----------------------------------------------------------------------------------------


class _Unfit(Exception):
    """Why a schema cannot be offered to a model."""


def _parameters(schema: dict[str, object]) -> dict[str, JSON]:
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        if len(text) > SCHEMA_CHARACTERS:
            raise _Unfit(f"Its schema is longer than {SCHEMA_CHARACTERS:,} characters.")
        parameters = _escaped(canonical(json.loads(text)))
        if not isinstance(parameters, dict):
            raise _Unfit("Its schema does not describe an object.")
        schemas.check_schema(parameters, validator_for(parameters, default=Draft202012Validator))
    except (SchemaError, schemas.TooCostly, ValueError, TypeError, RecursionError) as problem:
        raise _Unfit("Its schema is not valid.") from problem
    if parameters.setdefault("type", "object") != "object":
        raise _Unfit("Its schema does not describe an object.")
    if not all(_usable_key.fullmatch(key) for key in _properties(parameters)):
        raise _Unfit("Its schema names arguments that models cannot give.")
    return parameters


def _escaped(value: JSON) -> JSON:
    match value:
        case dict():
            return {key: _escaped(item) for key, item in value.items()}
        case list():
            return [_escaped(item) for item in value]
        case str():
            return escape_server_tags(value)
        case _:
            return value


def _properties(parameters: Mapping[str, JSON]) -> Mapping[str, JSON]:
    properties = parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def check(arguments: Mapping[str, JSON], parameters: Mapping[str, JSON]) -> None:
    """The outermost layer alone: a hostile schema makes a full check run for ever, and the server makes one itself."""
    properties = _properties(parameters)
    required = parameters.get("required")
    problems = [
        _problem(name, "Field required")
        for name in (required if isinstance(required, list) else [])
        if isinstance(name, str) and name not in arguments
    ]
    for name, value in arguments.items():
        if name in properties:
            wanted = properties[name]
            if isinstance(wanted, dict) and not _is_of(value, wanted.get("type")):
                problems.append(_problem(name, f"Input should be of type {wanted.get('type')}"))
        elif parameters.get("additionalProperties") is False:
            problems.append(_problem(name, "Extra inputs are not permitted"))
    if problems:
        raise ValidationError.from_exception_data("arguments", problems)


def _problem(name: str, message: str) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("mcp", "{words}", {"words": message}), loc=(name,), input=None
    )


def _is_of(value: JSON, kind: JSON) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    known = [_KINDS[one] for one in kinds if isinstance(one, str) and one in _KINDS]
    if len(known) < len(kinds):
        return True  # nothing is said, or something the server alone understands
    if isinstance(value, bool):
        return (bool,) in known
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return any(isinstance(value, one) for one in known)


# --- names -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a tool is: its server and its own name there."""

    server_id: UUID
    server: str
    tool: str


def names(places: Sequence[Place]) -> list[str]:
    """The names models use: the same after every restart, whichever server answered first."""
    wished = [f"mcp_{place.server}_{place.tool}" for place in places]
    plain = [_not_in_names.sub("_", name) for name in wished]
    times = Counter(plain)
    return [
        name if times[name] == 1 and name == wish and len(name) <= NAME_CHARACTERS else _hashed(name, place)
        for name, wish, place in zip(plain, wished, places, strict=True)
    ]


def _hashed(name: str, place: Place) -> str:
    digest = hashlib.sha256(f"{place.server_id}/{place.tool}".encode()).hexdigest()[:HASH_CHARACTERS]
    return f"{name[: NAME_CHARACTERS - HASH_CHARACTERS - 1]}_{digest}"


# --- instructions ------------------------------------------------------------------------------------


def instructions(said: Iterable[tuple[str, str]]) -> str:
    """What servers want models to know, by server name, as one block of the session's suffix (A28.5)."""
    parts: list[str] = []
    left = ALL_INSTRUCTIONS_CHARACTERS
    for server, text in sorted(said):
        words = escape(_control.sub("", storable(text.strip())))[:INSTRUCTIONS_CHARACTERS]
        part = f"From the MCP server {escape(server)}:\n{words}"[:left]
        if words and part:
            left -= len(part)
            parts.append(part)
    return block("mcp_instructions", "\n\n".join(parts)) if parts else ""
