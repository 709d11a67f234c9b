"""Wait for the outcome of a message or a turn, and build the result that callers get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.db.models import QuerySet, Sum
from django.urls import reverse

from config.core.db import run_in_thread
from config.core.errors import NotFound
from copilot.chat import selectors, serializers
from copilot.chat.commands import SendMessage
from copilot.chat.model_calls import COMPACTION_PURPOSE, REPLY_PURPOSE
from copilot.chat.notices import NOTICES
from copilot.models import Approval, Message, ModelCall, Turn
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
ROW_POLL_SECONDS = 10.0  # events can be lost with Redis; the rows cannot
OWN_PURPOSES = (REPLY_PURPOSE, COMPACTION_PURPOSE)
TOKEN_NAMES = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output", "reasoning")
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
class ClientCall:
    """A call of a tool that the caller of the API runs itself, with its arguments whole."""

    call_id: str
    tool: str
    arguments_json: str


@dataclass(frozen=True, kw_only=True)
class TurnResultError:
    code: str
    message: str
    hint: str = ""
    details: str = ""
    retry_after_seconds: int | None = None  # as the model's provider asked


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """The present outcome of a message. While it is queued, `turn_id` is the turn it waits behind.

    A turn that handed calls to the API's caller has several parts: one up to the first such calls, and one after
    each set of results. A part that was continued has succeeded, and its `client_calls` are what it ended with.
    """

    turn_id: str
    status: TurnResultStatus
    text: str = ""
    last_text: str = ""  # of the last block alone
    client_calls: list[ClientCall] = field(default_factory=list)
    limit_code: str = ""
    approval_ids: list[str] = field(default_factory=list)  # those that a person has to decide about
    tool_calls: list[ToolCallResult] = field(default_factory=list)
    usage: Tokens = field(default_factory=Tokens)
    error: TurnResultError | None = None
    link: str | None = None  # where a person can decide, while the turn waits for one


class AcceptedSubmission(Protocol):
    """The part of a submission's outcome that is needed here."""

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
    turn = await run_in_thread(selectors.get_turn, user_id, turn_id)
    async with open_session_feed(turn.session_id, None, fanout=tail, connection=connection) as feed:
        return await _wait_until_final(
            feed, _FollowedMessage(turn.session_id, turn_id, run_id), timeout_seconds
        )


def get_turn_result(user_id: int, turn_id: UUID, *, run_id: str | None = None) -> TurnResult:
    turn = selectors.get_turn(user_id, turn_id)
    return _build_result(
        _read_status(_FollowedMessage(turn.session_id, turn_id, run_id), turn), turn.session_id, run_id
    )


async def submit_and_wait(
    command: SendMessage, *, submit: Callable[[SendMessage], AcceptedSubmission], timeout_seconds: float
) -> TurnResult:
    command = replace(command, run_id=command.run_id or uuid4().hex)
    async with open_session_feed(command.session_id, None) as feed:
        accepted = await run_in_thread(submit, command)
        return await _wait_until_final(
            feed, _FollowedMessage(command.session_id, accepted.turn_id, command.run_id), timeout_seconds
        )


@dataclass(frozen=True)
class _FollowedMessage:
    session_id: UUID
    turn_id: UUID
    run_id: str | None


@dataclass(frozen=True)
class _TurnStatus:
    """The status of a message. `turn` is None while it has no turn of its own and waits behind another."""

    turn_id: UUID
    status: TurnResultStatus
    turn: Turn | None = None


async def _wait_until_final(
    feed: EventFeed, followed: _FollowedMessage, timeout_seconds: float
) -> TurnResult:
    deadline = time.monotonic() + timeout_seconds
    while True:
        status = await run_in_thread(_read_status, followed)
        remaining_seconds = deadline - time.monotonic()
        if status.status not in ("queued", "running") or remaining_seconds <= 0:
            return await run_in_thread(_build_result, status, followed.session_id, followed.run_id)
        await _wait_for_event(feed, min(remaining_seconds, ROW_POLL_SECONDS))


async def _wait_for_event(feed: EventFeed, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            async for batch in feed:
                if any(entry.kind in _WAKING_KINDS for entry in batch):
                    return
    except TimeoutError:
        return
    except FeedOverflowed:
        await asyncio.sleep(min(seconds, 1.0))  # the feed is over: from here on only the rows are read


def _read_status(followed: _FollowedMessage, known: Turn | None = None) -> _TurnStatus:
    """Read the status of a message. `known` is the followed turn, if it has just been read."""
    if followed.run_id is None:
        return _read_turn_status(followed.turn_id, known)
    message = (
        Message.objects.filter(session_id=followed.session_id, run_id=followed.run_id)
        .only("turn_id", "dropped_at")
        .first()
    )
    if message is None:
        raise NotFound
    if message.turn_id is not None:
        return _read_turn_status(message.turn_id, known)
    if message.dropped_at is None:
        return _TurnStatus(followed.turn_id, "queued")
    ending = Turn.objects.filter(session_id=followed.session_id, run_ids__contains=[followed.run_id]).first()
    return _TurnStatus(ending.id if ending else followed.turn_id, "cancelled")


def _read_turn_status(turn_id: UUID, known: Turn | None) -> _TurnStatus:
    if known is None or known.pk != turn_id:
        known = Turn.objects.only("status", "summary", "failure_code", "limit_code").get(pk=turn_id)
    match known.status:
        case "succeeded" | "failed" | "cancelled" | "running" | "waiting":
            return _TurnStatus(turn_id, known.status, known)
        case _:
            return _TurnStatus(turn_id, "queued", known)


def _build_result(status: _TurnStatus, session_id: UUID, run_id: str | None) -> TurnResult:
    if status.turn is None:
        return TurnResult(turn_id=str(status.turn_id), status=status.status)
    messages = Message.objects.filter(turn=status.turn_id, hidden="", kind__in=selectors.SHOWN_KINDS)
    part = _find_part(list(messages.order_by("sequence")), run_id)
    rows = [serializers.serialize_message(row) for row in part.rows]
    texts = [row.content for row in rows if row.kind == "assistant" and isinstance(row.content, str)]
    outcome = status.status if part.ended_at is None else "succeeded"
    return TurnResult(
        turn_id=str(status.turn_id),
        status=outcome,
        text="\n\n".join(texts),
        last_text=texts[-1] if texts else "",
        client_calls=_build_client_calls(part.rows),
        limit_code=status.turn.limit_code if part.ended_at is None else "",
        tool_calls=_build_tool_calls(rows),
        usage=_sum_tokens(status.turn, part),
        error=_build_error(status.turn.failure_code, part.rows) if outcome == "failed" else None,
        link=build_session_url(session_id) if outcome == "waiting" else None,
        approval_ids=_list_approval_ids(status.turn) if outcome == "waiting" else [],
    )


@dataclass(frozen=True, kw_only=True)
class _TurnPart:
    """The rows of a turn that belong to one run id, and the times between which its model calls began."""

    rows: list[Message]
    began_at: datetime | None = None
    ended_at: datetime | None = None  # None: it is the turn's last part


def _find_part(rows: list[Message], run_id: str | None) -> _TurnPart:
    """Choose the rows of a run. Results of the API's caller begin a part, and the first of them has its run id."""
    starts = [place for place, row in enumerate(rows) if row.kind == "tool_result" and row.run_id]
    if not starts or run_id is None:
        return _TurnPart(rows=rows)
    own = next((number for number, place in enumerate(starts) if rows[place].run_id == run_id), None)
    following = 0 if own is None else own + 1
    begin = None if own is None else starts[own]
    end = starts[following] if following < len(starts) else None
    return _TurnPart(
        rows=rows[begin:end],
        began_at=None if begin is None else rows[begin].created_at,
        ended_at=None if end is None else rows[end].created_at,
    )


def _list_approval_ids(turn: Turn) -> list[str]:
    requested = Approval.objects.requested().filter(turn=turn).order_by("position")
    return [str(pk) for pk in requested.values_list("pk", flat=True)]


def _build_client_calls(rows: list[Message]) -> list[ClientCall]:
    answered = {row.call_id for row in rows if row.kind == "tool_result"}
    return [
        ClientCall(
            call_id=row.call_id or "",
            tool=str(row.data["tool"]),
            arguments_json=msgspec.json.encode(row.data.get("arguments") or {}).decode(),
        )
        for row in rows
        if row.kind == "tool_call" and row.data.get("of_client") and row.call_id not in answered
    ]


def build_session_url(session_id: UUID) -> str:
    return f"{settings.SITE_URL}{reverse('chat_session', args=[session_id])}"


def _build_tool_calls(rows: list[MessagePayload]) -> list[ToolCallResult]:
    results = {row.content.call_id: row.content for row in rows if isinstance(row.content, ToolResultContent)}
    calls = []
    for row in rows:
        if isinstance(row.content, ToolCallContent):
            call, result = row.content, results.get(row.content.call_id)
            calls.append(
                ToolCallResult(
                    call_id=call.call_id,
                    tool=call.tool,
                    arguments=call.arguments,
                    success=result.success if result else None,
                    preview=result.preview if result else "",
                    duration_ms=result.duration_ms if result else None,
                )
            )
    return calls


def _sum_tokens(turn: Turn, part: _TurnPart) -> Tokens:
    """Sum the tokens of the turn's own calls, not their cost, which only staff see.

    The last call may be recorded after the ending, so the larger of both counts is used. Titles and judgements
    are made after the turn and are not part of it.
    """
    calls = ModelCall.objects.filter(turn=turn, purpose__in=OWN_PURPOSES)
    before = _sum_call_tokens(calls.filter(created_at__lt=part.began_at)) if part.began_at else Tokens()
    if part.began_at:
        calls = calls.filter(created_at__gte=part.began_at)
    if part.ended_at:
        return _sum_call_tokens(calls.filter(created_at__lt=part.ended_at))
    ending = msgspec.convert(turn.summary.get("tokens", {}), Tokens)
    rest = Tokens(**{name: max(0, getattr(ending, name) - getattr(before, name)) for name in TOKEN_NAMES})
    return max(_sum_call_tokens(calls), rest, key=lambda tokens: tokens.input + tokens.output)


def _sum_call_tokens(calls: QuerySet[ModelCall]) -> Tokens:
    sums = calls.aggregate(**{name: Sum(f"{name}_tokens") for name in TOKEN_NAMES})
    return Tokens(**{name: sums[name] or 0 for name in TOKEN_NAMES})


def _build_error(code: str, rows: list[Message]) -> TurnResultError:
    found = [row for row in rows if row.kind == "notice" and row.data.get("code") == code]
    if found:
        shown = serializers.serialize_message(found[-1]).content
        assert isinstance(shown, NoticeContent)
        return TurnResultError(
            code=code,
            message=shown.label,
            hint=shown.hint,
            details=shown.details,
            retry_after_seconds=found[-1].data.get("retry_after_seconds"),
        )
    notice = NOTICES.get(code, NOTICES["unknown"])
    return TurnResultError(code=code, message=notice.label, hint=notice.hint)
