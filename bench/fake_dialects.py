"""The fake provider's three wire formats: read a request, write each token."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from bench.fake_plan import Conversation, Plan, Turn

_numbers = count(1)


def sse(data: object, event: str = "") -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


class Dialect(ABC):
    """Write one reply. `text` and `thought` run once per token and therefore only join bytes."""

    def __init__(self, model: str, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        self.id = f"fake-{next(_numbers)}"

    @abstractmethod
    def begin(self) -> bytes: ...
    @abstractmethod
    def thought(self, token: bytes) -> bytes: ...
    @abstractmethod
    def text(self, token: bytes) -> bytes: ...
    @abstractmethod
    def end(self, prompt_tokens: int, output_tokens: int) -> Iterator[bytes]: ...


class Chat(Dialect):
    @staticmethod
    def read(body: dict[str, Any]) -> Conversation:
        turns = [
            Turn(
                role="user" if m["role"] == "tool" else m["role"],
                text=_text(m.get("content")),
                calls=bool(m.get("tool_calls")),
                results=m["role"] == "tool",
            )
            for m in body.get("messages", [])
            if m["role"] != "system"
        ]
        return Conversation(model=body.get("model", ""), turns=turns)

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse(
            {
                "id": self.id,
                "object": "chat.completion.chunk",
                "created": 1,
                "model": self.model,
                "choices": [choice],
            }
        )

    def begin(self) -> bytes:
        self._before, self._after = self._chunk({"content": "\x00"}).split(b"\\u0000")
        self._before_thought, _ = self._chunk({"reasoning_content": "\x00"}).split(b"\\u0000")
        return self._chunk({"role": "assistant", "content": ""})

    def thought(self, token: bytes) -> bytes:
        return self._before_thought + token + self._after

    def text(self, token: bytes) -> bytes:
        return self._before + token + self._after

    def end(self, prompt_tokens: int, output_tokens: int) -> Iterator[bytes]:
        for index, call in enumerate(self.plan.tools):
            function = {"name": call.name, "arguments": ""}
            yield self._chunk(
                {
                    "tool_calls": [
                        {
                            "index": index,
                            "id": f"call_{self.id}_{index}",
                            "type": "function",
                            "function": function,
                        }
                    ]
                }
            )
            half = len(call.arguments) // 2
            for piece in (call.arguments[:half], call.arguments[half:]):
                if piece:
                    yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._chunk({}, self.plan.finish or ("tool_calls" if self.plan.tools else "stop"))
        if self.plan.usage:
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": output_tokens,
                "total_tokens": prompt_tokens + output_tokens,
                "completion_tokens_details": {"reasoning_tokens": self.plan.thinking},
            }
            yield sse(
                {
                    "id": self.id,
                    "object": "chat.completion.chunk",
                    "created": 1,
                    "model": self.model,
                    "choices": [],
                    "usage": usage,
                }
            )
        yield b"data: [DONE]\n\n"


class Messages(Dialect):
    """Anthropic's Messages API: numbered content blocks, each started and stopped."""

    @staticmethod
    def read(body: dict[str, Any]) -> Conversation:
        turns = []
        for m in body.get("messages", []):
            parts = m["content"] if isinstance(m["content"], list) else []
            kinds = {part.get("type") for part in parts}
            turns.append(
                Turn(
                    role=m["role"],
                    text=_text(m["content"]),
                    calls="tool_use" in kinds,
                    results="tool_result" in kinds,
                )
            )
        return Conversation(model=body.get("model", ""), turns=turns)

    def _event(self, kind: str, **values: object) -> bytes:
        return sse({"type": kind, **values}, kind)

    def begin(self) -> bytes:
        self._index = -1
        self._open = ""
        message: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1},
        }
        return self._event("message_start", message=message)

    def _stop(self) -> bytes:
        return self._event("content_block_stop", index=self._index) if self._open else b""

    def _switch(self, kind: str, block: dict[str, Any], delta: dict[str, Any] | None = None) -> bytes:
        closing = self._stop()
        self._index += 1
        self._open = kind
        if delta:
            whole = self._event("content_block_delta", index=self._index, delta=delta)
            self._before, self._after = whole.split(b"\\u0000")
        return closing + self._event("content_block_start", index=self._index, content_block=block)

    def thought(self, token: bytes) -> bytes:
        opening = b""
        if self._open != "thinking":
            opening = self._switch(
                "thinking",
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "\x00"},
            )
        return opening + self._before + token + self._after

    def text(self, token: bytes) -> bytes:
        opening = b""
        if self._open != "text":
            opening = self._sign()
            opening += self._switch(
                "text", {"type": "text", "text": ""}, {"type": "text_delta", "text": "\x00"}
            )
        return opening + self._before + token + self._after

    def _sign(self) -> bytes:
        if self._open != "thinking":
            return b""
        delta = {"type": "signature_delta", "signature": f"signed-{self.id}"}
        return self._event("content_block_delta", index=self._index, delta=delta)

    def end(self, prompt_tokens: int, output_tokens: int) -> Iterator[bytes]:
        yield self._sign()
        for index, call in enumerate(self.plan.tools):
            yield self._switch(
                "tool",
                {"type": "tool_use", "id": f"toolu_{self.id}_{index}", "name": call.name, "input": {}},
            )
            half = len(call.arguments) // 2
            for piece in (call.arguments[:half], call.arguments[half:]):
                delta = {"type": "input_json_delta", "partial_json": piece}
                yield self._event("content_block_delta", index=self._index, delta=delta)
        yield self._stop()
        reason = self.plan.finish or ("tool_use" if self.plan.tools else "end_turn")
        usage = {"output_tokens": output_tokens}
        if self.plan.usage:
            usage["input_tokens"] = prompt_tokens
        yield self._event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)
        yield self._event("message_stop")


class Responses(Dialect):
    """OpenAI's Responses API, as far as streamed text, reasoning summaries and function calls need it."""

    @staticmethod
    def read(body: dict[str, Any]) -> Conversation:
        given = body.get("input", "")
        if isinstance(given, str):
            return Conversation(model=body.get("model", ""), turns=[Turn(role="user", text=given)])
        turns: list[Turn] = []
        for item in given:
            turn = _turn_of(item)
            if turn is None:
                continue
            if turns and (turns[-1].role, turns[-1].results) == (
                turn.role,
                turn.results,
            ):  # one reply's items
                last = turns.pop()
                turn = replace(turn, text=last.text + turn.text, calls=last.calls or turn.calls)
            turns.append(turn)
        return Conversation(model=body.get("model", ""), turns=turns)

    def _event(self, kind: str, **values: object) -> bytes:
        self._sequence += 1
        return sse({"type": kind, "sequence_number": self._sequence, **values}, kind)

    def begin(self) -> bytes:
        self._sequence = -1
        self._open = ""
        self._items: list[dict[str, Any]] = []
        self._parts: list[str] = []
        return self._event("response.created", response=self._response("in_progress"))

    def _response(self, status: str, **more: object) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": 1,
            "model": self.model,
            "status": status,
            "output": self._items,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **more,
        }

    def _switch(self, kind: str, item: dict[str, Any], delta_kind: str, **place: object) -> bytes:
        closing = self._close()
        self._open = kind
        self._items.append(item)
        index = len(self._items) - 1
        opening = self._event("response.output_item.added", output_index=index, item=item)
        whole = self._event(delta_kind, item_id=item["id"], output_index=index, delta="\x00", **place)
        self._before, self._after = whole.split(b"\\u0000")
        return closing + opening

    def thought(self, token: bytes) -> bytes:
        opening = b""
        if self._open != "reasoning":
            item = {"id": f"rs_{self.id}", "type": "reasoning", "summary": []}
            opening = self._switch(
                "reasoning", item, "response.reasoning_summary_text.delta", summary_index=0
            )
            opening += self._event(
                "response.reasoning_summary_part.added",
                item_id=item["id"],
                output_index=len(self._items) - 1,
                summary_index=0,
                part={"type": "summary_text", "text": ""},
            )
        self._parts.append(token.decode())
        return opening + self._before + token + self._after

    def text(self, token: bytes) -> bytes:
        opening = b""
        if self._open != "message":
            item = {
                "id": f"msg_{self.id}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            opening = self._switch("message", item, "response.output_text.delta", content_index=0)
            part = {"type": "output_text", "text": "", "annotations": []}
            opening += self._event(
                "response.content_part.added",
                item_id=item["id"],
                output_index=len(self._items) - 1,
                content_index=0,
                part=part,
            )
        self._parts.append(token.decode())
        return opening + self._before + token + self._after

    def _close(self) -> bytes:
        if not self._open:
            return b""
        item, text = self._items[-1], "".join(self._parts)
        self._parts = []
        if self._open == "message":
            item |= {
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        elif self._open == "reasoning":
            item["summary"] = [{"type": "summary_text", "text": text}]
            item["encrypted_content"] = f"sealed-{self.id}"
        self._open = ""
        return self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def end(self, prompt_tokens: int, output_tokens: int) -> Iterator[bytes]:
        yield self._close()
        for call in self.plan.tools:
            index = len(self._items)
            item = {
                "id": f"fc_{self.id}_{index}",
                "type": "function_call",
                "call_id": f"call_{self.id}_{index}",
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
            self._items.append(item)
            yield self._event("response.output_item.added", output_index=index, item=item | {"arguments": ""})
            half = len(call.arguments) // 2
            for piece in (call.arguments[:half], call.arguments[half:]):
                yield self._event(
                    "response.function_call_arguments.delta",
                    item_id=item["id"],
                    output_index=index,
                    delta=piece,
                )
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._ending(prompt_tokens, output_tokens)

    def _ending(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """`finish` is the reason why the response is incomplete."""
        usage = {
            "input_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": self.plan.thinking},
        }
        more: dict[str, Any] = {"usage": usage if self.plan.usage else None}
        if self.plan.finish:
            more["incomplete_details"] = {"reason": self.plan.finish}
        status = "incomplete" if self.plan.finish else "completed"
        return self._event(f"response.{status}", response=self._response(status, **more))


def _turn_of(item: dict[str, Any]) -> Turn | None:
    kind = item.get("type", "message")
    if kind == "function_call":
        return Turn(role="assistant", text="", calls=True)
    if kind == "function_call_output":
        return Turn(role="user", text="", results=True)
    if kind == "message" and item["role"] in {"user", "assistant"}:
        return Turn(role=item["role"], text=_text(item["content"]))
    return None


DIALECTS: dict[str, type[Chat] | type[Messages] | type[Responses]] = {
    "/v1/chat/completions": Chat,
    "/chat/completions": Chat,
    "/v1/messages": Messages,
    "/v1/responses": Responses,
    "/responses": Responses,
}
