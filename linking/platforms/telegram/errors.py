"""What Telegram's refusals and failures mean, in our words: the library's quote addresses, and those hold the token (L21)."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from linking.platforms.base import (
    MALFORMED_ANSWER_ERRORS,
    CallRefused,
    ChatUnreachable,
    FormatRefused,
    MessageGone,
    PlatformBusy,
    PlatformError,
    PlatformUnavailable,
)

if TYPE_CHECKING:
    from telegram.error import BadRequest, TelegramError

UNREACHABLE_TEXTS = (
    *("chat not found", "user not found", "have no rights", "not enough rights", "chat_write_forbidden"),
    *("topic_closed", "topic_deleted", "message thread not found"),
    *("chat_restricted", "chat_send_plain_forbidden"),
)
MESSAGE_GONE_TEXTS = ("message to edit not found", "message can't be edited", "message_id_invalid")

T = TypeVar("T")


class GroupMoved(ChatUnreachable):
    """A group became a supergroup: the same people, under another id (L21)."""

    def __init__(self, new_id: str) -> None:
        super().__init__("a group of Telegram has moved")
        self.new_id = new_id


async def translate_errors(call: Awaitable[T], unchanged: T | None = None) -> T:
    """The call's answer, or its failure as one of ours."""
    from telegram.error import BadRequest, TelegramError

    try:
        return await call
    except BadRequest as problem:
        if unchanged is not None and "not modified" in problem.message:
            return unchanged
        raise _to_refusal(problem) from None
    except TelegramError as problem:
        raise to_platform_error(problem) from None
    except MALFORMED_ANSWER_ERRORS as problem:
        raise PlatformUnavailable(f"Telegram answered nonsense: {type(problem).__name__}") from None


def _to_refusal(problem: BadRequest) -> PlatformError:
    words = problem.message.lower()
    if "parse entities" in words or "unsupported start tag" in words:
        return FormatRefused("Telegram cannot read the markup")
    if any(one in words for one in MESSAGE_GONE_TEXTS):
        return MessageGone("Telegram has no such message any more")
    if any(one in words for one in UNREACHABLE_TEXTS):
        return ChatUnreachable("Telegram lets the bot say nothing there")
    return CallRefused("Telegram refused a call")


def _parse_seconds(wait: object) -> float:
    """Nothing for what is no time: the library passes it on."""
    if isinstance(wait, timedelta):
        return wait.total_seconds()
    return float(wait) if isinstance(wait, int) else 0.0


def to_platform_error(problem: TelegramError) -> PlatformError:
    from telegram.error import ChatMigrated, Forbidden, InvalidToken, RetryAfter

    match problem:
        case RetryAfter():
            return PlatformBusy(_parse_seconds(problem.retry_after))
        case ChatMigrated():
            return GroupMoved(str(problem.new_chat_id))
        case Forbidden():
            return ChatUnreachable("Telegram lets the bot say nothing there")
        case InvalidToken():
            return CallRefused("Telegram does not know the bot's token")
        case _:
            return PlatformUnavailable(f"Telegram did not answer: {type(problem).__name__}")
