"""What every wire needs of a conversation: neighbours of one role merged, a continued answer recognised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from copilot.providers.base import AssistantMessage, Effort, ModelMessage, Request, UserMessage

# Thinking tokens up to which an effort is named; above: high.
EFFORTS: tuple[tuple[int, Effort], ...] = ((2_048, "low"), (16_384, "medium"))


def merged(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Strict servers refuse two messages of one role in a row (A5.5)."""
    result: list[ModelMessage] = []
    for message in messages:
        last = result[-1] if result else None
        if isinstance(last, UserMessage) and isinstance(message, UserMessage):
            result[-1] = UserMessage(
                text=_joined(last.text, message.text), images=last.images + message.images
            )
        elif isinstance(last, AssistantMessage) and isinstance(message, AssistantMessage) and not last.calls:
            result[-1] = AssistantMessage(
                text=_joined(last.text, message.text),
                calls=message.calls,
                replay=last.replay + message.replay,
            )
        else:
            result.append(message)
    return result


def _joined(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first and second else first or second


def continues(messages: Sequence[ModelMessage]) -> bool:
    """Whether the reply goes on after a partial answer, so that its first newlines count."""
    match messages:
        case [*_, AssistantMessage(calls=())]:
            return True
        case [*_, AssistantMessage(calls=()), UserMessage(text=text)]:
            return text.lstrip().startswith("<system_note")
        case _:
            return False


def effort_for(thinking_tokens: int) -> Effort:
    return next((name for most, name in EFFORTS if thinking_tokens <= most), "high")


def effort_of(request: Request) -> Effort:
    return request.effort or effort_for(request.thinking_tokens)


def system_text(request: Request) -> str:
    return _joined(request.system, request.suffix)
