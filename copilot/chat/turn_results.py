"""A message followed to its ending: subscribe, look at the rows, wait for news of them (T10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.db.models import Sum
from django.urls import reverse

from config.core.db import run_in_thread
from config.core.errors import NotFound
from copilot.chat import selectors, serializers
from copilot.chat.commands import SendMessage
from copilot.chat.notices import NOTICES
from copilot.models import Message, ModelCall, Turn
from copilot.realtime.events import ENDING_KINDS
from copilot.realtime.fanout import (
    EventFanout,
    EventFeed,
    FeedOverflowed,
    RevocableConnection,
    open_session_feed,
)
from copilot.realtime.payloads import (
    MessagePayload,
    NoticeContent,
    Tokens,
    ToolCallContent,
    ToolResultContent,
)

TurnResultStatus = Literal["succeeded", "failed", "cancelled", "running", "queued", "waiting"]
MAX_WAIT_SECONDS = 300
ROW_POLL_SECONDS = 10.0  # news can be lost with Redis; the rows cannot
_WAKING_KINDS = ENDING_KINDS | {"turn.paused"}


@dataclass(frozen=True, kw_only=True)
class ToolCallResult:
    """A tool call of the turn; `success` is None while it runs."""

    call_id: str
    tool: str
    arguments: dict[str, str]
    success: bool | None = None
    preview: str = ""
    duration_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class TurnResultError:
    code: str
    message: str
    hint: str = ""
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """What became of a message until now. `turn_id` is the turn it waits behind while it is queued."""

    turn_id: str
    status: TurnResultStatus
    text: str = ""
    tool_calls: list[ToolCallResult] = field(default_factory=list)
    usage: Tokens = field(default_factory=Tokens)
    error: TurnResultError | None = None
    link: str | None = None  # where a person decides, while the turn waits for one (A31.4)


class AcceptedSubmission(Protocol):
    """What dispatch answers to a message it took."""

    @property
    def turn_id(self) -> UUID: ...


async def wait_for_turn(
    user_id: int,
    turn_id: UUID,
    *,
    run_id: str | None = None,
    timeout_seconds: float,
    tail: EventFanout | None = None,
    connection: RevocableConnection | None = None,
) -> TurnResult:
    """The outcome of a turn, or of the message `run_id`, as soon as it is final or when the time is up."""
    turn = await run_in_thread(selectors.get_turn, user_id, turn_id)
    async with open_session_feed(turn.session_id, None, fanout=tail, connection=connection) as feed:
        return await _wait_until_final(
            feed, _FollowedMessage(turn.session_id, turn_id, run_id), timeout_seconds
        )


def get_turn_result(user_id: int, turn_id: UUID, *, run_id: str | None = None) -> TurnResult:
    """The outcome as the rows have it now."""
    turn = selectors.get_turn(user_id, turn_id)
    return _build_result(_read_status(_FollowedMessage(turn.session_id, turn_id, run_id)), turn.session_id)


async def submit_and_wait(
    command: SendMessage, *, submit: Callable[[SendMessage], AcceptedSubmission], timeout_seconds: float
) -> TurnResult:
    """Say something and wait for its own answer. `submit` is dispatch's, which stands above this module."""
    command = replace(command, run_id=command.run_id or uuid4().hex)
    async with open_session_feed(command.session_id, None) as feed:
        accepted = await run_in_thread(submit, command)
        return await _wait_until_final(
            feed, _FollowedMessage(command.session_id, accepted.turn_id, command.run_id), timeout_seconds
        )


@dataclass(frozen=True)
class _FollowedMessage:
    """Which message or turn is followed."""

    session_id: UUID
    turn_id: UUID
    run_id: str | None


@dataclass(frozen=True)
class _TurnStatus:
    """Where it stands; without a turn of its own yet, the turn it waits behind says nothing about it."""

    turn_id: UUID
    status: TurnResultStatus
    own: bool = True


async def _wait_until_final(feed: EventFeed, place: _FollowedMessage, timeout_seconds: float) -> TurnResult:
    deadline = time.monotonic() + timeout_seconds
    while True:
        standing = await run_in_thread(_read_status, place)
        left = deadline - time.monotonic()
        if standing.status not in ("queued", "running") or left <= 0:
            return await run_in_thread(_build_result, standing, place.session_id)
        await _wait_for_event(feed, min(left, ROW_POLL_SECONDS))


async def _wait_for_event(feed: EventFeed, seconds: float) -> None:
    """Until something may have ended, or the seconds are over."""
    try:
        async with asyncio.timeout(seconds):
            async for batch in feed:
                if any(entry.kind in _WAKING_KINDS for entry in batch):
                    return
    except TimeoutError:
        return
    except FeedOverflowed:
        await asyncio.sleep(min(seconds, 1.0))  # the thread is lost: from here on only the rows are asked


def _read_status(place: _FollowedMessage) -> _TurnStatus:
    """From the rows alone: an event never says more than its row."""
    if place.run_id is None:
        return _TurnStatus(place.turn_id, _get_status(place.turn_id))
    message = (
        Message.objects.filter(session_id=place.session_id, run_id=place.run_id)
        .only("turn_id", "dropped_at")
        .first()
    )
    if message is None:
        raise NotFound
    if message.turn_id is not None:
        return _TurnStatus(message.turn_id, _get_status(message.turn_id))
    if message.dropped_at is None:
        return _TurnStatus(place.turn_id, "queued", own=False)
    ending = Turn.objects.filter(session_id=place.session_id, run_ids__contains=[place.run_id]).first()
    return _TurnStatus(ending.id if ending else place.turn_id, "cancelled", own=False)


def _get_status(turn_id: UUID) -> TurnResultStatus:
    value = Turn.objects.values_list("status", flat=True).get(pk=turn_id)
    match value:
        case "succeeded" | "failed" | "cancelled" | "running" | "waiting":
            return value
        case _:
            return "queued"


def _build_result(standing: _TurnStatus, session_id: UUID) -> TurnResult:
    """Everything a caller is told, in four statements."""
    if not standing.own:
        return TurnResult(turn_id=str(standing.turn_id), status=standing.status)
    shown = Message.objects.filter(turn=standing.turn_id, hidden="", kind__in=selectors.SHOWN_KINDS)
    rows = [serializers.serialize_message(row) for row in shown.order_by("sequence")]
    return TurnResult(
        turn_id=str(standing.turn_id),
        status=standing.status,
        text="\n\n".join(
            row.content for row in rows if row.kind == "assistant" and isinstance(row.content, str)
        ),
        tool_calls=_build_tool_calls(rows),
        usage=_sum_tokens(standing.turn_id),
        error=_build_error(standing.turn_id, rows) if standing.status == "failed" else None,
        link=build_session_url(session_id) if standing.status == "waiting" else None,
    )


def build_session_url(session_id: UUID) -> str:
    """A conversation's page, for whoever is told of it elsewhere."""
    return f"{settings.SITE_URL}{reverse('chat_session', args=[session_id])}"


def _build_tool_calls(rows: list[MessagePayload]) -> list[ToolCallResult]:
    results = {row.content.call_id: row.content for row in rows if isinstance(row.content, ToolResultContent)}
    made = []
    for row in rows:
        if isinstance(row.content, ToolCallContent):
            call, result = row.content, results.get(row.content.call_id)
            made.append(
                ToolCallResult(
                    call_id=call.call_id,
                    tool=call.tool,
                    arguments=call.arguments,
                    success=result.success if result else None,
                    preview=result.preview if result else "",
                    duration_ms=result.duration_ms if result else None,
                )
            )
    return made


def _sum_tokens(turn_id: UUID) -> Tokens:
    """Tokens alone: money is for staff (A19.8). The last call's record may come after the ending, which has its count."""
    names = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output", "reasoning")
    sums = ModelCall.objects.filter(turn_id=turn_id).aggregate(
        **{name: Sum(f"{name}_tokens") for name in names}
    )
    recorded = Tokens(**{name: sums[name] or 0 for name in names})
    summary = Turn.objects.values_list("summary", flat=True).get(pk=turn_id)
    ending = msgspec.convert(summary.get("tokens", {}), Tokens)
    return max(recorded, ending, key=lambda tokens: tokens.input + tokens.output)


def _build_error(turn_id: UUID, rows: list[MessagePayload]) -> TurnResultError:
    code = Turn.objects.values_list("failure_code", flat=True).get(pk=turn_id)
    told = [
        row.content for row in rows if isinstance(row.content, NoticeContent) and row.content.code == code
    ]
    if told:
        return TurnResultError(
            code=code, message=told[-1].label, hint=told[-1].hint, details=told[-1].details
        )
    words = NOTICES.get(code, NOTICES["unknown"])
    return TurnResultError(code=code, message=words.label, hint=words.hint)
