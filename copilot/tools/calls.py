"""Assemble tool calls from streamed fragments, parse their arguments, and answer calls that cannot run."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from uuid import uuid4

import structlog
from pydantic import ValidationError

from config.core.json_values import JSON, iterate_children
from config.core.text import make_storable
from copilot.providers.base import CallFragment, ToolCall, ToolSpecification
from copilot.tools.base import ToolCallOutcome

MAX_RAW_ARGUMENT_CHARACTERS = 8_000  # kept of a malformed call, for diagnosis only
MAX_SUGGESTED_NAMES = 5
MAX_LISTED_PROBLEMS = 5
MAX_PROBLEM_CHARACTERS = 1_000
MAX_NESTING = 100  # levels, so that recursive functions do not run out of stack

MALFORMED_ARGUMENTS_MESSAGE = (
    "The call was not executed: its arguments are not one valid JSON object. "
    "Send the call again with smaller, valid JSON."
)
STOPPED_MESSAGE = "Stopped by the user before it finished."
REPLY_BROKEN_OFF_MESSAGE = "The call failed before it ran: the model's reply broke off."
NO_RESULT_MESSAGE = "interrupted, no result; may be repeated if still needed"
ROUND_LIMIT_MESSAGE = "Not executed: the turn has reached its limit of rounds, and tools have ended."

log = structlog.get_logger(__name__)
_not_in_names = re.compile(r"[^A-Za-z0-9_-]")
_usable_id = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # accepted by providers and by the column


@dataclass(slots=True, eq=False)
class _PartialCall:
    index: int | None
    sent_id: str = ""
    call_id: str = ""  # the id we use: the sent one, unless the session already has it
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    proposed: bool = False


class ToolCallAssembler:
    """Assemble the calls of one reply. `taken` are the ids the session already uses: ids must be unique."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)
        self._calls: list[_PartialCall] = []

    def add_fragment(self, fragment: CallFragment) -> None:
        call = self._find_call(fragment)
        if call is None:
            call = _PartialCall(fragment.index)
            self._calls.append(call)
        if fragment.call_id and not call.sent_id:
            call.sent_id = fragment.call_id
            call.call_id = self._assign_id(fragment.call_id)
        if fragment.name != call.name:
            call.name += fragment.name
        if fragment.arguments:
            call.arguments.append(fragment.arguments)

    def take_newly_named(self, known: Collection[str]) -> list[ToolCall]:
        """Return calls whose id and name became certain since the last call; their arguments still stream."""
        named = [c for c in self._calls if not c.proposed and c.call_id and (c.arguments or c.name in known)]
        return [_mark_proposed(call) for call in named if call.name]

    def list_proposed(self) -> list[ToolCall]:
        """Return the calls that clients were told about, with empty arguments: those may be incomplete."""
        return [_to_streaming_call(call) for call in self._calls if call.proposed]

    def take_unproposed(self) -> list[ToolCall]:
        """Return calls that became certain only at the end of the reply. Call it after `complete`."""
        return [_mark_proposed(call) for call in self._calls if not call.proposed and call.name]

    def complete(self) -> tuple[ToolCall, ...]:
        """Return the finished calls, giving an id to those the model sent none for."""
        for call in self._calls:
            call.call_id = call.call_id or self._assign_id("")
        return tuple(_finish_call(call) for call in self._calls)

    def _find_call(self, fragment: CallFragment) -> _PartialCall | None:
        if fragment.index is None:
            return self._find_call_without_index(fragment)
        call = next((c for c in reversed(self._calls) if c.index == fragment.index), None)
        if call is None or (fragment.call_id and call.sent_id and fragment.call_id != call.sent_id):
            return None
        return call

    def _find_call_without_index(self, fragment: CallFragment) -> _PartialCall | None:
        if fragment.call_id:
            return next((c for c in self._calls if c.sent_id == fragment.call_id), None)
        last = self._calls[-1] if self._calls else None
        starts_another = last is not None and last.arguments and fragment.name not in ("", last.name)
        return None if starts_another else last

    def _assign_id(self, wanted: str) -> str:
        if wanted in self._taken:
            log.warning("tool_call_id_repeated")
        usable = wanted not in self._taken and _usable_id.fullmatch(wanted)
        free = wanted if usable else f"call_{uuid4().hex[:24]}"
        self._taken.add(free)
        return free


def _to_streaming_call(call: _PartialCall) -> ToolCall:
    return ToolCall(call_id=call.call_id, tool=_sanitize_tool_name(call), arguments={})


def _mark_proposed(call: _PartialCall) -> ToolCall:
    call.proposed = True
    return _to_streaming_call(call)


def _finish_call(call: _PartialCall) -> ToolCall:
    text = "".join(call.arguments)
    arguments = parse_arguments(text)
    raw = make_storable(text[:MAX_RAW_ARGUMENT_CHARACTERS]) if arguments is None else ""
    return ToolCall(
        call_id=call.call_id, tool=_sanitize_tool_name(call), arguments=arguments, raw_arguments=raw
    )


def _sanitize_tool_name(call: _PartialCall) -> str:
    return _not_in_names.sub("_", call.name)[:64]


# --- arguments ---------------------------------------------------------------------------------------


def parse_arguments(text: str) -> dict[str, JSON] | None:
    """Parse a JSON object in canonical order; None when `text` is not a JSON object."""
    if not text.strip():
        return {}
    try:
        value = canonicalize_json(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_nested_too_deep(value) else None


def is_nested_too_deep(value: JSON) -> bool:
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for item in level for inner in iterate_children(item)]
        if not level:
            return False
    return True


def canonicalize_json(value: JSON) -> JSON:
    """Sort keys and make texts storable, so that a stored call replays exactly as it was sent."""
    match value:
        case dict():
            return {make_storable(key): canonicalize_json(value[key]) for key in sorted(value)}
        case list():
            return [canonicalize_json(item) for item in value]
        case str():
            return make_storable(value)
        case float() if not math.isfinite(value):
            raise ValueError("not a JSON number")
        case _:
            return value


def _refuse_constant(name: str) -> JSON:
    raise ValueError(f"{name} is not JSON")


def prepare_for_replay(call: ToolCall) -> ToolCall:
    """Return the call as the model sees it again; a malformed one gets empty arguments."""
    return replace(call, arguments=call.arguments or {}, raw_arguments="")


def lacks_required_arguments(call: ToolCall, specification: ToolSpecification | None) -> bool:
    return specification is not None and not call.arguments and bool(specification.parameters.get("required"))


# --- answers to calls that cannot run ----------------------------------------------------------------


def find_refusal(call: ToolCall, *, position: int, most: int, known: Collection[str]) -> str | None:
    """Return why this call, the `position`th of its reply, does not run; None when it may."""
    if position >= most:
        return f"Not executed: at most {most} calls run per reply. Send the others in your next reply."
    if call.tool not in known:
        return describe_unknown_tool(call.tool, known)
    return MALFORMED_ARGUMENTS_MESSAGE if call.arguments is None else None


def describe_unknown_tool(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=MAX_SUGGESTED_NAMES, cutoff=0.5)
    hint = f" Close names: {', '.join(close)}." if close else ""
    return f"There is no tool named {json.dumps(name[:64])}.{hint}"


def describe_invalid_arguments(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        f"- {_format_location(problem['loc'])}: {problem['msg']}"
        for problem in problems[:MAX_LISTED_PROBLEMS]
    ]
    if len(problems) > MAX_LISTED_PROBLEMS:
        lines.append(f"- and {len(problems) - MAX_LISTED_PROBLEMS} more")
    text = "The call was not executed: its arguments are invalid.\n" + "\n".join(lines)
    return text if len(text) <= MAX_PROBLEM_CHARACTERS else text[: MAX_PROBLEM_CHARACTERS - 1] + "…"


def _format_location(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "arguments"


def make_error_outcome(call: ToolCall, message: str, *, cancelled: bool = False) -> ToolCallOutcome:
    """Make the outcome of a call that never ran, or whose result is unknown."""
    return ToolCallOutcome(
        call_id=call.call_id,
        tool=call.tool,
        success=False,
        content=message,
        preview=message,
        duration_ms=0,
        truncated=False,
        cancelled=cancelled,
    )
