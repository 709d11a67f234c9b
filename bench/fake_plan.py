"""Plan the fake provider's reply to a request, from the model's name and the last user message."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

WORD = re.compile(r"(?:^|\s)(?:t(\d+)|(\d+):\d+)(?=\s|$)")  # "t17 " or, stamped, "17:<monotonic_ns> "
DIRECTIVE = re.compile(r"fake:\s*(?=\{)")


@dataclass(frozen=True, kw_only=True)
class FakeCall:
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One reply. `*_after` count tokens of any kind; -1 means never."""

    tokens: int = 20
    first_ms: float = 0.0
    gap_ms: float = 0.0  # 0 = as fast as the client reads
    thinking: int = 0
    stamp: bool = False
    tools: tuple[FakeCall, ...] = ()
    rounds: int = 1  # rounds of tool calls before the text
    usage: bool = True
    finish: str = ""  # overrides the natural finish reason
    status: int = 200
    retry_after: str = ""
    body: str = ""  # the error's message
    fail_times: int = -1  # only the first N requests fail; -1 = all
    hang: bool = False
    cut_after: int = -1
    reset_after: int = -1
    garbage_after: int = -1
    silent_after: int = -1
    start: int = 0  # index of the first token when an answer is continued
    lead: str = ""  # separates the first token from a partial answer that lost its last space

    @property
    def fails(self) -> bool:
        return (
            self.hang
            or self.status != 200
            or max(self.cut_after, self.reset_after, self.garbage_after, self.silent_after) >= 0
        )


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A message of a request, in whichever wire format it came."""

    role: str
    text: str
    calls: bool = False
    results: bool = False


@dataclass(frozen=True, kw_only=True)
class Conversation:
    model: str
    turns: list[Turn] = field(default_factory=list)


def plan_for(conversation: Conversation) -> Plan:
    options = _from_model(conversation.model)
    turns = list(conversation.turns)
    while turns and turns[-1].role == "user" and "<system_note>" in turns[-1].text[:40]:
        turns.pop()
    asked = next((t.text for t in reversed(turns) if t.role == "user" and not t.results), "")
    if found := DIRECTIVE.search(asked):
        options |= json.JSONDecoder().raw_decode(asked, found.end())[0]
    plan = _plan(options)
    rounds = 0
    for turn in reversed(turns):
        if turn.role == "user" and not turn.results:
            break
        rounds += turn.calls
    last = turns[-1] if turns else Turn(role="user", text="")
    tools = tuple(_numbered(call, rounds) for call in plan.tools) if rounds < plan.rounds else ()
    if last.role != "assistant" or last.calls:
        return replace(plan, tools=tools)
    lead = " " if last.text and not last.text[-1].isspace() else ""
    return replace(plan, tools=tools, start=_next_index(last.text), lead=lead)


def _numbered(call: FakeCall, number: int) -> FakeCall:
    """Replace `$round` in arguments, so that each round's call differs and does not look like a loop."""
    return replace(call, arguments=call.arguments.replace("$round", str(number)))


def _next_index(partial: str) -> int:
    found = WORD.findall(partial)
    return int(found[-1][0] or found[-1][1]) + 1 if found else 0


def _from_model(model: str) -> dict[str, Any]:
    if not model.startswith("fake:"):
        return {}
    options: dict[str, Any] = {}
    for part in _split_outside_braces(model[5:]):
        key, _, value = part.partition("=")
        if key == "tools":
            name, _, arguments = value.partition(":")
            options.setdefault("tools", []).append({"name": name, "arguments": arguments or "{}"})
        elif key:
            options[key] = value or "1"
    return options


def _split_outside_braces(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current]


def _plan(options: dict[str, Any]) -> Plan:
    values: dict[str, Any] = {}
    for spec in fields(Plan):
        if spec.name not in options:
            continue
        given = options[spec.name]
        default = spec.default
        if spec.name == "tools":
            values["tools"] = tuple(_call(item) for item in given)
        elif isinstance(default, bool):
            values[spec.name] = str(given).lower() not in {"0", "false", ""}
        elif isinstance(default, str):
            values[spec.name] = str(given)
        else:
            values[spec.name] = float(given) if isinstance(default, float) else int(given)
    return Plan(**values)


def _call(item: dict[str, Any]) -> FakeCall:
    arguments = item.get("arguments", "{}")
    return FakeCall(
        name=item["name"], arguments=arguments if isinstance(arguments, str) else json.dumps(arguments)
    )
