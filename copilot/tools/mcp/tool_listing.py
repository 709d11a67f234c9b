"""Prepare the tools and instructions that an MCP server lists for models and people. Unusable tools get a reason."""

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

from config.core.json_values import JSON
from config.core.text import make_storable
from copilot.chat.permissions import Permissions
from copilot.chat.prompt_tags import build_server_block, escape_server_tags, escape_text
from copilot.tools import json_schema
from copilot.tools.calls import canonicalize_json
from copilot.tools.mcp import services as mcp
from copilot.tools.mcp.services import ListedTool

if TYPE_CHECKING:
    from mcp import types

MAX_NAME_CHARACTERS = 64
NAME_HASH_CHARACTERS = 8
MAX_SCHEMA_CHARACTERS = 8_000
MAX_DESCRIPTION_CHARACTERS = 2_000
SHOWN_DESCRIPTION_CHARACTERS = 300  # of a description shown on a page
MAX_OFFERED_TOOLS = 64
MAX_INSTRUCTIONS_CHARACTERS = 4_000
MAX_TOTAL_INSTRUCTIONS_CHARACTERS = 12_000

TOO_MANY_TOOLS_MESSAGE = f"Only the first {MAX_OFFERED_TOOLS} tools of all servers are offered."
_not_in_names = re.compile(r"[^A-Za-z0-9_-]")
_usable_key = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # a provider would refuse the whole request for any other
_control = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class DescribedTool:
    """A tool of a server, usable by a model or left out for a reason."""

    tool: str  # the server's own name for it
    description: str = ""
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    read_only: bool = False  # according to the server
    left_out: str = ""

    def to_listed_tool(self) -> ListedTool:
        shown = make_storable(self.description)[:SHOWN_DESCRIPTION_CHARACTERS]
        return ListedTool(
            name=self.tool[:200],
            description=shown,
            parameters=dict(self.parameters),
            read_only=self.read_only,
            left_out=self.left_out,
        )


def describe_tools(
    tools: Iterable[types.Tool], redact: Callable[[str], str] = str
) -> tuple[DescribedTool, ...]:
    """Describe every listed tool. Slow enough to be kept off the event loop."""
    return tuple(_describe_tool(tool, redact) for tool in tools)


def _describe_tool(tool: types.Tool, redact: Callable[[str], str]) -> DescribedTool:
    name = escape_server_text(tool.name)
    description = escape_server_text(redact(tool.description or tool.title or ""))[
        :MAX_DESCRIPTION_CHARACTERS
    ]
    try:
        parameters = _parse_parameters(tool.input_schema)
    except _UnusableSchema as problem:
        return DescribedTool(tool=name, description=description, left_out=str(problem))
    hints = tool.annotations
    return DescribedTool(
        tool=name,
        description=description,
        parameters=parameters,
        read_only=hints is not None and hints.read_only_hint is True,
        left_out="" if tool.name == name else "Its name is not plain text.",
    )


def escape_server_text(text: str) -> str:
    """Clean a server's text, so that it can neither imitate our tags nor break what carries it."""
    return escape_server_tags(_control.sub("", make_storable(text)))


# --- Schemas -----------------------------------------------------------------------------------------


class _UnusableSchema(Exception):
    """A schema that cannot be offered to a model."""


def _parse_parameters(schema: dict[str, object]) -> dict[str, JSON]:
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        if len(text) > MAX_SCHEMA_CHARACTERS:
            raise _UnusableSchema(f"Its schema is longer than {MAX_SCHEMA_CHARACTERS:,} characters.")
        parameters = _escape_tags(canonicalize_json(json.loads(text)))
        if not isinstance(parameters, dict):
            raise _UnusableSchema("Its schema does not describe an object.")
        json_schema.check_schema(parameters, validator_for(parameters, default=Draft202012Validator))
    except (SchemaError, json_schema.SchemaTooComplex, ValueError, TypeError, RecursionError) as problem:
        raise _UnusableSchema("Its schema is not valid.") from problem
    if parameters.setdefault("type", "object") != "object":
        raise _UnusableSchema("Its schema does not describe an object.")
    if not all(_usable_key.fullmatch(key) for key in _get_properties(parameters)):
        raise _UnusableSchema("Its schema names arguments that models cannot give.")
    return parameters


def _escape_tags(value: JSON) -> JSON:
    match value:
        case dict():
            return {key: _escape_tags(item) for key, item in value.items()}
        case list():
            return [_escape_tags(item) for item in value]
        case str():
            return escape_server_tags(value)
        case _:
            return value


def _get_properties(parameters: Mapping[str, JSON]) -> Mapping[str, JSON]:
    properties = parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def check_arguments(arguments: Mapping[str, JSON], parameters: Mapping[str, JSON]) -> None:
    """Check the outermost level only: a hostile schema could make a full check endless, and the server checks
    anyway."""
    properties = _get_properties(parameters)
    required = parameters.get("required")
    problems = [
        _make_argument_error(name, "Field required")
        for name in (required if isinstance(required, list) else [])
        if isinstance(name, str) and name not in arguments
    ]
    for name, value in arguments.items():
        if name in properties:
            wanted = properties[name]
            if isinstance(wanted, dict) and not _matches_type(value, wanted.get("type")):
                problems.append(_make_argument_error(name, f"Input should be of type {wanted.get('type')}"))
        elif parameters.get("additionalProperties") is False:
            problems.append(_make_argument_error(name, "Extra inputs are not permitted"))
    if problems:
        raise ValidationError.from_exception_data("arguments", problems)


def _make_argument_error(name: str, message: str) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("mcp", "{words}", {"words": message}), loc=(name,), input=None
    )


def _matches_type(value: JSON, kind: JSON) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    known = [_JSON_TYPES[name] for name in kinds if isinstance(name, str) and name in _JSON_TYPES]
    if len(known) < len(kinds):
        return True  # no type, or one that only the server understands
    if isinstance(value, bool):
        return (bool,) in known
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return any(isinstance(value, types_) for types_ in known)


# --- Names -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolLocation:
    """The server of a tool and the tool's own name there."""

    server_id: UUID
    server: str
    tool: str


def assign_tool_names(places: Sequence[ToolLocation]) -> list[str]:
    """Return the names models use: the same after every restart, whichever server answered first."""
    wanted = [f"mcp_{place.server}_{place.tool}" for place in places]
    plain = [_not_in_names.sub("_", name) for name in wanted]
    counts = Counter(plain)
    return [
        name
        if counts[name] == 1 and name == wanted_name and len(name) <= MAX_NAME_CHARACTERS
        else _hash_name(name, place)
        for name, wanted_name, place in zip(plain, wanted, places, strict=True)
    ]


def _hash_name(name: str, place: ToolLocation) -> str:
    digest = hashlib.sha256(f"{place.server_id}/{place.tool}".encode()).hexdigest()[:NAME_HASH_CHARACTERS]
    return f"{name[: MAX_NAME_CHARACTERS - NAME_HASH_CHARACTERS - 1]}_{digest}"


# --- Instructions ------------------------------------------------------------------------------------


def build_instructions(instructions: Iterable[tuple[str, str]]) -> str:
    """Join the servers' instructions, sorted by server name, into one block of the system prompt."""
    parts: list[str] = []
    left = MAX_TOTAL_INSTRUCTIONS_CHARACTERS
    for server, text in sorted(instructions):
        words = escape_text(_control.sub("", make_storable(text.strip())))[:MAX_INSTRUCTIONS_CHARACTERS]
        part = f"From the MCP server {escape_text(server)}:\n{words}"[:left]
        if words and part:
            left -= len(part)
            parts.append(part)
    return build_server_block("mcp_instructions", "\n\n".join(parts)) if parts else ""


def check_offline_call(
    user_id: int, permissions: Permissions, name: str, arguments: Mapping[str, JSON]
) -> bool:
    """Check a call against the server's last list, and return False if that is not possible.

    Raises pydantic's ValidationError for arguments that the schema does not allow.
    """
    servers = mcp.list_usable_servers(user_id, permissions) if name.startswith("mcp_") else ()
    listed = [(server, tool) for server in servers for tool in server.tools if not tool["left_out"]]
    named = assign_tool_names([ToolLocation(server.id, server.name, tool["name"]) for server, tool in listed])
    if not permissions.allows_tool(name) or name not in named:
        return False
    _, tool = listed[named.index(name)]
    try:
        problems = json_schema.find_argument_problems(arguments, tool["parameters"])
    except json_schema.SchemaNotCheckable:
        return False
    if problems:
        raise ValidationError.from_exception_data(
            "arguments", [_make_validation_error(*problem) for problem in problems]
        )
    return True


def _make_validation_error(path: tuple[str | int, ...], message: str) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("mcp", "{words}", {"words": message}), loc=path, input=None
    )
