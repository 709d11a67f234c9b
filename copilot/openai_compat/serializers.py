"""Serialize token usage and responses in OpenAI's format, whole and as stream events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from copilot.chat.turn_results import TurnResult
from copilot.realtime.payloads import Tokens


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
class ResponseSerializer:
    """The fields of a response that stay the same from its start to its end."""

    id: str
    model: str
    created_at: int
    conversation_id: str
    kept: bool = True
    previous_response_id: str | None = None
    instructions: str | None = None

    @property
    def item_id(self) -> str:
        return f"msg_{self.id.removeprefix('resp_')}"

    def serialize_outcome(
        self, outcome: TurnResult, *, text: str, limited: bool = False
    ) -> dict[str, object]:
        status = _get_response_status(outcome, limited)
        done = status not in ("queued", "in_progress")
        return self.serialize_status(
            status,
            output=[self.serialize_output_item(text, "completed" if status == "completed" else "incomplete")]
            if text
            else [],
            usage=serialize_response_usage(outcome.usage) if done else None,
            error={"code": outcome.error.code, "message": outcome.error.message} if outcome.error else None,
            incomplete_details={"reason": _get_incomplete_reason(outcome)}
            if status == "incomplete"
            else None,
        )

    def serialize_status(self, status: str, **fields: object) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "model": self.model,
            "conversation": {"id": self.conversation_id} if self.kept else None,
            "previous_response_id": self.previous_response_id,
            "instructions": self.instructions,
            "store": self.kept,
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": None,
            "top_p": None,
            **fields,
        }

    def serialize_output_item(self, text: str | None, status: str) -> dict[str, object]:
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [serialize_text_part(text)],
        }


def serialize_text_part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _get_response_status(outcome: TurnResult, limited: bool) -> str:
    match outcome.status:
        case "succeeded":
            return "incomplete" if limited else "completed"
        case "waiting":
            return "incomplete"
        case "running":
            return "in_progress"
        case "failed" | "cancelled" | "queued":
            return outcome.status
        case unreachable:
            assert_never(unreachable)


def _get_incomplete_reason(outcome: TurnResult) -> str:
    return "waiting_for_approval" if outcome.status == "waiting" else "max_output_tokens"


@dataclass
class ResponseEventWriter:
    """Build the events of one streamed response, which holds a single message."""

    reply: ResponseSerializer
    text: str = ""
    _number: int = field(default=-1)

    def begin(self) -> list[dict[str, object]]:
        response = self.reply.serialize_status("in_progress")
        return [
            self._build_event("response.created", response=response),
            self._build_event("response.in_progress", response=response),
            self._build_event(
                "response.output_item.added",
                output_index=0,
                item=self.reply.serialize_output_item(None, "in_progress"),
            ),
            self._build_part_event("response.content_part.added", part=serialize_text_part("")),
        ]

    def extend(self, delta: str) -> dict[str, object]:
        self.text += delta
        return self._build_part_event("response.output_text.delta", delta=delta, logprobs=[])

    def end(self, outcome: TurnResult, *, limited: bool) -> list[dict[str, object]]:
        response = self.reply.serialize_outcome(outcome, text=self.text, limited=limited)
        status = "completed" if response["status"] == "completed" else "incomplete"
        return [
            self._build_part_event("response.output_text.done", text=self.text, logprobs=[]),
            self._build_part_event("response.content_part.done", part=serialize_text_part(self.text)),
            self._build_event(
                "response.output_item.done",
                output_index=0,
                item=self.reply.serialize_output_item(self.text, status),
            ),
            self._build_event(f"response.{_get_closing_event(str(response['status']))}", response=response),
        ]

    def _build_part_event(self, kind: str, **fields: object) -> dict[str, object]:
        return self._build_event(kind, item_id=self.reply.item_id, output_index=0, content_index=0, **fields)

    def _build_event(self, kind: str, **fields: object) -> dict[str, object]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}


def _get_closing_event(status: str) -> str:
    """Name the closing event. Clients know three of them; a cancelled response ends as incomplete."""
    return status if status in ("completed", "failed") else "incomplete"
