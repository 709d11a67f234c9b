"""Serialize token usage and responses in OpenAI's format, whole and as stream events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from copilot.chat.turn_context import ApiRequest, ClientTool
from copilot.chat.turn_results import ClientCall, TurnResult
from copilot.providers.base import OutputFormat, RequestParameters
from copilot.realtime.payloads import Tokens

RESPONSE_ID_PREFIX = "resp_"
MESSAGE_ITEM_PREFIX = "msg_"
CALL_ITEM_PREFIX = "fc_"


def _count_prompt_tokens(tokens: Tokens) -> int:
    return tokens.input + tokens.cache_read + tokens.cache_write_5m + tokens.cache_write_1h


def serialize_chat_usage(tokens: Tokens) -> dict[str, object]:
    return {
        "prompt_tokens": _count_prompt_tokens(tokens),
        "completion_tokens": tokens.output,
        "total_tokens": _count_prompt_tokens(tokens) + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def serialize_response_usage(tokens: Tokens) -> dict[str, object]:
    return {
        "input_tokens": _count_prompt_tokens(tokens),
        "input_tokens_details": {"cached_tokens": tokens.cache_read},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": _count_prompt_tokens(tokens) + tokens.output,
    }


@dataclass(frozen=True, kw_only=True)
class ResponseAnswer:
    """The output of a response: a text or a refusal, then the calls that the caller has to run."""

    text: str = ""
    refusal: str | None = None
    calls: Sequence[ClientCall] = ()


@dataclass(frozen=True, kw_only=True)
class ResponseSerializer:
    """The fields of a response that stay the same from its start to its end."""

    id: str
    model: str
    created_at: int
    conversation_id: str
    kept: bool = True
    background: bool = False
    previous_response_id: str | None = None
    request: ApiRequest = field(default_factory=ApiRequest)

    @property
    def item_id(self) -> str:
        return f"{MESSAGE_ITEM_PREFIX}{self.id.removeprefix(RESPONSE_ID_PREFIX)}"

    def make_call_item_id(self, number: int) -> str:
        return f"{CALL_ITEM_PREFIX}{self.id.removeprefix(RESPONSE_ID_PREFIX)}_{number}"

    def serialize_outcome(self, outcome: TurnResult, answer: ResponseAnswer) -> dict[str, object]:
        status = _get_response_status(outcome)
        done = status not in ("queued", "in_progress")
        return self.serialize_status(
            status,
            output=self.serialize_output(answer, "completed" if status == "completed" else "incomplete"),
            usage=serialize_response_usage(outcome.usage) if done else None,
            error={"code": outcome.error.code, "message": outcome.error.message}
            if outcome.error and status == "failed"
            else None,
            incomplete_details={"reason": _get_incomplete_reason(outcome)}
            if status == "incomplete"
            else None,
        )

    def serialize_status(self, status: str, **fields: object) -> dict[str, object]:
        parameters = self.request.parameters
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": self.background,
            "model": self.model,
            "conversation": {"id": self.conversation_id} if self.kept else None,
            "previous_response_id": self.previous_response_id,
            "instructions": self.request.instructions or None,
            "store": self.kept,
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
            "metadata": dict(self.request.metadata),
            "max_output_tokens": parameters.max_tokens,
            "parallel_tool_calls": parameters.parallel_tool_calls is not False,
            "tool_choice": _serialize_tool_choice(parameters),
            "tools": [_serialize_tool(tool) for tool in self.request.tools],
            "text": {"format": _serialize_format(parameters.output_format)},
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "truncation": "disabled",
            "user": self.request.user or None,
            **fields,
        }

    def serialize_output(self, answer: ResponseAnswer, status: str) -> list[dict[str, object]]:
        items: list[dict[str, object]] = []
        if answer.refusal is not None:
            items.append(self.serialize_message_item(status, serialize_refusal_part(answer.refusal)))
        elif answer.text:
            items.append(self.serialize_message_item(status, serialize_text_part(answer.text)))
        items += [
            self.serialize_call_item(call, number, "completed") for number, call in enumerate(answer.calls)
        ]
        return items

    def serialize_message_item(self, status: str, *parts: dict[str, object]) -> dict[str, object]:
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": list(parts),
        }

    def serialize_call_item(
        self, call: ClientCall, number: int, status: str, *, arguments: str | None = None
    ) -> dict[str, object]:
        return {
            "id": self.make_call_item_id(number),
            "type": "function_call",
            "status": status,
            "call_id": call.call_id,
            "name": call.tool,
            "arguments": call.arguments_json if arguments is None else arguments,
        }


def serialize_text_part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def serialize_refusal_part(text: str) -> dict[str, object]:
    return {"type": "refusal", "refusal": text}


def _serialize_tool(tool: ClientTool) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": msgspec.Raw(tool.schema_json.encode()),
        "strict": False,
    }


def _serialize_tool_choice(parameters: RequestParameters) -> object:
    if parameters.tool_choice == "tool":
        return {"type": "function", "name": parameters.forced_tool}
    return parameters.tool_choice


def _serialize_format(wanted: OutputFormat | None) -> dict[str, object]:
    if wanted is None:
        return {"type": "text"}
    if wanted.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}


def _get_response_status(outcome: TurnResult) -> str:
    if outcome.client_calls:
        return "completed"
    match outcome.status:
        case "succeeded":
            is_whole = outcome.limit_code in ("", "invalid_output")
            return "completed" if is_whole else "incomplete"
        case "waiting":
            return "incomplete"
        case "running":
            return "in_progress"
        case "failed" if outcome.error is not None and outcome.error.code == "output_truncated":
            return "incomplete"
        case "failed" | "cancelled" | "queued":
            return outcome.status
        case unreachable:
            assert_never(unreachable)


def _get_incomplete_reason(outcome: TurnResult) -> str:
    return "waiting_for_approval" if outcome.status == "waiting" else "max_output_tokens"


@dataclass
class ResponseEventWriter:
    """Build the events of one streamed response: a message, if the model says something, and calls."""

    reply: ResponseSerializer
    text: str = ""
    _number: int = field(default=-1)

    def begin(self) -> list[dict[str, object]]:
        response = self.reply.serialize_status("in_progress")
        return [
            self._build_event("response.created", response=response),
            self._build_event("response.in_progress", response=response),
        ]

    def extend(self, delta: str) -> list[dict[str, object]]:
        opening = [] if self.text else self._open_message(serialize_text_part(""))
        self.text += delta
        return [*opening, self._build_part_event("response.output_text.delta", delta=delta, logprobs=[])]

    def end(self, outcome: TurnResult, answer: ResponseAnswer) -> list[dict[str, object]]:
        response = self.reply.serialize_outcome(outcome, answer)
        status = "completed" if response["status"] == "completed" else "incomplete"
        events: list[dict[str, object]] = []
        if self.text:
            part = serialize_text_part(self.text)
            events.append(self._build_part_event("response.output_text.done", text=self.text, logprobs=[]))
            events += self._close_message(status, part)
        elif answer.refusal is not None:
            events += self._build_refusal_events(answer.refusal, status)
        for number, call in enumerate(answer.calls):
            events += self._build_call_events(call, number)
        closing = f"response.{_get_closing_event(str(response['status']))}"
        return [*events, self._build_event(closing, response=response)]

    def _open_message(self, part: dict[str, object]) -> list[dict[str, object]]:
        item = self.reply.serialize_message_item("in_progress")
        return [
            self._build_event("response.output_item.added", output_index=0, item=item),
            self._build_part_event("response.content_part.added", part=part),
        ]

    def _close_message(self, status: str, part: dict[str, object]) -> list[dict[str, object]]:
        item = self.reply.serialize_message_item(status, part)
        return [
            self._build_part_event("response.content_part.done", part=part),
            self._build_event("response.output_item.done", output_index=0, item=item),
        ]

    def _build_refusal_events(self, refusal: str, status: str) -> list[dict[str, object]]:
        return [
            *self._open_message(serialize_refusal_part("")),
            self._build_part_event("response.refusal.delta", delta=refusal),
            self._build_part_event("response.refusal.done", refusal=refusal),
            *self._close_message(status, serialize_refusal_part(refusal)),
        ]

    def _build_call_events(self, call: ClientCall, number: int) -> list[dict[str, object]]:
        place: dict[str, object] = {"output_index": number + (1 if self.text else 0)}
        where = place | {"item_id": self.reply.make_call_item_id(number)}
        begun = self.reply.serialize_call_item(call, number, "in_progress", arguments="")
        done = self.reply.serialize_call_item(call, number, "completed")
        arguments = call.arguments_json
        return [
            self._build_event("response.output_item.added", item=begun, **place),
            self._build_event("response.function_call_arguments.delta", delta=arguments, **where),
            self._build_event(
                "response.function_call_arguments.done", arguments=arguments, name=call.tool, **where
            ),
            self._build_event("response.output_item.done", item=done, **place),
        ]

    def _build_part_event(self, kind: str, **fields: object) -> dict[str, object]:
        return self._build_event(kind, item_id=self.reply.item_id, output_index=0, content_index=0, **fields)

    def _build_event(self, kind: str, **fields: object) -> dict[str, object]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}


def _get_closing_event(status: str) -> str:
    """Name the closing event. Clients know three of them; a cancelled response ends as incomplete."""
    return status if status in ("completed", "failed") else "incomplete"
