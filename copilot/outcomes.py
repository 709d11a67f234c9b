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

from copilot import queries
from copilot.bridge import in_thread
from copilot.commands import SendMessage
from copilot.errors import NotFound
from copilot.events import (
    ENDING_KINDS,
    MessageView,
    NoticeContent,
    Tokens,
    ToolCallContent,
    ToolResultContent,
)
from copilot.live.tail import Feed, Overflowed, Tail
from copilot.models import Message, ModelCall, Turn
from copilot.notices import NOTICES
from copilot.readers import Revocable, listening

Status = Literal["succeeded", "failed", "cancelled", "running", "queued", "waiting"]
MAX_WAIT_SECONDS = 300
LOOK_AGAIN_SECONDS = 10.0  # news can be lost with Redis; the rows cannot
_WAKING = ENDING_KINDS | {"turn.paused"}


@dataclass(frozen=True, kw_only=True)
class CallMade:
    """A tool call of the turn; `success` is None while it runs."""

    call_id: str
    tool: str
    arguments: dict[str, str]
    success: bool | None = None
    preview: str = ""
    duration_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class OutcomeError:
    code: str
    message: str
    hint: str = ""
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a message until now. `turn_id` is the turn it waits behind while it is queued."""

    turn_id: str
    status: Status
    text: str = ""
    tool_calls: list[CallMade] = field(default_factory=list)
    usage: Tokens = field(default_factory=Tokens)
    error: OutcomeError | None = None
    link: str | None = None  # where a person decides, while the turn waits for one (A31.4)


class Accepted(Protocol):
    """What dispatch answers to a message it took."""

    @property
    def turn_id(self) -> UUID: ...


async def wait(
    user_id: int,
    turn_id: UUID,
    *,
    run_id: str | None = None,
    timeout_seconds: float,
    tail: Tail | None = None,
    connection: Revocable | None = None,
) -> Outcome:
    """The outcome of a turn, or of the message `run_id`, as soon as it is final or when the time is up."""
    turn = await in_thread(queries.turn_of, user_id, turn_id)
    async with listening(turn.session_id, None, tail=tail, connection=connection) as feed:
        return await _follow(feed, _Place(turn.session_id, turn_id, run_id), timeout_seconds)


def at_once(user_id: int, turn_id: UUID, *, run_id: str | None = None) -> Outcome:
    """The outcome as the rows have it now."""
    turn = queries.turn_of(user_id, turn_id)
    return _tell(_look(_Place(turn.session_id, turn_id, run_id)), turn.session_id)


async def run_and_wait(
    command: SendMessage, *, submit: Callable[[SendMessage], Accepted], timeout_seconds: float
) -> Outcome:
    """Say something and wait for its own answer. `submit` is dispatch's, which stands above this module."""
    command = replace(command, run_id=command.run_id or uuid4().hex)
    async with listening(command.session_id, None) as feed:
        accepted = await in_thread(submit, command)
        return await _follow(
            feed, _Place(command.session_id, accepted.turn_id, command.run_id), timeout_seconds
        )


@dataclass(frozen=True)
class _Place:
    """Which message or turn is followed."""

    session_id: UUID
    turn_id: UUID
    run_id: str | None


@dataclass(frozen=True)
class _Standing:
    """Where it stands; without a turn of its own yet, the turn it waits behind says nothing about it."""

    turn_id: UUID
    status: Status
    own: bool = True


async def _follow(feed: Feed, place: _Place, timeout_seconds: float) -> Outcome:
    deadline = time.monotonic() + timeout_seconds
    while True:
        standing = await in_thread(_look, place)
        left = deadline - time.monotonic()
        if standing.status not in ("queued", "running") or left <= 0:
            return await in_thread(_tell, standing, place.session_id)
        await _news(feed, min(left, LOOK_AGAIN_SECONDS))


async def _news(feed: Feed, seconds: float) -> None:
    """Until something may have ended, or the seconds are over."""
    try:
        async with asyncio.timeout(seconds):
            async for batch in feed:
                if any(entry.kind in _WAKING for entry in batch):
                    return
    except TimeoutError:
        return
    except Overflowed:
        await asyncio.sleep(min(seconds, 1.0))  # the thread is lost: from here on only the rows are asked


def _look(place: _Place) -> _Standing:
    """From the rows alone: an event never says more than its row."""
    if place.run_id is None:
        return _Standing(place.turn_id, _status_of(place.turn_id))
    message = (
        Message.objects.filter(session_id=place.session_id, run_id=place.run_id)
        .only("turn_id", "dropped_at")
        .first()
    )
    if message is None:
        raise NotFound
    if message.turn_id is not None:
        return _Standing(message.turn_id, _status_of(message.turn_id))
    if message.dropped_at is None:
        return _Standing(place.turn_id, "queued", own=False)
    ending = Turn.objects.filter(session_id=place.session_id, run_ids__contains=[place.run_id]).first()
    return _Standing(ending.id if ending else place.turn_id, "cancelled", own=False)


def _status_of(turn_id: UUID) -> Status:
    value = Turn.objects.values_list("status", flat=True).get(pk=turn_id)
    match value:
        case "succeeded" | "failed" | "cancelled" | "running" | "waiting":
            return value
        case _:
            return "queued"


def _tell(standing: _Standing, session_id: UUID) -> Outcome:
    """Everything a caller is told, in four statements."""
    if not standing.own:
        return Outcome(turn_id=str(standing.turn_id), status=standing.status)
    shown = Message.objects.filter(turn=standing.turn_id, hidden="", kind__in=queries.SHOWN_KINDS)
    rows = [queries.message_view(row) for row in shown.order_by("sequence")]
    return Outcome(
        turn_id=str(standing.turn_id),
        status=standing.status,
        text="\n\n".join(
            row.content for row in rows if row.kind == "assistant" and isinstance(row.content, str)
        ),
        tool_calls=_calls(rows),
        usage=_usage(standing.turn_id),
        error=_error(standing.turn_id, rows) if standing.status == "failed" else None,
        link=link_to(session_id) if standing.status == "waiting" else None,
    )


def link_to(session_id: UUID) -> str:
    """A conversation's page, for whoever is told of it elsewhere."""
    return f"{settings.SITE_URL}{reverse('chat_session', args=[session_id])}"


def _calls(rows: list[MessageView]) -> list[CallMade]:
    results = {row.content.call_id: row.content for row in rows if isinstance(row.content, ToolResultContent)}
    made = []
    for row in rows:
        if isinstance(row.content, ToolCallContent):
            call, result = row.content, results.get(row.content.call_id)
            made.append(
                CallMade(
                    call_id=call.call_id,
                    tool=call.tool,
                    arguments=call.arguments,
                    success=result.success if result else None,
                    preview=result.preview if result else "",
                    duration_ms=result.duration_ms if result else None,
                )
            )
    return made


def _usage(turn_id: UUID) -> Tokens:
    """Tokens alone: money is for staff (A19.8). The last call's record may come after the ending, which has its count."""
    names = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output", "reasoning")
    sums = ModelCall.objects.filter(turn_id=turn_id).aggregate(
        **{name: Sum(f"{name}_tokens") for name in names}
    )
    recorded = Tokens(**{name: sums[name] or 0 for name in names})
    summary = Turn.objects.values_list("summary", flat=True).get(pk=turn_id)
    ending = msgspec.convert(summary.get("tokens", {}), Tokens)
    return max(recorded, ending, key=lambda tokens: tokens.input + tokens.output)


def _error(turn_id: UUID, rows: list[MessageView]) -> OutcomeError:
    code = Turn.objects.values_list("failure_code", flat=True).get(pk=turn_id)
    told = [
        row.content for row in rows if isinstance(row.content, NoticeContent) and row.content.code == code
    ]
    if told:
        return OutcomeError(code=code, message=told[-1].label, hint=told[-1].hint, details=told[-1].details)
    words = NOTICES.get(code, NOTICES["unknown"])
    return OutcomeError(code=code, message=words.label, hint=words.hint)
