"""The AI SDK's chat transport: a message in, a stream of UI message parts out, which can be resumed (E4.1).

The client names its chats itself. A name is the id of one of the caller's sessions, or stands for one made under it. The
session knows what was said; the messages a client sends along count only when it is new.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID, uuid5

from django.conf import settings
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import Field

from copilot import events, queries
from copilot.bridge import in_thread
from copilot.commands import as_uuid
from copilot.compat import asking
from copilot.compat.asking import Asked, Line
from copilot.compat.doors import Caller, Lenient, body_of, door, frame_of, streamed
from copilot.compat.following import Line as Logged
from copilot.compat.following import Reader, Silence, read_on
from copilot.compat.models import tier_of
from copilot.compat.running import Order, Run, past_of, running
from copilot.compat.ui_parts import Part, Parts
from copilot.errors import InvalidRequest, NotFound, Refused
from copilot.live.stream import Entry
from copilot.models import Message
from copilot.outcomes import Outcome, link_to
from copilot.workspace.retelling import retell

PREFIX = "ui-"
CHATS = UUID("6f0d2c1e-93a7-4a55-8a0b-2f6f0c5b7d11")  # names of chats become ids under it
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
Name = Annotated[str, Field(min_length=1, max_length=200)]


class UIPart(Lenient):
    type: str
    text: str | None = None


class UIMessage(Lenient):
    role: Literal["system", "user", "assistant"]
    parts: list[UIPart]


class Body(Lenient):
    id: Name
    messages: Annotated[list[UIMessage], Field(min_length=1)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    model: str | None = None


async def send(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    body = body_of(request, Body)
    order = await in_thread(_order, caller, body)
    return await _in_form(_said(caller, order))


async def resume(request: HttpRequest, caller: Caller, name: str) -> HttpResponseBase:
    """The turn in flight from its beginning; 204 when there is none."""
    flying = await in_thread(_in_flight, caller, name)
    if flying is None:
        return HttpResponse(status=204)
    run, parts, begun = flying
    return await _in_form(_frames(run, parts, begun))


chat = door(POST=send, is_stream=True)
stream = door(GET=resume, is_stream=True)


async def _in_form(frames: AsyncGenerator[bytes, None]) -> HttpResponseBase:
    response = await streamed(frames, tell=_broken)
    response["x-vercel-ai-ui-message-stream"] = "v1"
    return response


def _broken(refusal: Refused) -> bytes:
    return frame_of({"type": "error", "errorText": refusal.message}) + DONE


# --- what is asked -----------------------------------------------------------------------------------


def _order(caller: Caller, body: Body) -> Order:
    asked = asking.of_lines([_line(one) for one in body.messages], param="messages")
    session_id = _session(caller.user_id, body.id) or _made(caller.user_id, body.id, asked)
    return Order(
        asked=asked,
        tier=tier_of(body.model) if body.model else "",
        mode="",
        prefix=PREFIX,
        session_id=session_id,
        again=_last_said(session_id) if body.trigger == "regenerate-message" else None,
    )


def _line(message: UIMessage) -> Line:
    """Words alone: what else an answer consisted of, its session knows."""
    if message.role == "user" and any(part.type == "file" for part in message.parts):
        raise InvalidRequest("Files cannot be taken here; send text.", code="unsupported_content")
    texts = [part.text for part in message.parts if part.type == "text" and part.text]
    return Line(role=message.role, text="\n".join(texts))


def _session(user_id: int, name: str) -> UUID | None:
    for candidate in (as_uuid(name), _id_for(user_id, name)):
        try:
            if candidate is not None:
                return queries.session_of(user_id, candidate).pk
        except NotFound:
            continue
    return None


def _id_for(user_id: int, name: str) -> UUID:
    return uuid5(CHATS, f"{user_id}:{name}")


def _made(user_id: int, name: str, asked: Asked) -> UUID:
    at, session_id = events.instant(datetime.now(UTC)), _id_for(user_id, name)
    try:
        retell(user_id, past_of(asked.past, at), at=at, instructions="", listed=True, session_id=session_id)
    except IntegrityError:
        queries.session_of(user_id, session_id)  # made just now by another request, or deleted
    return session_id


def _last_said(session_id: UUID) -> UUID:
    rows = Message.objects.filter(
        session=session_id, kind=Message.Kind.USER, hidden="", sequence__isnull=False
    )
    last = rows.order_by("-sequence").first()
    if last is None:
        raise InvalidRequest("There is nothing to answer again.")
    return last.pk


def _in_flight(caller: Caller, name: str) -> tuple[Run, Parts, list[Part]] | None:
    session_id = _session(caller.user_id, name)
    if session_id is None:
        return None
    snapshot, cursor = queries.snapshot(session_id)
    if snapshot.turn is None or snapshot.turn.status == "waiting":
        return None
    run = Run(
        caller=caller,
        session_id=session_id,
        turn_id=UUID(snapshot.turn.id),
        run_id="",
        cursor=cursor,
        started=True,
        kept=True,
    )
    parts = _parts(run)
    return run, parts, parts.replay(snapshot.turn.messages)


# --- what is answered --------------------------------------------------------------------------------


class _Parts(Reader[Part]):
    def __init__(self, run: Run, parts: Parts) -> None:
        super().__init__(run)
        self.parts = parts

    def heard(self, entry: Entry, line: Logged) -> list[Part]:
        return self.parts.of(events.decode(entry.payload))


def _parts(run: Run) -> Parts:
    name = str(run.turn_id) if run.started else run.run_id
    return Parts(name, site=settings.SITE_URL, link=link_to(run.session_id))


async def _said(caller: Caller, order: Order) -> AsyncGenerator[bytes, None]:
    async with running(caller, order) as run:
        async for frame in _frames(run, _parts(run), []):
            yield frame


async def _frames(run: Run, parts: Parts, begun: list[Part]) -> AsyncGenerator[bytes, None]:
    yield _framed([*parts.begin(), *begun])
    async for found in read_on(_Parts(run, parts)):
        yield KEEP_ALIVE if isinstance(found, Silence) else _framed(found)
    if not parts.ended:  # the log lost the ending; the rows have it
        yield _framed(_ending(parts, await in_thread(run.outcome)))
    yield DONE


def _ending(parts: Parts, outcome: Outcome) -> list[Part]:
    match outcome.status:
        case "failed":
            return parts.fail(outcome.error.code if outcome.error else "unknown")
        case "cancelled":
            return parts.close({"type": "abort"})
        case _:
            return parts.close({"type": "finish"})


def _framed(parts: list[Part]) -> bytes:
    return b"".join(frame_of(part) for part in parts)
