"""What Telegram's refusals and failures mean, in our words: the library's quote addresses, and those hold the token (L21)."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from linking.platforms.base import (
    NONSENSE,
    Away,
    Busy,
    CallRefused,
    FormatRefused,
    MessageGone,
    PlatformProblem,
    Unreachable,
)

if TYPE_CHECKING:
    from telegram.error import BadRequest, TelegramError

NO_PLACE = (
    *("chat not found", "user not found", "have no rights", "not enough rights", "chat_write_forbidden"),
    *("topic_closed", "topic_deleted", "message thread not found"),
    *("chat_restricted", "chat_send_plain_forbidden"),
)
GONE = ("message to edit not found", "message can't be edited", "message_id_invalid")

T = TypeVar("T")


class GroupMoved(Unreachable):
    """A group became a supergroup: the same people, under another id (L21)."""

    def __init__(self, new_id: str) -> None:
        super().__init__("a group of Telegram has moved")
        self.new_id = new_id


async def told(call: Awaitable[T], unchanged: T | None = None) -> T:
    """The call's answer, or its failure as one of ours."""
    from telegram.error import BadRequest, TelegramError

    try:
        return await call
    except BadRequest as problem:
        if unchanged is not None and "not modified" in problem.message:
            return unchanged
        raise _refusal(problem) from None
    except TelegramError as problem:
        raise failure(problem) from None
    except NONSENSE as problem:
        raise Away(f"Telegram answered nonsense: {type(problem).__name__}") from None


def _refusal(problem: BadRequest) -> PlatformProblem:
    words = problem.message.lower()
    if "parse entities" in words or "unsupported start tag" in words:
        return FormatRefused("Telegram cannot read the markup")
    if any(one in words for one in GONE):
        return MessageGone("Telegram has no such message any more")
    if any(one in words for one in NO_PLACE):
        return Unreachable("Telegram lets the bot say nothing there")
    return CallRefused("Telegram refused a call")


def _seconds(wait: object) -> float:
    """Nothing for what is no time: the library passes it on."""
    if isinstance(wait, timedelta):
        return wait.total_seconds()
    return float(wait) if isinstance(wait, int) else 0.0


def failure(problem: TelegramError) -> PlatformProblem:
    from telegram.error import ChatMigrated, Forbidden, InvalidToken, RetryAfter

    match problem:
        case RetryAfter():
            return Busy(_seconds(problem.retry_after))
        case ChatMigrated():
            return GroupMoved(str(problem.new_chat_id))
        case Forbidden():
            return Unreachable("Telegram lets the bot say nothing there")
        case InvalidToken():
            return CallRefused("Telegram does not know the bot's token")
        case _:
            return Away(f"Telegram did not answer: {type(problem).__name__}")
