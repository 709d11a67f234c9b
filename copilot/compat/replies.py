"""A response in OpenAI's form, whole and while it is written; pure (E4.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from copilot.compat import figures
from copilot.outcomes import Outcome


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What stands from a response's beginning to its end."""

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

    def told(self, outcome: Outcome, *, text: str, limited: bool = False) -> dict[str, object]:
        status = _status(outcome, limited)
        done = status not in ("queued", "in_progress")
        return self.shown(
            status,
            output=[self.item(text, "completed" if status == "completed" else "incomplete")] if text else [],
            usage=figures.of_response(outcome.usage) if done else None,
            error={"code": outcome.error.code, "message": outcome.error.message} if outcome.error else None,
            incomplete_details={"reason": _why(outcome)} if status == "incomplete" else None,
        )

    def shown(self, status: str, **fields: object) -> dict[str, object]:
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

    def item(self, text: str | None, status: str) -> dict[str, object]:
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [part(text)],
        }


def part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(outcome: Outcome, limited: bool) -> str:
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


def _why(outcome: Outcome) -> str:
    return "waiting_for_approval" if outcome.status == "waiting" else "max_output_tokens"


@dataclass
class Writing:
    """The events of one streamed response: its one message is opened first and closed before the response."""

    reply: Reply
    text: str = ""
    _number: int = field(default=-1)

    def begin(self) -> list[dict[str, object]]:
        shown = self.reply.shown("in_progress")
        return [
            self._event("response.created", response=shown),
            self._event("response.in_progress", response=shown),
            self._event(
                "response.output_item.added", output_index=0, item=self.reply.item(None, "in_progress")
            ),
            self._of_part("response.content_part.added", part=part("")),
        ]

    def extend(self, delta: str) -> dict[str, object]:
        self.text += delta
        return self._of_part("response.output_text.delta", delta=delta, logprobs=[])

    def end(self, outcome: Outcome, *, limited: bool) -> list[dict[str, object]]:
        told = self.reply.told(outcome, text=self.text, limited=limited)
        status = "completed" if told["status"] == "completed" else "incomplete"
        return [
            self._of_part("response.output_text.done", text=self.text, logprobs=[]),
            self._of_part("response.content_part.done", part=part(self.text)),
            self._event("response.output_item.done", output_index=0, item=self.reply.item(self.text, status)),
            self._event(f"response.{_closing(str(told['status']))}", response=told),
        ]

    def _of_part(self, kind: str, **fields: object) -> dict[str, object]:
        return self._event(kind, item_id=self.reply.item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> dict[str, object]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}


def _closing(status: str) -> str:
    """Their clients know three ends of a stream; a stopped response is one that was not completed."""
    return status if status in ("completed", "failed") else "incomplete"
