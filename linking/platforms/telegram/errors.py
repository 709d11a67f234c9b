"""Translate the errors of Telegram's client into ours. The client's own texts quote URLs that contain the token."""

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
    """A group became a supergroup with a new id."""

    def __init__(self, new_id: str) -> None:
        super().__init__("the group has moved")
        self.new_id = new_id


async def translate_errors(call: Awaitable[T], unchanged: T | None = None) -> T:
    """Await the call and raise its errors as PlatformError. `unchanged` is the result if an edit changes nothing."""
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
        raise PlatformUnavailable(f"malformed response from Telegram: {type(problem).__name__}") from None


def _to_refusal(problem: BadRequest) -> PlatformError:
    text = problem.message.lower()
    if "parse entities" in text or "unsupported start tag" in text:
        return FormatRefused("Telegram cannot parse the markup")
    if any(known in text for known in MESSAGE_GONE_TEXTS):
        return MessageGone("the message no longer exists on Telegram")
    if any(known in text for known in UNREACHABLE_TEXTS):
        return ChatUnreachable("the bot may not write to this Telegram chat")
    return CallRefused("Telegram refused the call")


def _parse_seconds(wait: object) -> float:
    # The library passes on whatever Telegram sent.
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
            return ChatUnreachable("the bot may not write to this Telegram chat")
        case InvalidToken():
            return CallRefused("Telegram rejected the bot token")
        case _:
            return PlatformUnavailable(f"Telegram did not answer: {type(problem).__name__}")
